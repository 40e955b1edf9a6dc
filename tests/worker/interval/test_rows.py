"""When state rows are written behind the journal."""

from __future__ import annotations

from typing import Any

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
from tests.worker.interval.solo import Solo

_LONG = 60_000_000


class Count(mw.Computation[tuple[str, str], int]):
    """Counts its key's records."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1


def _solo(**settings: Any) -> Solo:
    solo = Solo(Count(), settings=IntervalSettings(flush_interval=_LONG, **settings))
    solo.take(FlushStates)
    return solo


def _commit(solo: Solo, number: int) -> None:
    solo.now += 1_000
    solo.deliver((f"k{number % 3}", "", number))
    solo.commit_all()
    for send in solo.take(SendDelivery):
        solo.handle(Acknowledged(send.delivery.token))


def test_rows_are_written_once_for_all_commits_of_a_base() -> None:
    """Rows that no one waits for are not written at once: a key that changes with each commit is one row for each
    base."""
    solo = _solo(checkpoint_entries=20)
    for number in range(19):
        _commit(solo, number)
    assert not solo.take(FlushStates)
    _commit(solo, 19)
    (parts,) = solo.take(WriteParts)
    (flush,) = solo.take(FlushStates)
    assert sorted(row.key for row in flush.rows) == [b"k0", b"k1", b"k2"]
    assert solo.state.journal.truncation_point == 0
    solo.handle(PartsWritten(parts.number))
    _commit(solo, 20)
    assert solo.state.journal.truncation_point == 0, "the truncation point waits for the rows"
    solo.handle(StatesFlushed(flush.number))
    _commit(solo, 21)
    assert solo.state.journal.truncation_point == 20
    assert solo.take(DeleteEntries)


def test_rows_changed_during_a_write_are_next_if_a_base_waits() -> None:
    solo = _solo(checkpoint_entries=4)
    solo.now += _LONG
    _commit(solo, 0)
    (early,) = solo.take(FlushStates)
    for number in range(1, 5):
        _commit(solo, number)
    (parts,) = solo.take(WriteParts)
    solo.handle(PartsWritten(parts.number))
    assert not solo.take(FlushStates), "one flush is on its way at a time"
    solo.handle(StatesFlushed(early.number))
    solo.handle(Tick())
    (late,) = solo.take(FlushStates)
    assert len(late.rows) == 3
    solo.handle(StatesFlushed(late.number))
    _commit(solo, 5)
    assert solo.state.journal.truncation_point == 4


def test_many_rows_are_written_early_to_keep_a_takeover_short() -> None:
    solo = _solo(flush_rows=3, flush_apart=50_000)
    for number in range(2):
        _commit(solo, number)
    solo.now += 50_000
    solo.handle(Tick())
    assert not solo.take(FlushStates), "two are not many"
    _commit(solo, 2)
    (flush,) = solo.take(FlushStates)
    assert len(flush.rows) == 3
