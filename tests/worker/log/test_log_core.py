"""The stream log's core: deliveries, takeover and watermarks (4.3, 6.1)."""

from __future__ import annotations

from array import array
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.model.limits import MAX_DELIVERED_BYTES
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.columns import RecordColumns
from millwheel.rpc.failures import FailureCode
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import CorruptValueError
from millwheel.testing.store_effects import perform_at_store, result_of
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.log import (
    AckOffset,
    DeleteCursor,
    Fetch,
    ListCursors,
    LogConfig,
    LogCore,
    LogSettings,
    Start,
)
from millwheel.worker.log.entry import LogEntry, decode
from millwheel.worker.messages import (
    AppendEntry,
    CatalogChanged,
    Delivery,
    Deposed,
    FenceJournal,
    FlushStates,
    GroupWatermarks,
    Opened,
    Started,
)
from millwheel.worker.owner import OwnerPhase
from tests.worker.log.driver import ACKED, FULL, JOURNAL, LOG, SMALL, STREAM, LogDriver, fill, numbered

# Delivery.


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_delivery_is_acked_and_shown_only_once_journaled() -> None:
    driver = LogDriver()
    tail = driver.subscribe()
    delivery = driver.deliver([b"a", b"b"])
    assert isinstance(driver.waiting[0], AppendEntry)
    assert (tail.values, driver.answers) == ([], [])
    driver.run()
    assert driver.acked(delivery)
    assert (tail.values, tail.offsets) == ([b"a", b"b"], [0, 1])


@pytest.mark.guarantee("G13", section="6.1.1")
def test_a_log_keeps_no_columns_beside_their_values() -> None:
    driver = LogDriver()
    tail = driver.subscribe()
    records = RecordColumns(pa.record_batch({"text": ["a", "b"]}), array("q", [driver.now] * 2))
    sender, ids = Sender("injector/windows/p", 1, None, "injector/windows"), PositionIds("windows/p/0", 0, range(2))
    delivery = Delivery(LOG, JOURNAL, STREAM, sender, ids, records.keys(), records, records.timestamps)
    driver.handle(delivery)
    assert (delivery.keys, isinstance(delivery.values, list)) == ([b"", b""], True)
    driver.run()
    assert list(map(msgspec.msgpack.decode, tail.values)) == [{"text": "a"}, {"text": "b"}]


@pytest.mark.guarantee("G1")
def test_arrivals_during_a_commit_make_the_next_one() -> None:
    driver = LogDriver()
    tail = driver.subscribe()
    deliveries = [driver.deliver([b"%d" % number]) for number in range(5)]
    assert driver.appends == 1
    driver.run()
    assert driver.appends == 2, "one append for the first, one for the four that came meanwhile"
    assert tail.values == [b"0", b"1", b"2", b"3", b"4"]
    assert all(driver.acked(one) for one in deliveries)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_repeated_delivery_is_acked_and_not_logged_again() -> None:
    driver = LogDriver()
    tail = driver.subscribe()
    ids = PositionIds("s", 0, [1, 2])
    driver.deliver([b"a", b"b"], ids=ids)
    driver.run()
    again = driver.deliver([b"a", b"b"], ids=ids)
    mixed = driver.deliver([b"b", b"c"], ids=PositionIds("s", 0, [2, 3]))
    driver.run()
    assert driver.acked(again)
    assert driver.acked(mixed)
    assert tail.values == [b"a", b"b", b"c"]
    counts = driver.core.state.counts
    assert (counts.records, counts.duplicates) == (3, 3)


@pytest.mark.guarantee("G1")
def test_a_copy_of_a_record_in_flight_is_refused_till_it_commits() -> None:
    driver = LogDriver()
    ids = PositionIds("s", 0, [1])
    driver.deliver([b"a"], ids=ids)
    copy = driver.deliver([b"a"], ids=ids)
    assert [(one.outcome, list(one.indexes)) for one in driver.answers] == [(FULL, [0])]
    driver.run()
    assert not driver.acked(copy)
    last = driver.deliver([b"a"], ids=ids)
    assert driver.acked(last)


@pytest.mark.guarantee("G1", section="6.2")
def test_an_older_sender_is_refused() -> None:
    driver = LogDriver()
    new = Sender("p.2", 9, ALL_KEYS, "p")
    old = Sender("p.2", 8, ALL_KEYS, "p")
    driver.deliver([b"a"], ids=PositionIds("p.2", 0, [1]), sender=new)
    driver.deliver([b"b"], ids=PositionIds("p.2", 0, [2]), sender=old)
    assert driver.answers[-1].outcome == DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER


