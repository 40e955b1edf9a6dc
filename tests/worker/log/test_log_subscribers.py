"""The core of a stream log: subscribers, cursors, and the records kept for them (G13)."""

from __future__ import annotations

import pytest

from millwheel.rpc.failures import FailureCode
from millwheel.worker.dedup import OpaqueIds, Sender
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
from millwheel.worker.messages import (
    Delivery,
    FlushStates,
    GroupWatermarks,
    ReadStates,
    StatesRead,
)
from tests.worker.log.driver import FULL, SMALL, LogDriver, Reader, fill, numbered

# Subscribers.


def test_a_cursor_is_sent_nothing_before_it_is_durable() -> None:
    driver = LogDriver()
    fill(driver, 0, 1)
    reader = driver.subscribe("c")
    assert reader.published == []
    driver.run()
    assert reader.offsets == [0]


def test_cursors_begin_at_the_oldest_record_or_now() -> None:
    driver = LogDriver()
    fill(driver, 0, 3)
    oldest, now = driver.subscribe("old"), driver.subscribe("new", Start.NOW)
    driver.run()
    fill(driver, 3, 1)
    assert oldest.offsets == [0, 1, 2, 3]
    assert now.offsets == [3]


def test_an_acked_record_is_delivered_to_no_subscriber_again() -> None:
    driver = LogDriver()
    fill(driver, 0, 4)
    first = driver.subscribe("c")
    driver.run()
    driver.handle(AckOffset(first, 3))
    second = driver.subscribe("c")
    assert second.offsets == [3]
    driver.pass_time(60_000)
    driver.run()
    assert second.published[-1].acked == 3
    driver.crash(applied=True)
    third = driver.subscribe("c")
    assert third.offsets == [3]


def test_a_cursors_newest_subscriber_takes_over_from_the_older() -> None:
    driver = LogDriver()
    first = driver.subscribe("c")
    second = driver.subscribe("c")
    assert first.error is not None
    assert (first.error.code, first.error.reason) == (FailureCode.ABORTED, "CURSOR_TAKEN_OVER")
    assert "'c'" in first.error.message
    driver.handle(AckOffset(first, 0))
    driver.handle(Unsubscribe(first))
    driver.run()
    fill(driver, 0, 1)
    assert (first.offsets, second.offsets) == ([], [0])


def test_a_replaced_subscriber_does_not_take_the_cursor_back() -> None:
    driver = LogDriver()

    def subscribe(name: str) -> Reader:
        reader = Reader()
        driver.handle(Subscribe(reader, "c", Start.OLDEST, 10, name=name))
        return reader

    first = subscribe("a")
    driver.handle(Unsubscribe(first))
    again = subscribe("a")
    assert again.error is None, "its own call broke, and no other one came in between"
    second = subscribe("b")
    third = subscribe("a")
    assert third.error is not None
    assert third.error.reason == "CURSOR_TAKEN_OVER"
    assert second.error is None
    for number in range(200):
        subscribe(f"later {number}")
    assert subscribe("a").error is None, "the names of the last 64 are remembered"


def test_an_ack_waits_for_records_and_goes_alone_after_its_delay() -> None:
    driver = LogDriver()
    reader = driver.subscribe("c")
    driver.run()
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
    driver.run()
    assert driver.core.state.cursors.durable == {"c": 2}


@pytest.mark.guarantee("G1", section="4.3")
def test_a_subscriber_is_notified_of_an_ack_once_it_is_journaled() -> None:
    driver = LogDriver()
    reader = driver.subscribe("c")
    fill(driver, 0, 4)
    driver.handle(AckOffset(reader, 3))
    driver.handle(GroupWatermarks({"up": 5}))
    assert max(one.acked for one in reader.published) == 0, "it is received, and nothing more"
    driver.pass_time(50_000)
    driver.run()
    assert reader.published[-1].acked == 3


@pytest.mark.guarantee("G13")
def test_no_more_than_the_window_is_sent_beyond_the_last_ack() -> None:
    driver = LogDriver()
    reader = driver.subscribe("c", window=3)
    driver.run()
    fill(driver, 0, 10)
    assert reader.offsets == [0, 1, 2]
    driver.handle(AckOffset(reader, 2))
    assert reader.offsets == [0, 1, 2, 3, 4]


