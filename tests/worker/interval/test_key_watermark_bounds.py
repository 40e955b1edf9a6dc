"""A merged interval behaves for each key as its parent would, without the merge (G5, G7, G14; 4.5, 4.6).

The naive model: the two parents continue side by side, each with its own watermark. For each key, the merged interval
must run the model's records and timers, in the same order. Their late flags and ``ctx.watermark`` must be the same.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP, Timestamp
from millwheel.store.contract import JournalHead
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.key_bounds import KeyWatermarkBounds
from millwheel.worker.messages import AnswerDelivery, OpenedParent, Parent
from tests.worker.interval.column_windows import Results, counting
from tests.worker.interval.driver import IntervalDriver

LOW, HIGH = KeyInterval(b"", b"m"), KeyInterval(b"m", None)
Rows = list[tuple[str, str, int]]
AHEAD = {"t": 5, "s": 15}
stamps = st.integers(0, 60)
rows = st.lists(st.tuples(st.sampled_from("bcxy"), st.sampled_from("xts"), stamps), max_size=6)


class Shown(mw.Computation[tuple[str, str], list[tuple[int, str, int]]]):
    """Logs each record and timer in order: its time, its name, and the watermark.

    A record sets a timer, "t" 5 ahead of itself (so that it may be due at once), "s" 15.
    """

    def process_record(self, ctx: mw.Context[list[tuple[int, str, int]]], record: mw.Record[Any]) -> None:
        ctx.state.append((record.timestamp, "late" if record.late else "record", ctx.watermark))
        if record.value[1] in AHEAD:
            ctx.set_timer(Timestamp(record.timestamp + AHEAD[record.value[1]]), f"{record.value[1]} {len(ctx.state)}")

    def process_timer(self, ctx: mw.Context[list[tuple[int, str, int]]], timer: mw.Timer) -> None:
        ctx.state.append((timer.timestamp, timer.tag, ctx.watermark))


def shown(driver: IntervalDriver) -> dict[str, list[Any]]:
    decode = driver.state.program.state.decode
    return {key.decode(): settled(decode(cell.encoded)) for key, cell in driver.state.cells.items() if cell.encoded}


def settled(reported: list[tuple[int, str, int]]) -> list[tuple[int, str, int]]:
    """Sort neighbouring timers of one time by tag, because they may fire in any order (4.6)."""
    runs = groupby(reported, key=lambda one: None if one[1] in ("record", "late") else one[0])
    return [one for at, run in runs for one in (run if at is None else sorted(run))]


def parent(
    keys: KeyInterval, journal: str, watermark: int, records: Rows, idle: bool, computation: Any = None, **options: Any
) -> tuple[IntervalDriver, OpenedParent]:
    """A parent that has acted on ``watermark``, sealed; not ``idle``, before its due timers have fired."""
    driver = IntervalDriver(computation or Shown(), **options)
    driver.watermark(watermark)
    # A record that is on time makes the parent journal its watermark.
    mine = [row for row in records if row[0].encode() in keys]
    driver.deliver(*mine, ("b" if keys == LOW else "x", "first", 1_000))
    driver.commit_all() if idle else driver.commit()
    while not driver.take(AnswerDelivery):  # by columns, a record behind a hook of its key waits for the next commit
        driver.commit()
    head = JournalHead(7, len(driver.entries), 0, ())
    opened = OpenedParent(Parent(journal, keys), head, {}, list(driver.entries))
    driver.commit_all()
    return driver, opened


@pytest.mark.guarantee("G7", section="4.5")
@settings(max_examples=150)
@given(
    low=stamps,
    high=stamps,
    before=rows,
    later=st.lists(st.tuples(stamps, rows), max_size=5),
    crash=st.integers(0, 5),
    idle=st.booleans(),
)
@example(low=0, high=39, before=[("x", "t", 34), ("x", "s", 24)], later=[], crash=0, idle=False)
def test_a_merged_key_sees_the_watermark_its_parent_would_show(
    low: int, high: int, before: Rows, later: list[tuple[int, Rows]], crash: int, idle: bool
) -> None:
    first, one = parent(LOW, "test.1.j2", low, before, idle)
    second, two = parent(HIGH, "test.1.j3", high, before, idle)
    merged = IntervalDriver(Shown(), parents=[one, two])
    merged.position = 1_000
    assert merged.state.watermark == min(low, high)
    reached = 0
    for step, (to, records) in enumerate(later):
        reached = max(reached, to)
        if step == crash:
            position = merged.position
            merged = IntervalDriver(Shown(), parents=[one, two], entries=merged.entries)
            merged.position = position
        merged.watermark(reached)
        merged.commit_all()
        for unmerged, keys in ((first, LOW), (second, HIGH)):
            unmerged.watermark(reached)
            unmerged.commit_all()
            mine = [row for row in records if row[0].encode() in keys]
            if mine:
                unmerged.deliver(*mine)
                unmerged.commit_all()
                merged.deliver(*mine)
                merged.commit_all()
    merged.commit_all()
    assert shown(merged) == {**shown(first), **shown(second)}
    assert merged.state.counts.late == first.state.counts.late + second.state.counts.late
    assert merged.state.clocks.bounded == (max(low, high) > max(min(low, high), reached))


def results(
    low: int, high: int, before: Rows, later: list[tuple[int, Rows]], crash: int, idle: bool, limits: IntervalSettings
) -> list[dict[str, list[str]]]:
    """The results of windows that the merged interval sends, by key, as of each step."""
    options: dict[str, Any] = {"settings": limits, "outputs": {}}
    parents = [
        parent(keys, journal, watermark, before, idle, counting(Results()), **options)[1]
        for keys, journal, watermark in ((LOW, "test.1.j2", low), (HIGH, "test.1.j3", high))
    ]
    sent: dict[str, dict[str, None]] = {}
    steps: list[dict[str, list[str]]] = []

    def note() -> None:
        merged.commit_all()
        for result, _ in merged.sent():
            sent.setdefault(result[0], {})[result] = None  # a crash sends it again
        steps.append({key: list(found) for key, found in sorted(sent.items())})

    def open_merged(entries: list[bytes]) -> IntervalDriver:
        return IntervalDriver(counting(Results()), parents=parents, entries=entries, **options)

    merged = open_merged([])
    merged.position = 1_000
    note()
    reached = 0
    for step, (to, records) in enumerate(later):
        reached = max(reached, to)
        if step == crash:
            position, merged = merged.position, open_merged(merged.entries)
            merged.position = position
        merged.watermark(reached)
        if records:
            merged.deliver(*records)
        note()
    merged.watermark(2_000)
    note()
    return steps


@pytest.mark.guarantee("G5", section="7.1")
@settings(max_examples=100)
@given(
    low=stamps,
    high=stamps,
    before=rows,
    later=st.lists(st.tuples(stamps, rows), max_size=4),
    crash=st.integers(0, 4),
    idle=st.booleans(),
    columns_from=st.integers(1, 2),
)
@example(low=5, high=25, before=[("x", "", 1), ("x", "", 11)], later=[], crash=0, idle=False, columns_from=1)
def test_windows_by_columns_end_after_a_merge_as_in_hooks(columns_from: int, **history: Any) -> None:
    by_columns = IntervalSettings(columns_from=columns_from)
    assert results(**history, limits=by_columns) == results(**history, limits=IntervalSettings())


@pytest.mark.guarantee("G14", section="7.1")
def test_bounds_end_where_the_authority_knows_more() -> None:
    """The child of a merge starts from what was reported of all its keys, as any new owner does."""
    parents = [parent(LOW, "test.1.j2", 10, [], True)[1], parent(HIGH, "test.1.j3", 30, [], True)[1]]
    for accepted, watermark, bounded in ((5, 10, True), (20, 20, True), (30, 30, False), (40, 40, False)):
        merged = IntervalDriver(Shown(), parents=parents, accepted=accepted)
        assert (merged.state.watermark, merged.state.clocks.bounded) == (watermark, bounded)


def test_bounds_are_cut_with_their_keys_and_end_when_passed() -> None:
    bounds = KeyWatermarkBounds([(b"a", b"m", 50), (b"g", None, 30)])
    assert [bounds.bound_of(key) for key in (b"a", b"h", b"z", b"A")] == [50, 50, 30, MIN_TIMESTAMP]
    assert bounds.lowest == 30
    assert bounds.above(30).rows() == [(b"a", b"m", 50)]
    assert not bounds.above(50).rows()
    assert bounds.within(KeyInterval(b"b", b"h")) == [(b"g", b"h", 30), (b"b", b"h", 50)]
    assert bounds.within(KeyInterval(b"A", b"a")) == []


rows_of_floors = st.lists(
    st.tuples(st.binary(max_size=1), st.one_of(st.none(), st.binary(min_size=1, max_size=1)), st.integers(0, 3)).filter(
        lambda row: row[1] is None or row[0] < row[1]
    ),
    max_size=8,
)


@given(rows_of_floors, st.binary(max_size=2))
@example([(b"a", b"c", 1)], b"c")
def test_a_keys_bound_is_the_largest_of_its_ranges(given_rows: list[Any], key: bytes) -> None:
    inside = [bound for start, end, bound in given_rows if start <= key and (end is None or key < end)]
    assert KeyWatermarkBounds(given_rows).bound_of(key) == max(inside, default=MIN_TIMESTAMP)


@pytest.mark.guarantee("G13")
def test_bounds_do_not_grow_with_splits_and_merges() -> None:
    bounds = KeyWatermarkBounds([(b"a", b"m", 50)])
    for at in (b"c", b"g", b"b", b"k"):
        low, high = KeyInterval(b"", at), KeyInterval(at, None)
        bounds = KeyWatermarkBounds([*bounds.within(low), *bounds.within(high)])
    assert bounds.rows() == [(b"a", b"m", 50)]