def test_malformed_deliveries_are_named_and_never_taken() -> None:
    driver = LogDriver()
    sender = Sender("i", 1, None, "injector/windows")
    unequal = Delivery(IncarnationId("l"), "j", STREAM, sender, PositionIds("s", 0, [1]), [b""], [b"a"], [1, 2])
    other = Delivery(IncarnationId("l"), "j", "other", sender, PositionIds("s", 0, [1]), [b""], [b"a"], [1])
    large = Delivery(
        IncarnationId("l"),
        "j",
        STREAM,
        sender,
        PositionIds("s", 0, [1]),
        [b""],
        [b"a" * (MAX_DELIVERED_BYTES + 1)],
        [1],
    )
    for delivery in (unequal, other, large):
        driver.handle(delivery)
    invalid = DeliveryOutcome.DELIVERY_OUTCOME_INVALID
    assert [one.outcome for one in driver.answers] == [invalid] * 3
    assert "unequal" in driver.answers[0].message
    assert STREAM in driver.answers[1].message
    assert f"{MAX_DELIVERED_BYTES + 1:,} bytes" in driver.answers[2].message
    assert driver.waiting == []


def test_a_delivery_larger_than_a_commit_is_acked_when_all_is_in() -> None:
    driver = LogDriver(SMALL)
    tail = driver.subscribe()
    values = numbered(0, 40)
    delivery = driver.deliver(values)
    driver.step()
    assert not driver.acked(delivery)
    assert 0 < len(tail.values) < 40
    driver.run()
    assert driver.acked(delivery)
    assert tail.values == values
    assert driver.appends > 3


def test_a_commit_and_a_segment_stay_within_their_bytes() -> None:
    driver = LogDriver(SMALL)
    driver.deliver([b"first"])
    for number in range(20):
        driver.deliver(numbered(number * 10, 10))
    while driver.waiting:
        if isinstance(driver.waiting[0], AppendEntry):
            entry = decode(driver.waiting[0].append.entry, LogEntry, "here")
            assert sum(map(len, entry.values)) <= SMALL.batch_bytes
        driver.step()
    assert all(segment.size <= SMALL.segment_bytes for segment in driver.core.state.records.closed)


# Takeover.


@pytest.mark.guarantee("G1")
def test_a_takeover_finds_what_was_committed_and_never_acked() -> None:
    driver = LogDriver()
    first = driver.subscribe()
    delivery = driver.deliver([b"a", b"b"])
    driver.crash(applied=True)
    assert not driver.acked(delivery)
    again = driver.deliver(delivery.values, ids=delivery.ids)
    driver.run()
    assert driver.acked(again)
    assert first.values == []
    assert driver.subscribe(resume=0).values == [b"a", b"b"]


@pytest.mark.guarantee("G1")
def test_what_a_crash_left_uncommitted_is_taken_when_sent_again() -> None:
    driver = LogDriver()
    delivery = driver.deliver([b"a", b"b"])
    driver.crash(applied=False)
    driver.deliver(delivery.values, ids=delivery.ids)
    driver.run()
    assert driver.subscribe(resume=0).values == [b"a", b"b"]


@pytest.mark.guarantee("G3")
def test_a_lost_log_answers_nothing_and_ends_its_subscribers() -> None:
    driver = LogDriver()
    tail = driver.subscribe()
    delivery = driver.deliver([b"a"])
    driver.subscribe("c")
    driver.handle(DeleteCursor("somebody", "c"))
    driver.handle(Deposed("a successor holds the journal"))
    driver.run()
    assert driver.answers == []
    assert not driver.acked(delivery)
    assert tail.error is not None
    assert tail.error.code is FailureCode.UNAVAILABLE
    assert driver.replies[-1].error is not None
    assert driver.core.next_deadline() is None
    late = driver.subscribe()
    assert late.error is not None
    driver.handle(ListCursors("somebody"))
    assert driver.replies[-1].error is not None


def test_a_takeover_refuses_a_journal_with_a_hole() -> None:
    driver = LogDriver()
    fill(driver, 0, 3)
    journal = driver.stored
    journal.entries[2] = journal.entries[3]
    with pytest.raises(CorruptValueError, match="entry 2: it begins at offset 2, and the log ends at 1"):
        driver.open()


