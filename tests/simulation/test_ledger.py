"""The simulator's ledger reads every entry, also of consumers that are gone by then."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1.catalog_pb2 import StreamLogRecord
from millwheel.store.contract import Append
from millwheel.store.memory import MemoryStore
from millwheel.worker.log.entry import LOG_ENTRY_FORMAT, LogEntry
from simulation.ledger import Ledger


class Records:
    """A catalog with only the methods that a ledger calls."""

    def __init__(self) -> None:
        self.logs = {"s": StreamLogRecord(stream="s", incarnation=IncarnationId("s.log.1"))}
        self.computations: dict[str, Any] = {}

    def index(self) -> Records:
        return self

    def edges(self) -> frozenset[Any]:
        return frozenset()

    def computation(self, incarnation: str) -> None:
        return None

    def removed_computation(self, incarnation: str) -> None:
        return None

    def log_of(self, incarnation: str) -> Any:
        return next((log for log in self.logs.values() if log.incarnation == incarnation), None)


def test_the_first_entry_of_a_log_counts_after_its_removal() -> None:
    records = Records()
    ledger = Ledger(cast("Any", records), MemoryStore())
    ledger.follow()
    records.logs.clear()  # its topology is cancelled before its owner's first commit
    ledger.follow()
    entry = msgspec.msgpack.encode(LogEntry(LOG_ENTRY_FORMAT, 0, 0, 0, [], [], [], 0, [], [], [], (0, 0, 0)))
    assert isinstance(ledger.read("s.log.1.j1", Append(1, 1, 0, (), entry)), LogEntry)