@pytest.mark.guarantee("G13")
def test_nothing_is_sent_without_a_fetch() -> None:
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
    driver.run()
    assert [len(one.values) for one in tail.published if one.values] == [10, 10, 5, 1, 1, 1]
    assert tail.values == values


def test_acks_and_resumptions_beyond_the_end_are_refused_by_name() -> None:
    driver = LogDriver()
    reader = driver.subscribe("c")
    driver.run()
    driver.handle(AckOffset(reader, 1))
    assert reader.error is not None
    assert reader.error.code is FailureCode.OUT_OF_RANGE
    resumed = driver.subscribe(resume=5)
    assert resumed.error is not None
    assert "ends at 0" in resumed.error.message


def test_a_tail_reads_from_now_on_and_resumes_after_a_crash() -> None:
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
    driver.run()
    start = driver.core.state.records.start
    assert (tail.offsets, tail.values) == (list(range(start, 20)), values[start:])


def test_cursors_are_listed_with_what_they_have_acked() -> None:
    driver = LogDriver()
    fill(driver, 0, 3)
    driver.subscribe("b")
    reader = driver.subscribe("a")
    driver.run()
    driver.handle(AckOffset(reader, 2))
    driver.pass_time(60_000)
    driver.run()
    driver.handle(ListCursors("asker"))
    assert driver.replies[-1].cursors == [CursorInfo("a", 2, 3), CursorInfo("b", 0, 3)]


def test_a_deleted_cursor_is_removed_and_its_subscriber_notified() -> None:
    driver = LogDriver()
    reader = driver.subscribe("c")
    driver.run()
    driver.handle(DeleteCursor("asker", "c"))
    assert driver.replies == []
    assert reader.error is not None
    assert reader.error.reason == "CURSOR_DELETED"
    driver.run()
    assert driver.replies[-1].error is None
    driver.crash(applied=True)
    assert driver.core.state.cursors.durable == {}
    driver.handle(DeleteCursor("asker", "c"))
    last = driver.replies.pop()
    assert last.error is not None
    assert last.error.code is FailureCode.NOT_FOUND


def test_a_cursor_deleted_and_created_again_starts_fresh() -> None:
    driver = LogDriver()
    fill(driver, 0, 2)
    reader = driver.subscribe("c")
    driver.run()
    driver.handle(AckOffset(reader, 2))
    driver.pass_time(60_000)
    driver.run()
    driver.handle(DeleteCursor("asker", "c"))
    again = driver.subscribe("c")
    driver.run()
    assert again.offsets == [0, 1]
    assert driver.core.state.cursors.durable == {"c": 0}


@pytest.mark.guarantee("G1", section="4.3")
def test_a_cursor_created_again_during_an_append_is_another() -> None:
    """Regression: the new cursor counted as durable while the journal had the old one. It began at the old position."""
    driver = LogDriver()
    fill(driver, 0, 2)
    reader = driver.subscribe("c")
    driver.run()
    driver.handle(AckOffset(reader, 2))
    driver.pass_time(60_000)
    driver.run()
    driver.deliver(numbered(2, 1))
    driver.handle(DeleteCursor("asker", "c"))
    again = driver.subscribe("c")
    driver.step()
    assert again.published == [], "its creation is in flight"
    driver.run()
    assert again.offsets == [0, 1, 2]
    assert again.published[0].life > reader.published[0].life


@pytest.mark.guarantee("G1", section="4.3")
def test_a_broken_call_ends_with_its_cursors_incarnation() -> None:
    """Regression: a subscriber that returned after its cursor was deleted and created again continued at the old
    position."""
    driver = LogDriver()
    fill(driver, 0, 3)
    reader = driver.subscribe("c")
    driver.run()
    life = reader.published[0].life
    driver.handle(Unsubscribe(reader))
    driver.handle(DeleteCursor("asker", "c"))
    driver.subscribe("c")
    driver.run()
    back = Reader()
    driver.handle(Subscribe(back, "c", Start.OLDEST, 10, resume=3, life=life))
    assert back.error is not None
    assert back.error.reason == "CURSOR_DELETED"