def test_a_takeover_refuses_a_journal_without_its_last_entries() -> None:
    """The present entries have no gap. Only the head shows that there were more."""
    driver = LogDriver()
    fill(driver, 0, 3)
    opened = perform_at_store(driver.store, FenceJournal(JOURNAL, 2))
    assert isinstance(opened, Opened)
    core = LogCore(LogConfig(STREAM, LOG, JOURNAL, 2, driver.groups))
    core.step(Started(), driver.now)
    with pytest.raises(CorruptValueError, match="entries 1 to 3 are needed and 2 were found"):
        core.step(Opened(opened.head, opened.parts, opened.entries[:-1]), driver.now)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_what_a_full_log_refuses_is_fresh_when_sent_again() -> None:
    """An unordered sender is admitted only with records that hold the watermark."""
    driver = LogDriver(SMALL)
    reader = driver.subscribe("c")
    driver.run()
    count = 0
    while driver.core.state.records.kept < SMALL.cap_bytes:
        fill(driver, count, 1)
        count += 1
    watermark = driver.core.state.inputs.value
    ids = PositionIds("windows/p/0", 0, range(count, count + 2))
    values, times = [b"holds", b"ahead"], [watermark, driver.now + 1]
    first = driver.deliver(values, times, ids)
    driver.run()
    assert [(one.outcome, list(one.indexes)) for one in driver.answers if one.delivery is first] == [
        (FULL, [1]),
        (ACKED, [1]),
    ]
    driver.handle(AckOffset(reader, driver.core.state.records.end))
    driver.pass_time(60_000)
    driver.run()
    second = driver.deliver(values, times, ids)
    driver.run()
    assert driver.acked(second)
    assert reader.values[count:] == values


@pytest.mark.paper(section="6.2")
def test_the_truncation_point_moves_and_a_takeover_reads_little() -> None:
    driver = LogDriver(SMALL)
    values = fill(driver, 0, 12)
    journal = driver.stored
    assert journal.head.truncation_point > 0
    assert min(journal.entries) == journal.head.truncation_point + 1
    assert set(journal.parts) == set(journal.head.parts)
    driver.open()
    tail = driver.subscribe(resume=0)
    driver.run()
    assert tail.values == values


@pytest.mark.guarantee("G12", section="6.1.2")
def test_the_truncation_point_waits_for_the_rows() -> None:
    driver = LogDriver(replace(SMALL, cap_bytes=1 << 20))
    values = numbered(0, 30, 100)
    for value in values:
        driver.deliver([value])
        driver.run_but(FlushStates)
    assert any(isinstance(job, FlushStates) for job in driver.waiting)
    driver.crash(applied=False)
    tail = driver.subscribe(resume=0)
    driver.run()
    assert tail.values == values


@pytest.mark.guarantee("G12")
def test_the_truncation_point_waits_for_dropped_rows() -> None:
    driver = LogDriver(SMALL)
    reader = driver.subscribe("c")
    driver.run()
    fill(driver, 0, 12)
    assert driver.rows()
    driver.handle(AckOffset(reader, 12))
    driver.pass_time(60_000)
    for number in range(12):
        driver.subscribe(f"later {number}", Start.NOW)
        driver.run_but(FlushStates)
    driver.crash(applied=False)
    fill(driver, 12, 12)
    assert driver.rows() <= {segment.first for segment in driver.core.state.records.closed}


# Watermarks.


@pytest.mark.guarantee("G7", section="4.5")
def test_the_watermark_follows_senders_and_uncommitted_holds() -> None:
    driver = LogDriver(groups=frozenset({"a", "b"}))
    tail = driver.subscribe()
    driver.handle(GroupWatermarks({"a": 50}))
    driver.handle(GroupWatermarks({"b": 30}))
    driver.tell()
    assert (tail.published[-1].watermark, driver.reports[-1].output) == (30, 30)
    driver.deliver([b"x"], [40])
    driver.handle(GroupWatermarks({"b": 60}))
    assert (tail.published[-1].watermark, driver.reports[-1].output) == (30, 40)
    driver.run()
    driver.tell()
    assert (tail.published[-1].watermark, driver.reports[-1].output) == (50, 50)
    assert tail.published[-1].next == 1


