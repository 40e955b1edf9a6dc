"""The simulator's ledger reads every entry, also of consumers that are gone by then."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_map import IntervalMap
from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.v1.catalog_pb2 import IntervalMapRecord, IntervalRecord, StreamLogRecord
from millwheel.rpc.v1.common_pb2 import KeyInterval
from millwheel.store.contract import Append
from millwheel.store.memory import MemoryStore
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.interval.entry import FORMAT, IntervalEntry, encode
from millwheel.worker.log.entry import LOG_ENTRY_FORMAT, LogEntry
from millwheel.worker.messages import Delivery
from simulation.ledger import Ledger
from simulation.store import finished


class Records:
    """A catalog with only the methods that a ledger calls."""

    def __init__(self) -> None:
        self.logs = {"s": StreamLogRecord(stream="s", incarnation=IncarnationId("s.log.1"))}
        self.computations: dict[str, Any] = {}
        self.pairs: frozenset[tuple[str, str]] = frozenset()
        self.maps: dict[str, Any] = {}

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


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize(
    ("positions", "complete", "left_out"),
    [([7, 10], True, [9]), ([7, 10], False, []), ([7, 9, 10], True, []), ([9, 10], True, []), ([], True, [])],
)
def test_a_complete_delivery_leaves_out_nothing_of_its_keys(
    positions: list[int], complete: bool, left_out: list[int]
) -> None:
    """8 is for the other interval of the consumer."""
    records, store, consumer = Records(), MemoryStore(), IncarnationId("consumer.2")
    records.computations = dict.fromkeys(("producer.1", consumer), object())
    records.pairs = frozenset({(consumer, "between")})
    halves = [KeyInterval(start=b"", end=b"m"), KeyInterval(start=b"m")]
    intervals = [IntervalRecord(journal=f"consumer.2.j{number}", keys=keys) for number, keys in enumerate(halves)]
    records.maps = {consumer: IntervalMap(consumer, IntervalMapRecord(computation=consumer, intervals=intervals))}
    ledger = Ledger(cast("Any", records), store)
    ledger.follow()
    rows = [
        (at, key, "between", b"v", 1, ((consumer, key),), b"")
        for at, key in zip(range(7, 11), (b"a", b"z", b"b", b"a"), strict=True)
    ]
    finished(store.create_journal("producer.1.j1"))
    entry = IntervalEntry(FORMAT, 0, 0, [], [], [], [], rows, [], [], (0, 0, 0))
    ledger.read("producer.1.j1", Append(1, 1, 0, (), encode(entry)))
    ids = PositionIds("producer.1.j1", 0, positions, (), complete)
    sender = Sender("producer.1.j1", 1, ALL_KEYS, "producer.1")
    keys = [b"a"] * len(positions)
    delivery = Delivery(consumer, "consumer.2.j0", "between", sender, ids, keys, keys, [1] * len(positions))
    assert ledger.left_out(delivery) == left_out