# What is kept.


def test_records_that_every_cursor_has_acked_go_by_the_segment() -> None:
    driver = LogDriver(SMALL)
    fast, slow = driver.subscribe("fast"), driver.subscribe("slow")
    driver.run()
    fill(driver, 0, 8)
    driver.handle(AckOffset(fast, 8))
    driver.handle(AckOffset(slow, 2))
    driver.pass_time(60_000)
    driver.run()
    assert driver.core.state.records.start == 2
    driver.handle(AckOffset(slow, 7))
    driver.pass_time(60_000)
    driver.run()
    assert driver.core.state.records.start == 7
    driver.open()
    assert driver.core.state.records.start == 7


def test_without_cursors_records_expire_without_other_events() -> None:
    driver = LogDriver(retention=LogRetention(max_age=8_000_000))
    fill(driver, 0, 3)
    driver.pass_time(7_000_000)
    driver.run()
    assert driver.core.state.records.start == 0
    driver.pass_time(1_100_000)
    driver.run()
    assert driver.core.state.records.start == 3
    assert driver.core.next_deadline() is None


def test_without_cursors_records_go_by_bytes() -> None:
    driver = LogDriver(SMALL, LogRetention(max_bytes=500))
    fill(driver, 0, 30)
    records = driver.core.state.records
    assert 500 - 2 * SMALL.segment_bytes <= records.kept <= 500 + SMALL.segment_bytes
    assert records.start > 20


def test_with_a_cursor_retention_waits_for_its_ack() -> None:
    driver = LogDriver(SMALL, LogRetention(max_age=1_000_000, max_bytes=300))
    reader = driver.subscribe("c")
    driver.run()
    fill(driver, 0, 8)
    driver.pass_time(10_000_000)
    driver.run()
    assert driver.core.state.records.start == 0
    driver.handle(DeleteCursor("asker", "c"))
    driver.run()
    driver.pass_time(1)
    driver.run()
    assert reader.offsets == list(range(8))
    assert driver.core.state.records.start == 8


@pytest.mark.guarantee("G13")
def test_over_the_cap_intake_is_refused_with_the_slowest_named() -> None:
    driver = LogDriver(SMALL)
    fast, slow = driver.subscribe("fast"), driver.subscribe("slow")
    driver.run()
    driver.handle(GroupWatermarks({"injector/windows": 10}))
    sent = 0
    while driver.core.state.records.kept < SMALL.cap_bytes:
        fill(driver, sent, 1)
        sent += 1
    driver.handle(AckOffset(fast, sent))
    driver.pass_time(60_000)
    driver.run()
    refused = driver.deliver([b"ahead", b"held"], [20, 10])
    full = driver.answers[-1]
    assert (full.delivery is refused, full.outcome, list(full.indexes)) == (True, FULL, [0])
    assert "'slow', at offset 0" in full.message
    assert "cursors delete windows slow" in full.message
    driver.run()
    assert slow.values[-1] == b"held", "what holds the watermark back is taken"
    driver.handle(AckOffset(slow, sent))
    driver.pass_time(60_000)
    driver.run()
    again = driver.deliver(refused.values, refused.timestamps, ids=refused.ids)
    driver.run()
    assert driver.acked(again)
    assert slow.values[-1] == b"ahead"


@pytest.mark.guarantee("G13")
def test_a_quarter_beyond_the_cap_nothing_is_taken() -> None:
    driver = LogDriver(SMALL)
    driver.subscribe("slow")
    driver.run()
    driver.handle(GroupWatermarks({"injector/windows": 10}))
    taken = 0
    for number in range(100):
        taken += driver.acked(_delivered(driver, b"%d" % number + b"." * 90, 5))
    assert driver.core.state.records.kept <= SMALL.cap_bytes * 5 // 4 + 200
    assert 0 < taken < 100


