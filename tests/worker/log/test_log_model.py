"""A log against a naive list: random deliveries, copies, ACKs, flushes, and crashes at every point (G1, G7, G13).

The *auditor* is a tail that is served at once, and resumes after every crash. The records that it gets are the list.
Everything else is compared with the list: no record is there twice, and offsets never change. No record is lost that a
sender got an ACK for, or that a cursor has not ACKed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.worker.dedup import BatchIds, DeliveryIds, OpaqueIds, PositionIds, Sender
from millwheel.worker.log import AckOffset, DeleteCursor, Fetch, LogRetention, LogSettings, Start
from millwheel.worker.messages import AppendEntry, Delivery, FlushStates, GroupWatermarks, ReadStates, WriteParts
from tests.worker.log.driver import ACKED, LogDriver, Reader

SETTINGS = LogSettings(
    batch_bytes=400,
    segment_bytes=200,
    queue_bytes=1_000,
    memory_bytes=700,
    cap_bytes=1 << 20,
    checkpoint_entries=5,
    checkpoint_bytes=3_000,
    flush_bytes=300,
    publish_records=3,
    publish_bytes=120,
    reads=2,
)
CURSORS = ["x", "y"]


@dataclass
class Producer:
    """A sender that keeps un-ACKed records, and sends only late records below its watermark."""

    name: str
    computation: str
    frontier: int = 0
    next: int = 0
    reported: int = -(1 << 62)
    """The sender's watermark in the last broadcast."""
    unacked: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    batch: int = 0

    @property
    def watermark(self) -> int:
        return min([self.frontier, *(timestamp for _, timestamp in self.unacked.values())])

    @property
    def mark(self) -> int:
        return min(self.unacked, default=self.next)

    @property
    def sender(self) -> Sender:
        keys = ALL_KEYS if self.name == "journal" else None
        return Sender(self.name, 1, keys, self.computation, self.watermark)

    def ids(self, numbers: list[int]) -> DeliveryIds:
        if self.name == "opaque":
            return OpaqueIds([b"o%015d" % number for number in numbers])
        if self.name == "batch":
            return BatchIds("query", self.batch, [b"b%015d" % number for number in numbers])
        return PositionIds(self.name, self.mark, numbers)


@dataclass
class Follower:
    """One subscriber of a cursor: the records that it got, and where it must begin."""

    cursor: str
    reader: Reader
    beginning: tuple[int, int] | None
    checked: int = 0
    next: int | None = None


