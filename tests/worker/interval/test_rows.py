"""When state rows are written behind the journal."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

import millwheel as mw
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import (
    Acknowledged,
    DeleteEntries,
    FlushStates,
    PartsWritten,
    SendDelivery,
    StatesFlushed,
    Tick,
    WriteParts,
)
from tests.worker.interval.driver import IntervalDriver

_LONG = 60_000_000


class Count(mw.Computation[tuple[str, str], int]):
    """Counts its key's records."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1


def _driver(**settings: Any) -> IntervalDriver:
    driver = IntervalDriver(Count(), settings=IntervalSettings(flush_interval=_LONG, **settings))
    driver.take(FlushStates)
    return driver


def _commit(driver: IntervalDriver, number: int) -> None:
    driver.now += 1_000
    driver.deliver((f"k{number % 3}", "", number))
    driver.commit_all()
    for send in driver.take(SendDelivery):
        driver.handle(Acknowledged(send.delivery.token))


def test_rows_are_written_once_for_all_commits_of_a_base() -> None:
    """Rows that no one waits for are not written at once: a key that changes with each commit is one row for each
    base."""
    driver = _driver(checkpoint_entries=20)
    for number in range(19):
        _commit(driver, number)
    assert not driver.take(FlushStates)
    _commit(driver, 19)
    (parts,) = driver.take(WriteParts)
    (flush,) = driver.take(FlushStates)
    assert sorted(row.key for row in flush.rows) == [b"k0", b"k1", b"k2"]
    assert driver.state.journal.truncation_point == 0
    driver.handle(PartsWritten(parts.number))
    _commit(driver, 20)
    assert driver.state.journal.truncation_point == 0, "the truncation point waits for the rows"
    driver.handle(StatesFlushed(flush.number))
    _commit(driver, 21)
    assert driver.state.journal.truncation_point == 20
    assert driver.take(DeleteEntries)


def test_rows_changed_during_a_write_are_next_if_a_base_waits() -> None:
    driver = _driver(checkpoint_entries=4)
    driver.now += _LONG
    _commit(driver, 0)
    (early,) = driver.take(FlushStates)
    for number in range(1, 5):
        _commit(driver, number)
    (parts,) = driver.take(WriteParts)
    driver.handle(PartsWritten(parts.number))
    assert not driver.take(FlushStates), "one flush is on its way at a time"
    driver.handle(StatesFlushed(early.number))
    driver.handle(Tick())
    (late,) = driver.take(FlushStates)
    assert len(late.rows) == 3
    driver.handle(StatesFlushed(late.number))
    _commit(driver, 5)
    assert driver.state.journal.truncation_point == 4


def test_many_rows_are_written_early_to_keep_a_takeover_short() -> None:
    driver = _driver(flush_rows=3, flush_apart=50_000)
    for number in range(2):
        _commit(driver, number)
    driver.now += 50_000
    driver.handle(Tick())
    assert not driver.take(FlushStates), "two are not many"
    _commit(driver, 2)
    (flush,) = driver.take(FlushStates)
    assert len(flush.rows) == 3


@pytest.mark.guarantee("G12", section="6.1.2")
def test_slices_of_rows_count_once_the_last_is_written() -> None:
    """The journal is needed until all rows are written that changed up to the first slice."""
    driver = _driver(checkpoint_entries=4, flush_slice=2)
    for number in range(4):
        _commit(driver, number)
    (parts,) = driver.take(WriteParts)
    driver.handle(PartsWritten(parts.number))
    assert not driver.take(FlushStates), "the other rows are captured later"
    _commit(driver, 5)
    (flush,) = driver.take(FlushStates)
    assert [(row.key, row.commit) for row in flush.rows] == [(b"k0", 4), (b"k1", 2), (b"k2", 5)], (
        "one changed meanwhile"
    )
    _commit(driver, 6)
    assert driver.state.journal.truncation_point == 0, "the truncation point waits for the write"
    driver.handle(StatesFlushed(flush.number))
    _commit(driver, 7)
    assert driver.state.journal.truncation_point == 4


def test_a_key_that_changes_between_slices_is_written_again() -> None:
    driver = _driver(flush_slice=1)
    for number in range(3):
        _commit(driver, number)
    driver.now += _LONG
    driver.handle(Tick())
    _commit(driver, 0)
    driver.handle(Tick())
    (flush,) = driver.take(FlushStates)
    assert [(row.key, row.commit) for row in flush.rows] == [(b"k0", 1), (b"k1", 2), (b"k2", 3)]
    driver.handle(StatesFlushed(flush.number))
    assert [cell.key for cell in driver.state.cells.take_dirty()] == [b"k0"]


def test_slices_follow_each_other_while_nothing_else_happens() -> None:
    driver = _driver(flush_slice=1)
    for number in range(3):
        _commit(driver, number)
    driver.now += _LONG
    for _ in range(2):
        driver.handle(Tick())
        assert not driver.take(FlushStates)
        assert driver.core.next_deadline() == driver.now, "the next slice does not wait for another minute"
    driver.handle(Tick())
    (flush,) = driver.take(FlushStates)
    assert [row.key for row in flush.rows] == [b"k0", b"k1", b"k2"]
    driver.handle(StatesFlushed(flush.number))
    for left in (2, 1):
        assert driver.state.cells.dirty_count == left, "one slice in a step"
        assert driver.core.next_deadline() == driver.now, "what was written is settled in slices, too"
        driver.handle(Tick())
    assert driver.state.cells.dirty_count == 0
    assert driver.core.next_deadline() is None


@pytest.mark.guarantee("G8", section="6.1.2")
def test_a_slice_takes_no_longer_if_more_rows_follow() -> None:
    """Memory shows it without a clock: a step that went through all that follow would copy them."""
    keys = 16_000
    driver = _driver(flush_slice=10)
    driver.deliver(*((f"k{number:05}", "", number) for number in range(keys)))
    driver.commit_all()
    driver.now += _LONG
    driver.handle(Tick())
    tracemalloc.start()
    try:
        driver.handle(Tick())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert driver.state.cells.dirty_count == keys
    assert driver.core.next_deadline() == driver.now, "slices follow"
    assert most < keys, "a list of those that follow has eight bytes for each"