def _delivered(driver: LogDriver, value: bytes, timestamp: int) -> Delivery:
    delivery = driver.deliver([value], [timestamp])
    driver.run()
    return delivery


@pytest.mark.guarantee("G13")
def test_intake_is_bounded_while_the_journal_is_slow() -> None:
    driver = LogDriver(SMALL)
    driver.handle(GroupWatermarks({"injector/windows": 10}))
    for number in range(200):
        driver.deliver([b"." * 90], [20 + number])
    assert driver.core.state.intake.bytes <= SMALL.queue_bytes + 2 * 106
    assert any(one.outcome == FULL for one in driver.answers)
    late = driver.deliver([b"late"], [3])
    driver.run()
    assert driver.acked(late)


def test_a_settings_mistake_is_named() -> None:
    with pytest.raises(ValueError, match="cap_bytes 100 is below four segments"):
        LogSettings(cap_bytes=100)


# Behind the journal.


@pytest.mark.guarantee("G13")
def test_old_segments_leave_memory_and_are_read_back_on_demand() -> None:
    settings = LogSettings(
        segment_bytes=1_000, memory_bytes=8_000, cap_bytes=1 << 20, checkpoint_entries=10, publish_records=7
    )
    driver = LogDriver(settings)
    values = fill(driver, 0, 200)
    records = driver.core.state.records
    assert records.memory <= settings.memory_bytes + records.open.memory
    reader = driver.subscribe("c")
    driver.run()
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


def test_rows_all_cursors_acked_before_a_flush_are_not_written() -> None:
    driver = LogDriver(SMALL)
    reader = driver.subscribe("c")
    driver.run()
    written: list[int] = []
    for number in range(20):
        driver.deliver(numbered(number, 1, 100))
        driver.handle(AckOffset(reader, number))
        written += [len(job.rows) for job in driver.waiting if isinstance(job, FlushStates)]
        driver.run()
    assert sum(written) <= 8
    assert len(driver.core.state.records.closed) <= 2


def test_rows_of_dropped_segments_are_emptied() -> None:
    driver = LogDriver(SMALL)
    reader = driver.subscribe("c")
    driver.run()
    fill(driver, 0, 12)
    assert driver.rows()
    driver.handle(AckOffset(reader, 12))
    driver.pass_time(60_000)
    driver.run()
    fill(driver, 12, 8)
    assert driver.rows() <= {segment.first for segment in driver.core.state.records.closed}


def test_a_missing_row_ends_those_who_need_it_and_names_it() -> None:
    settings = LogSettings(segment_bytes=300, memory_bytes=1, cap_bytes=1 << 20, checkpoint_entries=3)
    driver = LogDriver(settings)
    fill(driver, 0, 20)
    near = driver.subscribe()
    needy = driver.subscribe("c")
    while not any(isinstance(job, ReadStates) for job in driver.waiting):
        driver.step()
    read = next(job for job in driver.waiting if isinstance(job, ReadStates))
    driver.waiting.remove(read)
    driver.handle(StatesRead(read.keys, [None] * len(read.keys)))
    assert needy.error is not None
    assert needy.error.code is FailureCode.DATA_LOSS
    assert "the row is missing" in needy.error.message
    assert near.error is None


@pytest.mark.paper(section="6.1.1")
def test_opaque_ids_spill_to_segments_and_are_still_known() -> None:
    driver = LogDriver(LogSettings(checkpoint_entries=3))
    driver.core.state.dedup.segment_ids = 8
    ids = [bytes([number]) * 16 for number in range(40)]
    sender = Sender("injector/windows/p", 1, None, "injector/windows")
    for at in range(0, 40, 4):
        driver.deliver(numbered(at, 4), ids=OpaqueIds(ids[at : at + 4]), sender=sender)
        driver.run()
    assert driver.core.state.journal.segments
    driver.open()
    again = [driver.deliver(numbered(at, 4), ids=OpaqueIds(ids[at : at + 4]), sender=sender) for at in range(0, 40, 4)]
    driver.run()
    assert all(driver.acked(one) for one in again)
    tail = driver.subscribe(resume=0)
    driver.run()
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
