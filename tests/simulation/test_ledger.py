"""The simulator's ledger reads every entry, also of consumers that are gone by then."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1.catalog_pb2 import StreamLogRecord
from millwheel.store.contract import Append
from millwheel.store.memory import MemoryStore
from millwheel.worker.interval.entry import FORMAT, IntervalEntry, encode
from millwheel.worker.log.entry import LOG_ENTRY_FORMAT, LogEntry
from simulation.ledger import Ledger
from simulation.store import finished


class Records:
    """A catalog with only the methods that a ledger calls."""

    def __init__(self) -> None:
        self.logs = {"s": StreamLogRecord(stream="s", incarnation=IncarnationId("s.log.1"))}
        self.computations: dict[str, Any] = {}
        self.pairs: frozenset[tuple[str, str]] = frozenset()

    def index(self) -> Records:
        return self

    def edges(self) -> frozenset[tuple[str, str]]:
        return self.pairs

    def computation(self, incarnation: str) -> Any:
        return self.computations.get(incarnation)

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


@pytest.mark.parametrize("reads", [True, False])
def test_due_is_what_is_read_at_the_commit(reads: bool) -> None:
    """An owner commits under the version that it knows. A newer one may have taken the consumer away."""
    records, store = Records(), MemoryStore()
    records.computations = dict.fromkeys(("producer.1", "consumer.2"), object())
    ledger = Ledger(cast("Any", records), store)
    ledger.follow()
    if reads:
        records.pairs = frozenset({("consumer.2", "between")})
    row = (7, b"k", "between", b"v", 1, ((IncarnationId("consumer.2"), b"k"),), b"")
    entry = IntervalEntry(FORMAT, 0, 0, [], [], [], [], [row], [], [], (0, 0, 0))
    finished(store.create_journal("producer.1.j1"))
    ledger.read("producer.1.j1", Append(1, 1, 0, (), encode(entry)))
    assert ledger.due == ({("consumer.2", "producer.1.j1"): {7: "between"}} if reads else {})