class LogMachine(RuleBasedStateMachine):
    retention = LogRetention()

    def __init__(self) -> None:
        super().__init__()
        self.producers = {
            name: Producer(name, f"computation-{name}") for name in ("injector/windows/p", "journal", "opaque", "batch")
        }
        senders = frozenset(one.computation for one in self.producers.values())
        self.driver = LogDriver(SETTINGS, self.retention, senders)
        self.sent: list[tuple[Delivery, Producer, list[int]]] = []
        self.list: list[tuple[bytes, int]] = []
        self.places: dict[bytes, int] = {}
        self.late: set[bytes] = set()
        self.least: int = -MAX_TIMESTAMP
        """The largest watermark that any subscriber got."""
        self.auditor = self.driver.subscribe()
        self.seen_answers = 0
        self.followers: dict[str, Follower] = {}
        self.acked: dict[str, int] = {}
        """The largest ACK from each cursor."""
        self.durable: dict[str, int] = {}
        """The largest durable ACK that each cursor was shown."""

    # Senders.

    @rule(
        name=st.sampled_from(["injector/windows/p", "journal", "opaque", "batch"]),
        sizes=st.lists(st.integers(8, 90), min_size=1, max_size=6),
        back=st.integers(0, 40),
        late=st.booleans(),
    )
    def produce(self, name: str, sizes: list[int], back: int, late: bool) -> None:
        one = self.producers[name]
        numbers = []
        for size in sizes:
            value = b"%s %d " % (name[:1].encode(), one.next)
            timestamp = one.frontier + size - 8
            if late and name.startswith("injector"):
                timestamp = one.reported - back
                self.late.add(value + b"." * size)
            one.unacked[one.next] = (value + b"." * size, timestamp)
            numbers.append(one.next)
            one.next += 1
        self.send(one, numbers)

    @precondition(lambda self: any(one.unacked for one in self.producers.values()))
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from([one for one in self.producers.values() if one.unacked]))
        numbers = data.draw(st.lists(st.sampled_from(sorted(one.unacked)), min_size=1, unique=True))
        self.send(one, numbers)

    def send(self, one: Producer, numbers: list[int]) -> None:
        values = [one.unacked[number][0] for number in numbers]
        stamps = [one.unacked[number][1] for number in numbers]
        ids, keys = one.ids(numbers), [b""] * len(numbers)
        delivery = Delivery(IncarnationId("log"), "j", "windows", one.sender, ids, keys, values, stamps)
        self.sent.append((delivery, one, numbers))
        self.driver.handle(delivery)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def stray_copy(self, data: st.DataObject) -> None:
        """A delivery comes once more, unchanged, at any later time."""
        self.driver.handle(data.draw(st.sampled_from(self.sent))[0])

    @rule(name=st.sampled_from(["injector/windows/p", "journal", "opaque", "batch"]), by=st.integers(1, 50))
    def advance(self, name: str, by: int) -> None:
        one = self.producers[name]
        one.frontier += by
        one.reported = max(one.reported, one.watermark)
        self.driver.handle(GroupWatermarks({one.computation: one.reported}))

    @rule()
    def next_batch(self) -> None:
        one = self.producers["batch"]
        if not one.unacked:
            one.batch += 1

    # The store, time and crashes.

    @precondition(lambda self: self.driver.waiting)
    @rule(index=st.integers(0, 5))
    def store_does_something(self, index: int) -> None:
        self.driver.step(index)

    @rule()
    def store_catches_up(self) -> None:
        self.driver.run()

    @rule(slow=st.sampled_from([FlushStates, WriteParts, ReadStates]))
    def store_catches_up_but_for(self, slow: type) -> None:
        self.driver.run_but(slow)

    @rule(microseconds=st.sampled_from([1, 50_000, 3_000_000]))
    def time_passes(self, microseconds: int) -> None:
        self.driver.pass_time(microseconds)

    @rule(applied=st.booleans())
    def crash(self, applied: bool) -> None:
        self.listen()
        self.driver.crash(applied)
        self.auditor = self.driver.subscribe(resume=len(self.list))
        self.followers.clear()

    # Cursors.

    @rule(cursor=st.sampled_from(CURSORS), window=st.integers(1, 8), start=st.sampled_from(Start))
    def subscribe(self, cursor: str, window: int, start: Start) -> None:
        self.listen()
        known = cursor in self.driver.core.state.cursors.durable
        reader = self.driver.subscribe(cursor, start, window, credit=0)
        beginning = (self.durable[cursor], self.acked[cursor]) if known and cursor in self.acked else None
        self.followers[cursor] = Follower(cursor, reader, beginning)

    @precondition(lambda self: self.followers)
    @rule(data=st.data(), responses=st.integers(1, 5))
    def fetch(self, data: st.DataObject, responses: int) -> None:
        follower = self.followers[data.draw(st.sampled_from(sorted(self.followers)))]
        self.driver.handle(Fetch(follower.reader, responses))

    @precondition(lambda self: any(one.next for one in self.followers.values()))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name, one in sorted(self.followers.items()) if one.next]))
        follower = self.followers[name]
        below = data.draw(st.integers(0, follower.next or 0))
        self.driver.handle(AckOffset(follower.reader, below))
        self.acked[name] = max(self.acked.get(name, 0), below)

    @rule(cursor=st.sampled_from(CURSORS))
    def delete(self, cursor: str) -> None:
        self.driver.handle(DeleteCursor(cursor, cursor))
        self.driver.run()
        self.followers.pop(cursor, None)
        self.acked.pop(cursor, None)
        self.durable.pop(cursor, None)

    # Invariants.

    @invariant()
    def listen(self) -> None:
        """Compare the responses to subscribers and senders with the list."""
        for one in self.auditor.published:
            assert one.first == len(self.list), "the auditor is sent everything, in order"
            for value, timestamp in zip(one.values, one.timestamps, strict=True):
                assert value not in self.places, f"{value!r} has two offsets"
                assert timestamp >= self.least or value in self.late, "G7: a record below a watermark that was sent"
                self.places[value] = len(self.list)
                self.list.append((value, timestamp))
            assert one.next == len(self.list)
        reported = [one.watermark for one in self.auditor.published]
        self.auditor.published.clear()
        for follower in self.followers.values():
            self.follow(follower)
        self.least = max([self.least, *reported])
        self.answered()

    def follow(self, follower: Follower) -> None:
        for one in follower.reader.published[follower.checked :]:
            if follower.next is None:
                if follower.beginning is not None:
                    durable, acked = follower.beginning
                    assert durable <= one.first <= max(acked, durable)
                else:
                    self.acked[follower.cursor] = one.first
                self.durable.setdefault(follower.cursor, one.acked)
                follower.next = one.first
            assert one.first == max(follower.next, min(self.acked[follower.cursor], one.first)), "a gap"
            assert list(zip(one.values, one.timestamps, strict=True)) == self.list[one.first : one.next]
            assert all(
                timestamp >= one.watermark or value in self.late for value, timestamp in self.list[one.next :]
            ), "G7: something left to read is below the watermark that was sent"
            self.least = max(self.least, one.watermark) if one.next == len(self.list) else self.least
            assert one.acked <= max(self.acked[follower.cursor], self.durable[follower.cursor])
            self.durable[follower.cursor] = max(self.durable[follower.cursor], one.acked)
            follower.next = one.next
        follower.checked = len(follower.reader.published)

    def answered(self) -> None:
        owners = {id(delivery): (one, numbers) for delivery, one, numbers in self.sent}
        for answer in self.driver.answers[self.seen_answers :]:
            one, numbers = owners[id(answer.delivery)]
            if answer.outcome != ACKED:
                continue
            left = set(answer.indexes)
            for index, number in enumerate(numbers):
                if index not in left:
                    assert answer.delivery.values[index] in self.places, "ACKed and not in the log"
                    one.unacked.pop(number, None)
        self.seen_answers = len(self.driver.answers)

    @invariant()
    def kept(self) -> None:
        """Un-ACKed records of each cursor are kept, memory is bounded, and the store has no unknown row."""
        state = self.driver.core.state
        records = state.records
        for name, acked in state.cursors.durable.items():
            assert records.start <= acked <= max(self.acked.get(name, acked), acked)
        loaded = sum(one.memory for one in [*records.closed, records.open] if one.loaded)
        assert records.memory == loaded
        assert records.kept == sum(one.size for one in [*records.closed, records.open])
        dirty = sum(one.memory for one in records.dirty.values())
        assert records.dirty_memory == dirty
        assert loaded <= max(SETTINGS.memory_bytes, dirty + records.open.memory)
        known = {one.first for one in records.closed} | set(records.emptied)
        assert self.driver.rows() <= known
        edges = [one.first for one in records.closed] + [records.open.first]
        assert edges == [records.start] + [one.end for one in records.closed]

    def teardown(self) -> None:
        """Finish all deliveries and subscriptions. Then the list has each record once."""
        self.listen()
        for _ in range(50):
            if not any(one.unacked for one in self.producers.values()):
                break
            for one in self.producers.values():
                for number in sorted(one.unacked):
                    self.send(one, [number])
                one.reported = max(one.reported, one.watermark)
                self.driver.handle(GroupWatermarks({one.computation: one.reported}))
            self.driver.run()
            self.listen()
        assert all(not one.unacked for one in self.producers.values()), "a record is never taken"
        assert len(self.list) == sum(one.next for one in self.producers.values())
        self.driver.crash(applied=False)
        # With a subscriber, the watermark is journaled. The same append drops records that are too old.
        self.driver.subscribe()
        self.driver.tell()
        start = self.driver.core.state.records.start
        everything = self.driver.subscribe(resume=start)
        readers = {name: self.driver.subscribe(name) for name in self.driver.core.state.cursors.durable}
        self.driver.run()
        assert list(zip(everything.offsets, everything.values, strict=True)) == [
            (offset, self.list[offset][0]) for offset in range(start, len(self.list))
        ]
        for name, reader in readers.items():
            acked = self.driver.core.state.cursors.durable[name]
            assert reader.offsets == list(range(acked, len(self.list)))
            assert acked >= self.durable.get(name, 0)
        assert not any(isinstance(job, AppendEntry) for job in self.driver.waiting)


class RetainingMachine(LogMachine):
    """The same with a retention by bytes and age, which without cursors forgets the oldest."""

    retention = LogRetention(max_age=2_000_000, max_bytes=900)


FEW = settings(
    max_examples=80,
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.guarantee("G1", section="4.3")
def test_every_record_is_logged_once_at_one_offset_until_acked() -> None:
    run_state_machine_as_test(LogMachine, settings=FEW)


@pytest.mark.guarantee("G1", section="4.3")
def test_the_same_holds_for_what_retention_leaves() -> None:
    run_state_machine_as_test(RetainingMachine, settings=FEW)
