"""Regressions: what a log keeps beside its cursors, and which id segments it keeps (6.1.1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.memory import MemoryStore
from millwheel.testing.store_effects import result_of
from millwheel.worker.dedup import OpaqueIds, Sender
from millwheel.worker.log import AckOffset, LogRetention, LogSettings, RetentionChanged, Start
from millwheel.worker.messages import GroupWatermarks, PartsMissing, ReadSegments
from tests.worker.log.driver import ACKED, FULL, JOURNAL, SMALL, LogDriver, fill


def test_a_stated_retention_keeps_records_for_later_subscribers() -> None:
    """The setting limits the records that are kept "for subscribers that do not exist yet".

    Regression: with one cursor that had ACKed, nothing was kept.
    """
    driver = LogDriver(SMALL, LogRetention(max_age=8_000_000, stated=True))
    reader = driver.subscribe("c")
    driver.run()
    fill(driver, 0, 8)
    driver.handle(AckOffset(reader, 8))
    driver.pass_time(1_500_000)
    driver.run()
    late = driver.subscribe("d", Start.OLDEST)
    driver.run()
    assert late.offsets == list(range(8))
    driver.pass_time(9_000_000)
    driver.run()
    assert driver.core.state.records.start == 0, "the other cursor has not ACKed"
    assert driver.core.next_deadline() is None
    driver.handle(AckOffset(late, 8))
    driver.pass_time(60_000)
    driver.run()
    assert driver.core.state.records.start == 8


def test_a_stated_retention_ends_by_age_without_other_events() -> None:
    driver = LogDriver(SMALL, LogRetention(max_age=8_000_000, stated=True))
    reader = driver.subscribe("c")
    driver.run()
    fill(driver, 0, 8)
    driver.handle(AckOffset(reader, 8))
    driver.pass_time(60_000)
    driver.run()
    assert driver.core.state.records.start == 0
    driver.pass_time(9_000_000)
    driver.run()
    assert driver.core.state.records.start == 8
    assert driver.core.next_deadline() is None


@pytest.mark.guarantee("G13", section="7.1")
def test_records_age_while_they_are_served_with_any_owners_clock() -> None:
    """Regression: with a wall clock an hour ahead, all unread records were too old.

    With one that was set back, none grew old. Each owner's clock begins at its own time, and ages continue from the
    journal's.
    """
    driver = LogDriver(SMALL, LogRetention(max_age=8_000_000, stated=True))
    fill(driver, 0, 4)
    for beginning in (3_600_000_000, 5):
        driver.pass_time(3_000_000)
        driver.run()
        driver.now = beginning
        driver.crash(applied=True)
        assert driver.core.state.records.start == 0
    driver.pass_time(1_900_000)
    driver.run()
    assert driver.core.state.records.start == 0, "served for 7.9 s"
    driver.pass_time(1_100_000)
    driver.run()
    assert driver.core.state.records.start == 4


@pytest.mark.guarantee("G13", section="7.1")
def test_the_age_is_journaled_while_records_wait_without_events() -> None:
    """Otherwise records of a log with many short-lived owners would never grow old."""
    driver = LogDriver(SMALL, LogRetention(max_age=8_000_000))
    driver.pass_time(5_000_000)
    assert driver.appends == 0, "there is nothing that could grow old"
    fill(driver, 0, 1)
    appends = driver.appends
    driver.pass_time(4_000_000)
    driver.run()
    assert 1 <= driver.appends - appends <= 4
    assert driver.core.state.clock.age - driver.core.state.clock.journaled_age <= 1_000_000


def test_a_retention_by_bytes_drops_acked_records_beyond_it() -> None:
    driver = LogDriver(SMALL, LogRetention(max_bytes=500, stated=True))
    reader = driver.subscribe("c")
    driver.run()
    for _ in range(30):
        fill(driver, driver.core.state.records.end, 1)
        driver.handle(AckOffset(reader, driver.core.state.records.end))
        driver.pass_time(60_000)
        driver.run()
    kept = driver.core.state.records.kept
    assert 500 - 2 * SMALL.segment_bytes <= kept <= 500 + SMALL.segment_bytes


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("retention", [LogRetention(max_age=1 << 50, stated=True), LogRetention(max_bytes=1 << 50)])
def test_a_retention_alone_never_stops_the_producers(retention: LogRetention) -> None:
    """The oldest go before the log is at its cap."""
    settings = replace(SMALL, retained_bytes=1_200)
    driver = LogDriver(settings, retention)
    for number in range(200):
        driver.deliver([b"x" * 90], [driver.now + number])
        driver.run()
        assert driver.answers[-1].outcome == ACKED, (number, driver.answers[-1])
    kept = driver.core.state.records.kept
    assert settings.retained_bytes - settings.segment_bytes <= kept <= settings.retained_bytes + settings.segment_bytes


@pytest.mark.guarantee("G8")
def test_a_full_log_drops_once_its_last_cursor_has_acked() -> None:
    driver = LogDriver(replace(SMALL, retained_bytes=1_200), LogRetention(max_age=1 << 50, stated=True))
    reader = driver.subscribe("c")
    driver.run()
    while driver.core.state.records.kept < SMALL.cap_bytes:
        fill(driver, driver.core.state.records.end, 1)
    driver.deliver([b"ahead"], [driver.now + 1])
    assert driver.answers[-1].outcome == FULL
    driver.handle(AckOffset(reader, driver.core.state.records.end))
    driver.pass_time(60_000)
    driver.run()
    driver.deliver([b"ahead"], [driver.now + 1])
    driver.run()
    assert driver.answers[-1].outcome == ACKED


def test_a_retention_keeps_less_than_fills_a_log() -> None:
    settings = LogSettings()
    assert settings.retained_bytes + settings.segment_bytes < settings.cap_bytes


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("cursors", [True, False])
def test_a_record_above_the_cap_goes_once_it_is_read(cursors: bool) -> None:
    """Regression: the record filled the open segment. All further records were refused, so the segment never ended."""
    driver = LogDriver(SMALL, LogRetention(max_bytes=1))
    reader = driver.subscribe("c") if cursors else None
    driver.run()
    fill(driver, 0, 1, SMALL.cap_bytes * 2)
    if reader is not None:
        driver.deliver([b"more"])
        assert driver.answers[-1].outcome == FULL
        driver.handle(AckOffset(reader, 1))
    driver.pass_time(60_000)
    driver.run()
    assert driver.core.state.records.kept == 0
    driver.deliver([b"more"])
    driver.run()
    assert driver.answers[-1].outcome == ACKED
    assert driver.core.next_deadline() is None


IDS = LogSettings(checkpoint_entries=8)


def id_of(number: int) -> bytes:
    return number.to_bytes(8, "big") * 2


def weak(watermark: int, sequencer: int = 1) -> Sender:
    return Sender("injector/windows/p", sequencer, None, "injector/windows", watermark)


def send(driver: LogDriver, first: int, count: int, stamp: int) -> None:
    for number in range(first, first + count):
        ids = OpaqueIds([id_of(number)])
        driver.deliver([b"%d" % number], [stamp], ids=ids, sender=weak(stamp))
        driver.run()


def parts(store: MemoryStore) -> int:
    return len(result_of(store.list_parts(JOURNAL)))


@pytest.mark.guarantee("G13", section="6.1.1")
def test_segments_collected_before_a_base_names_them_are_removed() -> None:
    """Regression: only segments that an earlier base had named were deleted.

    With a fast watermark all others stayed, in the store for ever and in memory until the next takeover.
    """
    driver = LogDriver(IDS)
    driver.core.state.dedup.segment_ids = 4
    counts = []
    for round_number in range(1, 13):
        stamp = round_number * 100
        send(driver, round_number * 100, 12, stamp)
        members = {"injector/windows": [("injector/windows/p", 1)]}
        driver.handle(GroupWatermarks({"injector/windows": stamp + 50}, members))
        counts.append((parts(driver.store), len(driver.core.state.journal.segments)))
    assert max(count for count, _ in counts[4:]) <= max(count for count, _ in counts[:4])
    assert max(segments for _, segments in counts) <= 8


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_segment_collected_while_it_is_read_costs_a_repetition() -> None:
    driver = LogDriver(IDS)
    driver.core.state.dedup.segment_ids = 4
    send(driver, 0, 4, 100)
    copy = driver.deliver([b"2"], [100], ids=OpaqueIds([id_of(2)]), sender=weak(100))
    (read,) = [job for job in driver.waiting if isinstance(job, ReadSegments)]
    driver.waiting.remove(read)
    driver.handle(GroupWatermarks({"injector/windows": 500}))
    send(driver, 10, 20, 600)
    driver.handle(PartsMissing(read.parts, "part", "the value is missing"))
    answers = [(one.outcome, list(one.indexes)) for one in driver.answers if one.delivery is copy]
    assert answers == [(FULL, [0])]


@pytest.mark.guarantee("G1", section="6.2")
def test_sequencers_received_during_recovery_are_not_forgotten() -> None:
    """Regression: what arrived before the takeover's scan went into a duplicate check that the scan then replaced."""
    driver = LogDriver(IDS)
    send(driver, 0, 20, 100)
    driver.early = [GroupWatermarks({"injector/windows": 90}, {"injector/windows": [("injector/windows/p", 7)]})]
    driver.open()
    driver.deliver([b"x"], [100], ids=OpaqueIds([id_of(99)]), sender=weak(100, 6))
    assert driver.answers[-1].outcome == DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER
    driver.deliver([b"x"], [100], ids=OpaqueIds([id_of(99)]), sender=weak(100, 7))
    driver.run()
    assert driver.answers[-1].outcome == ACKED


def test_another_retention_keeps_more_or_less_from_then_on() -> None:
    """Regression: an update of a stream's retention was accepted, and the log kept what it had kept before."""
    driver = LogDriver(SMALL, LogRetention(max_age=8_000_000, stated=True))
    fill(driver, 0, 4)
    driver.handle(RetentionChanged(LogRetention(max_age=80_000_000, stated=True)))
    driver.pass_time(20_000_000)
    driver.run()
    assert driver.core.state.records.start == 0
    driver.handle(RetentionChanged(LogRetention(max_age=8_000_000, stated=True)))
    driver.pass_time(60_000)
    driver.run()
    assert driver.core.state.records.start == 4
