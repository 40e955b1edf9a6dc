"""The stream log's core, mechanism by mechanism (4.3, 6.1; design §9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millwheel.core.keys import ALL_KEYS
from millwheel.core.time import MAX_TIMESTAMP
from millwheel.rpc.failures import FailureCode
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import CorruptValueError
from millwheel.worker.dedup import OpaqueIds, PositionIds, Sender
from millwheel.worker.log import (
    AckOffset,
    CursorInfo,
    DeleteCursor,
    Fetch,
    ListCursors,
    LogRetention,
    LogSettings,
    Start,
    Subscribe,
    Unsubscribe,
)
from millwheel.worker.log.entry import LogEntry, decode
from millwheel.worker.messages import (
    AppendEntry,
    CatalogChanged,
    Delivery,
    FlushStates,
    ReadStates,
    SenderWatermarks,
    StatesRead,
)
from tests.log.driver import ACKED, FULL, STREAM, LogDriver, Reader

SMALL = LogSettings(
    batch_bytes=400,
    segment_bytes=200,
    queue_bytes=2_000,
    memory_bytes=4_000,
    cap_bytes=1_600,
    checkpoint_entries=4,
    checkpoint_bytes=10_000,
    flush_bytes=600,
    publish_records=4,
    publish_bytes=200,
)


def numbered(first: int, count: int, size: int = 20) -> list[bytes]:
    return [b"%d" % number + b"." * (size - len(b"%d" % number)) for number in range(first, first + count)]


def fill(driver: LogDriver, first: int, count: int, size: int = 100) -> list[bytes]:
    """Deliver records one by one, each committed before the next."""
    values = numbered(first, count, size)
    for value in values:
        driver.deliver([value])
        driver.settle()
    return values


# Delivery.


def test_g1_a_delivery_is_acked_and_shown_only_when_its_entry_is_in_the_journal_6_1_1() -> None:
    driver = LogDriver()
    tail = driver.subscribe()
    delivery = driver.deliver([b"a", b"b"])
    assert isinstance(driver.jobs[0], AppendEntry)
    assert (tail.values, driver.answers) == ([], [])
    driver.settle()
    assert driver.acked(delivery)
    assert (tail.values, tail.offsets) == ([b"a", b"b"], [0, 1])


def test_g1_what_arrives_while_a_commit_is_in_flight_makes_the_next_one() -> None:
    driver = LogDriver()
    tail = driver.subscribe()
    deliveries = [driver.deliver([b"%d" % number]) for number in range(5)]
    assert driver.appends == 1
    driver.settle()
    assert driver.appends == 2, "one append for the first, one for the four that came meanwhile"
    assert tail.values == [b"0", b"1", b"2", b"3", b"4"]
    assert all(driver.acked(one) for one in deliveries)


def test_g1_a_repeated_delivery_is_acked_and_not_logged_again_6_1_1() -> None:
    driver = LogDriver()
    tail = driver.subscribe()
    ids = PositionIds("s", 0, [1, 2])
    driver.deliver([b"a", b"b"], ids=ids)
    driver.settle()
    again = driver.deliver([b"a", b"b"], ids=ids)
    mixed = driver.deliver([b"b", b"c"], ids=PositionIds("s", 0, [2, 3]))
    driver.settle()
    assert driver.acked(again)
    assert driver.acked(mixed)
    assert tail.values == [b"a", b"b", b"c"]
    counts = driver.core.state.counts
    assert (counts.records, counts.duplicates) == (3, 3)


def test_g1_a_copy_of_a_record_in_flight_is_refused_until_the_first_is_committed() -> None:
    driver = LogDriver()
    ids = PositionIds("s", 0, [1])
    driver.deliver([b"a"], ids=ids)
    copy = driver.deliver([b"a"], ids=ids)
    assert [(one.outcome, list(one.remaining)) for one in driver.answers] == [(FULL, [0]), (ACKED, [0])]
    driver.settle()
    assert not driver.acked(copy)
    last = driver.deliver([b"a"], ids=ids)
    assert driver.acked(last)


def test_g1_an_older_sender_is_refused_6_2() -> None:
    driver = LogDriver()
    new = Sender("p.2", 9, ALL_KEYS, "p")
    old = Sender("p.2", 8, ALL_KEYS, "p")
    driver.deliver([b"a"], ids=PositionIds("p.2", 0, [1]), sender=new)
    driver.deliver([b"b"], ids=PositionIds("p.2", 0, [2]), sender=old)
    assert driver.answers[-1].outcome == DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER


def test_malformed_deliveries_are_named_and_never_taken() -> None:
    driver = LogDriver()
    sender = Sender("i", 1, None, "injector/windows")
    unequal = Delivery("l", "j", STREAM, sender, PositionIds("s", 0, [1]), [b""], [b"a"], [1, 2])
    other = Delivery("l", "j", "other", sender, PositionIds("s", 0, [1]), [b""], [b"a"], [1])
    large = Delivery("l", "j", STREAM, sender, PositionIds("s", 0, [1]), [b""], [b"a" * 1_048_577], [1])
    for delivery in (unequal, other, large):
        driver.handle(delivery)
    invalid = DeliveryOutcome.DELIVERY_OUTCOME_INVALID
    assert [one.outcome for one in driver.answers] == [invalid] * 3
    assert "unequal" in driver.answers[0].message
    assert STREAM in driver.answers[1].message
    assert "1,048,577 bytes" in driver.answers[2].message
    assert driver.jobs == []


def test_a_delivery_larger_than_a_commit_is_acked_when_all_of_it_is_committed() -> None:
    driver = LogDriver(SMALL)
    tail = driver.subscribe()
    values = numbered(0, 40)
    delivery = driver.deliver(values)
    driver.step()
    assert not driver.acked(delivery)
    assert 0 < len(tail.values) < 40
    driver.settle()
    assert driver.acked(delivery)
    assert tail.values == values
    assert driver.appends > 3


def test_a_commit_stays_within_its_bytes_and_a_segment_within_its_own() -> None:
    driver = LogDriver(SMALL)
    driver.deliver([b"first"])
    for number in range(20):
        driver.deliver(numbered(number * 10, 10))
    while driver.jobs:
        if isinstance(driver.jobs[0], AppendEntry):
            entry = decode(driver.jobs[0].append.entry, LogEntry, "here")
            assert sum(map(len, entry.values)) <= SMALL.batch_bytes
        driver.step()
    assert all(segment.size <= SMALL.segment_bytes for segment in driver.core.state.records.closed)


# Takeover.


def test_g1_a_takeover_finds_what_was_committed_and_never_acked() -> None:
    driver = LogDriver()
    first = driver.subscribe()
    delivery = driver.deliver([b"a", b"b"])
    driver.crash(applied=True)
    assert not driver.acked(delivery)
    again = driver.deliver(delivery.values, ids=delivery.ids)
    driver.settle()
    assert driver.acked(again)
    assert first.values == []
    assert driver.subscribe(resume=0).values == [b"a", b"b"]


def test_g1_what_was_not_committed_before_a_crash_is_taken_when_it_is_sent_again() -> None:
    driver = LogDriver()
    delivery = driver.deliver([b"a", b"b"])
    driver.crash(applied=False)
    driver.deliver(delivery.values, ids=delivery.ids)
    driver.settle()
    assert driver.subscribe(resume=0).values == [b"a", b"b"]


def test_g3_a_lost_log_answers_nothing_and_ends_its_subscribers() -> None:
    driver = LogDriver()
    tail = driver.subscribe()
    delivery = driver.deliver([b"a"])
    driver.subscribe("c")
    driver.handle(DeleteCursor("somebody", "c"))
    driver.depose()
    driver.settle()
    assert driver.answers == []
    assert not driver.acked(delivery)
    assert tail.error is not None
    assert tail.error.code is FailureCode.UNAVAILABLE
    assert driver.replies[-1].error is not None
    assert driver.core.next_alarm() is None
    late = driver.subscribe()
    assert late.error is not None
    driver.handle(ListCursors("somebody"))
    assert driver.replies[-1].error is not None


def test_a_takeover_refuses_a_journal_with_a_hole() -> None:
    driver = LogDriver()
    fill(driver, 0, 3)
    journal = driver.store._journals["log.windows.1.j1"]
    journal.entries[2] = journal.entries[3]
    with pytest.raises(CorruptValueError, match="entry 2: it begins at offset 2, and the log ends at 1"):
        driver.open()


def test_the_floor_moves_and_a_takeover_reads_little_6_2() -> None:
    driver = LogDriver(SMALL)
    values = fill(driver, 0, 12)
    journal = driver.store._journals["log.windows.1.j1"]
    assert journal.head.floor > 0
    assert min(journal.entries) == journal.head.floor + 1
    assert set(journal.parts) == set(journal.head.parts)
    driver.open()
    tail = driver.subscribe(resume=0)
    driver.settle()
    assert tail.values == values


def test_g12_the_floor_waits_for_the_rows_6_1_2() -> None:
    driver = LogDriver(replace(SMALL, cap_bytes=1 << 20))
    values = numbered(0, 30, 100)
    for value in values:
        driver.deliver([value])
        driver.settle_but(FlushStates)
    assert any(isinstance(job, FlushStates) for job in driver.jobs)
    driver.crash(applied=False)
    tail = driver.subscribe(resume=0)
    driver.settle()
    assert tail.values == values


def test_g12_the_floor_waits_for_dropped_rows_to_be_emptied() -> None:
    driver = LogDriver(SMALL)
    reader = driver.subscribe("c")
    driver.settle()
    fill(driver, 0, 12)
    assert driver.rows()
    driver.handle(AckOffset(reader, 12))
    driver.pass_time(60_000)
    for number in range(12):
        driver.subscribe(f"later {number}", Start.NOW)
        driver.settle_but(FlushStates)
    driver.crash(applied=False)
    fill(driver, 12, 12)
    assert driver.rows() <= {segment.first for segment in driver.core.state.records.closed}


# Watermarks.


def test_g7_the_watermark_follows_the_senders_and_is_held_by_what_is_not_committed_4_5() -> None:
    driver = LogDriver(senders=frozenset({"a", "b"}))
    tail = driver.subscribe()
    driver.handle(SenderWatermarks({"a": 50}))
    driver.handle(SenderWatermarks({"b": 30}))
    assert (tail.published[-1].watermark, driver.reports[-1].output) == (30, 30)
    driver.deliver([b"x"], [40])
    driver.handle(SenderWatermarks({"b": 60}))
    assert (tail.published[-1].watermark, driver.reports[-1].output) == (40, 40)
    driver.settle()
    assert (tail.published[-1].watermark, driver.reports[-1].output) == (50, 50)
    assert tail.published[-1].next == 1


def test_g7_who_is_behind_is_told_no_watermark_beyond_what_is_left_to_read_4_5() -> None:
    driver = LogDriver()
    slow = driver.subscribe(credit=0)
    for number in range(6):
        driver.deliver([b"%d" % number], [number * 10])
        driver.settle()
        driver.handle(SenderWatermarks({"injector/windows": number * 10 + 5}))
    driver.handle(SenderWatermarks({"injector/windows": MAX_TIMESTAMP}))
    driver.core.state.settings = LogSettings(publish_records=2)
    for _ in range(4):
        driver.handle(Fetch(slow))
    told = [(one.next, one.watermark) for one in slow.published]
    assert told == [(2, 15), (4, 35), (6, MAX_TIMESTAMP)], "the last response had nothing to add"


def test_g7_a_record_in_line_bounds_what_is_told_about_its_commit_4_5() -> None:
    driver = LogDriver(LogSettings(publish_records=1))
    slow = driver.subscribe(credit=0)
    driver.deliver([b"a"], [10])
    driver.deliver([b"b"], [40])
    driver.handle(SenderWatermarks({"injector/windows": 60}))
    driver.settle()
    driver.handle(Fetch(slow, 2))
    assert [(one.next, one.watermark) for one in slow.published] == [(1, 40), (2, 60)]


def test_a_finished_stream_is_told_only_when_nothing_is_left() -> None:
    driver = LogDriver()
    slow = driver.subscribe(credit=0)
    driver.handle(SenderWatermarks({"injector/windows": MAX_TIMESTAMP}))
    driver.core.state.settings = LogSettings(publish_records=1)
    driver.deliver([b"late", b"later"], [1, 2])
    driver.settle()
    driver.handle(Fetch(slow, 2))
    assert [one.watermark == MAX_TIMESTAMP for one in slow.published] == [False, True]
    assert driver.core.state.counts.late == 2


def test_g7_watermarks_do_not_go_back_over_a_takeover_6_2() -> None:
    driver = LogDriver()
    driver.handle(SenderWatermarks({"injector/windows": 70}))
    driver.deliver([b"a"], [90])
    driver.settle()
    driver.handle(SenderWatermarks({"injector/windows": 80}))
    driver.crash(applied=True)
    assert driver.subscribe().published[-1].watermark == 80


def test_g8_senders_that_leave_hold_nothing_and_those_that_join_count() -> None:
    driver = LogDriver(senders=frozenset({"a", "b"}))
    driver.handle(SenderWatermarks({"a": 50}))
    driver.handle(CatalogChanged(frozenset({"a"})))
    assert driver.reports[-1].output == 50
    driver.handle(CatalogChanged(frozenset({"a", "c"})))
    driver.handle(SenderWatermarks({"a": 90}))
    assert driver.reports[-1].output == 50
    assert driver.core.state.inputs.holding() == ["c"]


# Subscribers.


def test_a_cursor_is_told_nothing_before_it_is_durable() -> None:
    driver = LogDriver()
    fill(driver, 0, 1)
    reader = driver.subscribe("c")
    assert reader.published == []
    driver.settle()
    assert reader.offsets == [0]


def test_cursors_begin_at_the_oldest_record_or_now() -> None:
    driver = LogDriver()
    fill(driver, 0, 3)
    oldest, now = driver.subscribe("old"), driver.subscribe("new", Start.NOW)
    driver.settle()
    fill(driver, 3, 1)
    assert oldest.offsets == [0, 1, 2, 3]
    assert now.offsets == [3]


def test_an_acked_record_is_not_delivered_again_whoever_asks() -> None:
    driver = LogDriver()
    fill(driver, 0, 4)
    first = driver.subscribe("c")
    driver.settle()
    driver.handle(AckOffset(first, 3))
    second = driver.subscribe("c")
    assert second.offsets == [3]
    driver.pass_time(60_000)
    driver.settle()
    assert second.published[-1].acked == 3
    driver.crash(applied=True)
    third = driver.subscribe("c")
    assert third.offsets == [3]


def test_the_newest_subscriber_of_a_cursor_takes_over_and_the_older_one_is_told() -> None:
    driver = LogDriver()
    first = driver.subscribe("c")
    second = driver.subscribe("c")
    assert first.error is not None
    assert (first.error.code, first.error.reason) == (FailureCode.ABORTED, "CURSOR_TAKEN_OVER")
    assert "'c'" in first.error.message
    driver.handle(AckOffset(first, 0))
    driver.handle(Unsubscribe(first))
    driver.settle()
    fill(driver, 0, 1)
    assert (first.offsets, second.offsets) == ([], [0])


def test_an_ack_waits_for_records_and_goes_alone_after_its_delay() -> None:
    driver = LogDriver()
    reader = driver.subscribe("c")
    driver.settle()
    fill(driver, 0, 4)
    before = driver.appends
    driver.handle(AckOffset(reader, 1))
    assert driver.appends == before
    fill(driver, 4, 1)
    assert driver.appends == before + 1, "the ACK went with the record"
    assert driver.core.state.cursors.durable == {"c": 1}
    driver.handle(AckOffset(reader, 2))
    driver.pass_time(49_000)
    assert driver.appends == before + 1
    driver.pass_time(1_000)
    assert driver.appends == before + 2
    driver.settle()
    assert driver.core.state.cursors.durable == {"c": 2}


def test_g13_no_more_than_the_window_is_sent_beyond_the_last_ack() -> None:
    driver = LogDriver()
    reader = driver.subscribe("c", window=3)
    driver.settle()
    fill(driver, 0, 10)
    assert reader.offsets == [0, 1, 2]
    driver.handle(AckOffset(reader, 2))
    assert reader.offsets == [0, 1, 2, 3, 4]


def test_g13_nothing_is_sent_without_a_fetch() -> None:
    driver = LogDriver()
    reader = driver.subscribe(credit=0)
    fill(driver, 0, 3)
    assert reader.published == []
    driver.handle(Fetch(reader, 1))
    assert len(reader.published) == 1
    fill(driver, 3, 2)
    assert len(reader.published) == 1


def test_a_response_is_bounded_in_records_and_bytes() -> None:
    driver = LogDriver(LogSettings(publish_records=10, publish_bytes=100))
    tail = driver.subscribe()
    values = [*numbered(0, 25, 4), b"x" * 150, b"y" * 60, b"z" * 60]
    driver.deliver(values)
    driver.settle()
    assert [len(one.values) for one in tail.published if one.values] == [10, 10, 5, 1, 1, 1]
    assert tail.values == values


def test_an_ack_beyond_the_end_and_a_resumption_beyond_it_are_refused_by_name() -> None:
    driver = LogDriver()
    reader = driver.subscribe("c")
    driver.settle()
    driver.handle(AckOffset(reader, 1))
    assert reader.error is not None
    assert reader.error.code is FailureCode.OUT_OF_RANGE
    resumed = driver.subscribe(resume=5)
    assert resumed.error is not None
    assert "ends at 0" in resumed.error.message


def test_a_tail_reads_from_now_on_and_goes_on_where_it_was_after_a_crash() -> None:
    driver = LogDriver()
    fill(driver, 0, 2)
    tail = driver.subscribe()
    fill(driver, 2, 2)
    driver.crash(applied=True)
    fill(driver, 4, 2)
    resumed = driver.subscribe(resume=4)
    fill(driver, 6, 1)
    assert (tail.offsets, resumed.offsets) == ([2, 3], [4, 5, 6])


def test_a_tail_can_begin_with_the_oldest_record_kept() -> None:
    driver = LogDriver(SMALL, LogRetention(max_bytes=500))
    values = fill(driver, 0, 20)
    tail = driver.subscribe(start=Start.OLDEST)
    driver.settle()
    start = driver.core.state.records.start
    assert (tail.offsets, tail.values) == (list(range(start, 20)), values[start:])


def test_cursors_are_listed_with_what_they_have_acked() -> None:
    driver = LogDriver()
    fill(driver, 0, 3)
    driver.subscribe("b")
    reader = driver.subscribe("a")
    driver.settle()
    driver.handle(AckOffset(reader, 2))
    driver.pass_time(60_000)
    driver.settle()
    driver.handle(ListCursors("asker"))
    assert driver.replies[-1].cursors == [CursorInfo("a", 2, 3), CursorInfo("b", 0, 3)]


def test_a_deleted_cursor_is_gone_for_good_and_its_subscriber_is_told() -> None:
    driver = LogDriver()
    reader = driver.subscribe("c")
    driver.settle()
    driver.handle(DeleteCursor("asker", "c"))
    assert driver.replies == []
    assert reader.error is not None
    assert reader.error.reason == "CURSOR_DELETED"
    driver.settle()
    assert driver.replies[-1].error is None
    driver.crash(applied=True)
    assert driver.core.state.cursors.durable == {}
    driver.handle(DeleteCursor("asker", "c"))
    last = driver.replies.pop()
    assert last.error is not None
    assert last.error.code is FailureCode.NOT_FOUND


def test_a_cursor_deleted_and_created_again_at_once_begins_anew() -> None:
    driver = LogDriver()
    fill(driver, 0, 2)
    reader = driver.subscribe("c")
    driver.settle()
    driver.handle(AckOffset(reader, 2))
    driver.pass_time(60_000)
    driver.settle()
    driver.handle(DeleteCursor("asker", "c"))
    again = driver.subscribe("c")
    driver.settle()
    assert again.offsets == [0, 1]
    assert driver.core.state.cursors.durable == {"c": 0}


# What is kept.


def test_records_that_every_cursor_has_acked_go_by_the_segment() -> None:
    driver = LogDriver(SMALL)
    fast, slow = driver.subscribe("fast"), driver.subscribe("slow")
    driver.settle()
    fill(driver, 0, 8)
    driver.handle(AckOffset(fast, 8))
    driver.handle(AckOffset(slow, 2))
    driver.pass_time(60_000)
    driver.settle()
    assert driver.core.state.records.start == 2
    driver.handle(AckOffset(slow, 7))
    driver.pass_time(60_000)
    driver.settle()
    assert driver.core.state.records.start == 7
    driver.open()
    assert driver.core.state.records.start == 7


def test_without_cursors_records_go_by_age_also_when_nothing_else_happens() -> None:
    driver = LogDriver(retention=LogRetention(max_age=8_000_000))
    fill(driver, 0, 3)
    driver.pass_time(7_000_000)
    driver.settle()
    assert driver.core.state.records.start == 0
    driver.pass_time(1_100_000)
    driver.settle()
    assert driver.core.state.records.start == 3
    assert driver.core.next_alarm() is None


def test_without_cursors_records_go_by_bytes() -> None:
    driver = LogDriver(SMALL, LogRetention(max_bytes=500))
    fill(driver, 0, 30)
    records = driver.core.state.records
    assert 500 - 2 * SMALL.segment_bytes <= records.kept <= 500 + SMALL.segment_bytes
    assert records.start > 20


def test_with_a_cursor_retention_waits_for_its_ack() -> None:
    driver = LogDriver(SMALL, LogRetention(max_age=1_000_000, max_bytes=300))
    reader = driver.subscribe("c")
    driver.settle()
    fill(driver, 0, 8)
    driver.pass_time(10_000_000)
    driver.settle()
    assert driver.core.state.records.start == 0
    driver.handle(DeleteCursor("asker", "c"))
    driver.settle()
    driver.pass_time(1)
    driver.settle()
    assert reader.offsets == list(range(8))
    assert driver.core.state.records.start == 8


def test_g13_beyond_the_cap_intake_is_refused_and_the_slowest_cursor_named() -> None:
    driver = LogDriver(SMALL)
    fast, slow = driver.subscribe("fast"), driver.subscribe("slow")
    driver.settle()
    driver.handle(SenderWatermarks({"injector/windows": 10}))
    sent = 0
    while driver.core.state.records.kept < SMALL.cap_bytes:
        fill(driver, sent, 1)
        sent += 1
    driver.handle(AckOffset(fast, sent))
    driver.pass_time(60_000)
    driver.settle()
    refused = driver.deliver([b"ahead", b"held"], [20, 10])
    full = driver.answers[-1]
    assert (full.delivery is refused, full.outcome, list(full.remaining)) == (True, FULL, [0])
    assert "'slow', at offset 0" in full.message
    assert "cursors delete windows slow" in full.message
    driver.settle()
    assert slow.values[-1] == b"held", "what holds the watermark back is taken"
    driver.handle(AckOffset(slow, sent))
    driver.pass_time(60_000)
    driver.settle()
    again = driver.deliver(refused.values, refused.timestamps, ids=refused.ids)
    driver.settle()
    assert driver.acked(again)
    assert slow.values[-1] == b"ahead"


def test_g13_a_quarter_beyond_the_cap_nothing_is_taken() -> None:
    driver = LogDriver(SMALL)
    driver.subscribe("slow")
    driver.settle()
    driver.handle(SenderWatermarks({"injector/windows": 10}))
    taken = 0
    for number in range(100):
        taken += driver.acked(_delivered(driver, b"%d" % number + b"." * 90, 5))
    assert driver.core.state.records.kept <= SMALL.cap_bytes * 5 // 4 + 200
    assert 0 < taken < 100


def _delivered(driver: LogDriver, value: bytes, timestamp: int) -> Delivery:
    delivery = driver.deliver([value], [timestamp])
    driver.settle()
    return delivery


def test_g13_intake_is_bounded_while_the_journal_is_slow() -> None:
    driver = LogDriver(SMALL)
    driver.handle(SenderWatermarks({"injector/windows": 10}))
    for number in range(200):
        driver.deliver([b"." * 90], [20 + number])
    assert driver.core.state.intake.bytes <= SMALL.queue_bytes + 2 * 106
    assert any(one.outcome == FULL for one in driver.answers)
    late = driver.deliver([b"late"], [3])
    driver.settle()
    assert driver.acked(late)


def test_a_settings_mistake_is_named() -> None:
    with pytest.raises(ValueError, match="cap_bytes 100 is below four segments"):
        LogSettings(cap_bytes=100)


# Behind the journal.


def test_g13_old_segments_leave_memory_and_are_read_back_for_who_needs_them() -> None:
    settings = LogSettings(
        segment_bytes=1_000, memory_bytes=8_000, cap_bytes=1 << 20, checkpoint_entries=10, publish_records=7
    )
    driver = LogDriver(settings)
    values = fill(driver, 0, 200)
    records = driver.core.state.records
    assert records.memory <= settings.memory_bytes + records.open.memory
    reader = driver.subscribe("c")
    driver.settle()
    assert reader.values == values
    assert records.memory <= settings.memory_bytes + records.open.memory


def test_the_segment_used_longest_ago_leaves_memory_first() -> None:
    driver = LogDriver(LogSettings(segment_bytes=150, cap_bytes=1 << 20, checkpoint_entries=3))
    fill(driver, 0, 20)
    records = driver.core.state.records
    stored = [one for one in records.closed if one.first not in records.dirty]
    assert len(stored) >= 4
    records.find(stored[0].first)
    records.evict(records.memory - 2 * stored[0].memory)
    assert [one.loaded for one in stored[:4]] == [True, False, False, True]


def test_rows_that_every_cursor_has_acked_before_a_flush_are_never_written() -> None:
    driver = LogDriver(SMALL)
    reader = driver.subscribe("c")
    driver.settle()
    written: list[int] = []
    for number in range(20):
        driver.deliver(numbered(number, 1, 100))
        driver.handle(AckOffset(reader, number))
        written += [len(job.rows) for job in driver.jobs if isinstance(job, FlushStates)]
        driver.settle()
    assert sum(written) <= 8
    assert len(driver.core.state.records.closed) <= 2


def test_rows_of_dropped_segments_are_emptied() -> None:
    driver = LogDriver(SMALL)
    reader = driver.subscribe("c")
    driver.settle()
    fill(driver, 0, 12)
    assert driver.rows()
    driver.handle(AckOffset(reader, 12))
    driver.pass_time(60_000)
    driver.settle()
    fill(driver, 12, 8)
    assert driver.rows() <= {segment.first for segment in driver.core.state.records.closed}


def test_a_missing_row_ends_those_who_need_it_and_names_it() -> None:
    settings = LogSettings(segment_bytes=300, memory_bytes=1, cap_bytes=1 << 20, checkpoint_entries=3)
    driver = LogDriver(settings)
    fill(driver, 0, 20)
    near = driver.subscribe()
    needy = driver.subscribe("c")
    while not any(isinstance(job, ReadStates) for job in driver.jobs):
        driver.step()
    read = next(job for job in driver.jobs if isinstance(job, ReadStates))
    driver.jobs.remove(read)
    driver.handle(StatesRead(read.keys, [None] * len(read.keys)))
    assert needy.error is not None
    assert needy.error.code is FailureCode.DATA_LOSS
    assert "the row is missing" in needy.error.message
    assert near.error is None


def test_opaque_ids_spill_to_segments_and_are_still_known_6_1_1() -> None:
    driver = LogDriver(LogSettings(checkpoint_entries=3))
    driver.core.state.dedup._segment_ids = 8
    ids = [bytes([number]) * 16 for number in range(40)]
    sender = Sender("injector/windows/p", 1, None, "injector/windows")
    for at in range(0, 40, 4):
        driver.deliver(numbered(at, 4), ids=OpaqueIds(ids[at : at + 4]), sender=sender)
        driver.settle()
    assert driver.core.state.segments
    driver.open()
    again = [driver.deliver(numbered(at, 4), ids=OpaqueIds(ids[at : at + 4]), sender=sender) for at in range(0, 40, 4)]
    driver.settle()
    assert all(driver.acked(one) for one in again)
    tail = driver.subscribe(resume=0)
    driver.settle()
    assert tail.values == numbered(0, 40)


def test_subscribers_are_served_alone_by_identity() -> None:
    driver = LogDriver()
    readers = [Reader(), Reader()]
    for reader in readers:
        driver.handle(Subscribe(reader, "", Start.NOW, 0))
        driver.handle(Fetch(reader, 5))
    driver.handle(Unsubscribe(readers[0]))
    fill(driver, 0, 1)
    assert [reader.offsets for reader in readers] == [[], [0]]