@pytest.mark.guarantee("G7", section="4.5")
def test_a_slow_reader_gets_no_watermark_beyond_what_it_has_read() -> None:
    driver = LogDriver()
    slow = driver.subscribe(credit=0)
    for number in range(6):
        driver.deliver([b"%d" % number], [number * 10])
        driver.run()
        driver.handle(GroupWatermarks({"injector/windows": number * 10 + 5}))
    driver.handle(GroupWatermarks({"injector/windows": MAX_TIMESTAMP}))
    driver.tell()
    driver.core.state.settings = LogSettings(publish_records=2)
    for _ in range(4):
        driver.handle(Fetch(slow))
    reported = [(one.next, one.watermark) for one in slow.published]
    assert reported == [(2, 15), (4, 35), (6, MAX_TIMESTAMP)], "the last response had nothing to add"


@pytest.mark.guarantee("G7", section="4.5")
def test_a_queued_record_bounds_the_watermark_of_its_commit() -> None:
    driver = LogDriver(LogSettings(publish_records=1))
    slow = driver.subscribe(credit=0)
    driver.deliver([b"a"], [10])
    driver.deliver([b"b"], [40])
    driver.handle(GroupWatermarks({"injector/windows": 60}))
    driver.run()
    driver.tell()
    driver.handle(Fetch(slow, 2))
    assert [(one.next, one.watermark) for one in slow.published] == [(1, 40), (2, 60)]


def test_a_finished_stream_is_reported_only_when_nothing_is_left() -> None:
    driver = LogDriver()
    slow = driver.subscribe(credit=0)
    driver.handle(GroupWatermarks({"injector/windows": MAX_TIMESTAMP}))
    driver.core.state.settings = LogSettings(publish_records=1)
    driver.deliver([b"late", b"later"], [1, 2])
    driver.run()
    driver.handle(Fetch(slow, 2))
    assert [one.watermark == MAX_TIMESTAMP for one in slow.published] == [False, True]
    assert driver.core.state.counts.late == 2


@pytest.mark.guarantee("G7", section="6.2")
def test_watermarks_do_not_go_back_over_a_takeover() -> None:
    driver = LogDriver()
    driver.handle(GroupWatermarks({"injector/windows": 70}))
    driver.deliver([b"a"], [90])
    driver.run()
    driver.handle(GroupWatermarks({"injector/windows": 80}))
    driver.crash(applied=True)
    tail = driver.subscribe()
    driver.tell()
    assert [one.watermark for one in tail.published] == [70, 80]


@pytest.mark.guarantee("G8")
def test_an_owner_whose_clock_was_ahead_delays_nothing_after_it() -> None:
    """Regression: entries had the time of the wrong clock.

    The next owner waited an hour for its own clock, with ACKs and with the end of the stream.
    """
    driver = LogDriver()
    driver.now += 3_600_000_000
    driver.deliver([b"a"], [10])
    driver.run()
    driver.now -= 3_600_000_000
    driver.crash(applied=True)
    tail = driver.subscribe("cursor")
    driver.run()
    driver.handle(GroupWatermarks({"injector/windows": MAX_TIMESTAMP}))
    driver.tell()
    assert tail.published[-1].watermark == MAX_TIMESTAMP
    driver.handle(AckOffset(tail, 1))
    driver.pass_time(driver.settings.ack_delay)
    driver.run()
    assert tail.published[-1].acked == 1


@pytest.mark.guarantee("G7", section="6.2")
def test_a_deposed_owner_publishes_no_watermark_it_receives() -> None:
    """Regression: the records of its successor released the watermark, up to the end of the stream.

    The deposed owner does not know these records. Its subscribers took the stream for complete, and stopped too early.
    """
    driver = LogDriver()
    tail = driver.subscribe()
    driver.deliver([b"a"], [10])
    driver.run()
    result_of(driver.store.fence(JOURNAL, driver.sequencer + 1))
    driver.handle(GroupWatermarks({"injector/windows": MAX_TIMESTAMP}))
    driver.tell()
    assert driver.core.phase is OwnerPhase.LOST
    assert all(one.watermark < 10 for one in tail.published)


@pytest.mark.guarantee("G8")
def test_removed_senders_hold_nothing_and_new_ones_count() -> None:
    driver = LogDriver(groups=frozenset({"a", "b"}))
    driver.handle(GroupWatermarks({"a": 50}))
    driver.handle(CatalogChanged(frozenset({"a"})))
    assert driver.reports[-1].output == 50
    driver.handle(CatalogChanged(frozenset({"a", "c"})))
    driver.handle(GroupWatermarks({"a": 90}))
    assert driver.reports[-1].output == 50
    assert driver.core.state.inputs.holding() == ["c"]
