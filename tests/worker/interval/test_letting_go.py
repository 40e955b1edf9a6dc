"""A child becomes independent of its parents: it copies id segments, flushes rows and names a base (G1, G11; 7.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import CorruptValueError, JournalHead, PartId, StateRow
from millwheel.worker.dedup import OpaqueIds, Sender
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.recovery import recover
from millwheel.worker.messages import (
    Acknowledged,
    AnswerDelivery,
    Appended,
    AppendEntry,
    CopyParts,
    Delivery,
    FlushStates,
    GiveUp,
    Opened,
    OpenedParent,
    Parent,
    PartsRead,
    PartsWritten,
    PrepareRelease,
    ReadSegments,
    ReadStates,
    Refused,
    ReleasePrepared,
    SendDelivery,
    StatesFlushed,
    StatesRead,
    WriteParts,
)
from tests.worker.interval.driver import INJECTOR, IntervalDriver

PARENT = "test.1.j0"
RECORDS = 16
KEYS = {b"k%d" % number for number in range(RECORDS)}


class Echo(mw.Computation[tuple[str, str], int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Any]) -> None:
        ctx.state += 1
        ctx.produce("out", record.value[1])


def opaque(driver: IntervalDriver, numbers: range) -> Delivery:
    """Records with opaque ids. The same number is the same record."""
    sender = Sender("injector/in/p", 1, None, INJECTOR, None)
    delivery = Delivery(
        IncarnationId("test.1"), "test.1.j1", "in", sender, OpaqueIds([b"%016d" % number for number in numbers]),
        [b"k%d" % number for number in numbers],
        [msgspec.msgpack.encode((f"k{number}", f"v{number}")) for number in numbers],
        [50 + number for number in numbers], 900 + numbers[0],
    )  # fmt: skip
    driver.handle(delivery)
    return delivery


@dataclass
class Disk:
    """The written data: base parts, and state rows by key."""

    parts: dict[PartId, bytes] = field(default_factory=dict)
    rows: dict[bytes, StateRow] = field(default_factory=dict)

    def serve(self, driver: IntervalDriver) -> None:
        """Perform the effects for the store. Appends are acknowledged."""
        kinds = AppendEntry | WriteParts | FlushStates | ReadStates
        while any(isinstance(one, kinds) for one in driver.waiting):
            for write in driver.take(WriteParts):
                self.parts.update(write.parts)
                driver.handle(PartsWritten(write.number))
            for flush in driver.take(FlushStates):
                self.rows.update((row.key, row) for row in flush.rows)
                driver.handle(StatesFlushed(flush.number))
            for read in driver.take(ReadStates):
                driver.handle(StatesRead(read.keys, [self.rows.get(key) for key in read.keys]))
            for append in driver.take(AppendEntry):
                driver.entries.append(append.append.entry)
                driver.handle(Appended(append.append.commit))


def sealed(*, segments: bool = False) -> tuple[OpenedParent, Disk]:
    """A parent that has committed some records. Its senders have their ACKs, and none of its productions is ACKed."""
    settings, disk = IntervalSettings(checkpoint_entries=2, flush_interval=0), Disk()
    driver = IntervalDriver(Echo(), settings=settings)
    if segments:
        driver.state.dedup.segment_ids = 3
    for first in range(0, RECORDS, 2):
        opaque(driver, range(first, first + 2))
        disk.serve(driver)
        driver.now += 1
    state = driver.state
    head = JournalHead(7, state.committed, state.journal.truncation_point, state.journal.parts)
    assert any(part.name.startswith("segment/") for part in head.parts) == segments
    named = {part: b"" if part.name.startswith("segment/ids/") else disk.parts[part] for part in state.journal.parts}
    entries = driver.entries[state.journal.truncation_point :]
    return OpenedParent(Parent(PARENT, ALL_KEYS), head, named, entries), disk


def child(parent: OpenedParent, **options: Any) -> IntervalDriver:
    return IntervalDriver(Echo(), parents=[parent], **options)


def independent(driver: IntervalDriver) -> bool:
    """Whether the interval is independent of its parents. The worker reports this with its load."""
    return driver.core.independent


def ack_all(driver: IntervalDriver) -> set[str]:
    """ACK everything that was sent. Returns the sequences of the deliveries."""
    sequences = set()
    for send in driver.take(SendDelivery):
        sequences.add(send.delivery.ids.sequence)  # type: ignore[union-attr]
        driver.handle(Acknowledged(send.delivery.token))
    return sequences


@pytest.mark.guarantee("G11", section="7.1")
def test_a_child_without_work_releases_its_parents() -> None:
    parent, disk = sealed()
    driver = child(parent)
    assert not independent(driver)
    assert ack_all(driver) == {PARENT}
    disk.serve(driver)
    assert independent(driver)
    assert driver.state.journal.truncation_point >= parent.head.commit
    assert {part.name for part in driver.state.journal.parts} == {"meta", "dedup/0"}
    assert {part.sequencer for part in driver.state.journal.parts} == {7}


@pytest.mark.guarantee("G9", section="5.1")
def test_a_child_that_resends_for_its_parent_needs_its_sequence() -> None:
    parent, disk = sealed()
    driver = child(parent)
    disk.serve(driver)
    assert any(part.name.startswith("inherited/") for part in driver.state.journal.parts)
    assert not independent(driver), "a successor would send on under the parent's sequence"
    assert ack_all(driver) == {PARENT}
    assert not independent(driver), "the committed head does not know of the ACKs"
    disk.serve(driver)
    assert independent(driver)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_id_segments_are_read_from_the_parents_until_copied() -> None:
    parent, disk = sealed(segments=True)
    driver = child(parent)
    (copies,) = driver.take(CopyParts)
    ack_all(driver)
    disk.serve(driver)
    assert not driver.state.journal.parts, "no base relies on parts of another journal"
    assert {journal for journal, _, _ in copies.copies} == {PARENT}
    again = opaque(driver, range(3))
    (read,) = driver.take(ReadSegments)
    assert set(read.elsewhere.values()) == {PARENT}
    assert read.elsewhere.keys() == set(read.parts)
    for _, part, copy in copies.copies:
        disk.parts[copy] = disk.parts[part]
    driver.handle(PartsWritten(copies.number))
    disk.serve(driver)
    assert driver.state.journal.parts
    assert not independent(driver), "the parent's segment is being read"
    driver.handle(PartsRead({part: disk.parts[part] for part in read.parts}))
    assert independent(driver)
    answers = {id(one.delivery): one for one in driver.take(AnswerDelivery)}
    assert (answers[id(again)].outcome, list(answers[id(again)].indexes)) == (
        DeliveryOutcome.DELIVERY_OUTCOME_ACKED,
        [],
    )
    copied = {copy for _, _, copy in copies.copies}
    assert {part for part in driver.state.journal.parts if part.name.startswith("segment/")} == copied
    assert not driver.state.journal.foreign
    taken = {part: disk.parts[part] for part in driver.state.journal.parts}
    assert len(IntervalDriver(Echo(), parts=taken).state.journal.segments) == len(driver.state.journal.segments)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_no_base_is_written_without_the_id_segments_being_copied() -> None:
    parent, disk = sealed(segments=True)
    driver = child(parent, settings=IntervalSettings(checkpoint_entries=2, flush_interval=0))
    (copies,) = driver.take(CopyParts)
    for number in range(RECORDS, RECORDS + 8):
        opaque(driver, range(number, number + 1))
        disk.serve(driver)
    assert not driver.state.journal.parts, "a takeover would look for the parents' parts in this journal"
    disk.parts.update((copy, disk.parts[part]) for _, part, copy in copies.copies)
    driver.handle(PartsWritten(copies.number))
    disk.serve(driver)
    assert {copy for _, _, copy in copies.copies} <= set(driver.state.journal.parts)


@pytest.mark.paper(section="7.1")
def test_releasing_a_parent_precedes_new_work_if_it_is_awaited() -> None:
    parent, disk = sealed()
    driver = child(parent)
    driver.handle(PrepareRelease("who asks"))
    ahead = opaque(driver, range(RECORDS, RECORDS + 4))
    assert driver.state.intake.records == 4
    assert not driver.take(AppendEntry), "what is ahead of the watermark waits for the base"
    assert not driver.take(ReleasePrepared)
    disk.serve(driver)
    (reported,) = driver.take(ReleasePrepared)
    assert reported.request == "who asks"
    assert driver.state.counts.records == RECORDS + 4
    assert [one.delivery for one in driver.take(AnswerDelivery)] == [ahead]


@pytest.mark.paper(section="7.1")
def test_a_journal_is_made_short_while_work_goes_on() -> None:
    driver, disk = IntervalDriver(Echo()), Disk()
    for number in range(300):
        driver.deliver((f"k{number}", "v", 5))
        driver.commit_all()
        ack_all(driver)
    assert driver.state.journal.truncation_point == 0
    driver.handle(PrepareRelease("who asks"))
    driver.deliver(("k", "v", 5))
    disk.serve(driver)
    (reported,) = driver.take(ReleasePrepared)
    assert reported.entries < 10
    assert reported.commit == driver.state.committed
    entries = driver.entries[driver.state.journal.truncation_point :]
    assert len(entries) == driver.state.committed - driver.state.journal.truncation_point
    driver.handle(PrepareRelease("again"))
    assert [one.request for one in driver.take(ReleasePrepared)] == ["again"], "it is short already"


@pytest.mark.guarantee("G11", section="7.1")
def test_a_child_is_never_opened_empty() -> None:
    head = JournalHead(7, 5, 5, ())
    with pytest.raises(CorruptValueError, match="stems from other journals"):
        recover(IntervalDriver(Echo()).state, Opened(head, {}, []))


@pytest.mark.paper(section="5.1")
def test_children_share_what_the_parent_sent_by_producing_key() -> None:
    parent, _ = sealed()
    low, high = KeyInterval(b"", b"k4"), KeyInterval(b"k4", None)
    sent = []
    for keys in (low, high):
        driver = child(parent, keys=keys)
        sent.append({value for send in driver.take(SendDelivery) for value in send.delivery.values})
        assert {key for key, _ in driver.state.cells.items()} <= {
            b"k%d" % n for n in range(RECORDS) if b"k%d" % n in keys
        }
    assert sent[0] | sent[1] == {msgspec.msgpack.encode(f"v{number}") for number in range(RECORDS)}
    assert not sent[0] & sent[1]


@pytest.mark.guarantee("G3", section="6.2")
def test_only_a_refusal_of_what_is_not_acked_ends_an_owner() -> None:
    """A late copy of a record for a parent reaches a receiver that has retired the parent's sequence."""
    parent, _ = sealed()
    driver = child(parent)
    (sent,) = driver.take(SendDelivery)
    driver.handle(Refused(sent.delivery.token, "a successor is known"))
    assert [one.reason for one in driver.take(GiveUp)] == ["a successor is known"]
    driver.handle(Acknowledged(sent.delivery.token))
    driver.handle(Refused(sent.delivery.token, "the sequence is retired"))
    assert not driver.take(GiveUp)
