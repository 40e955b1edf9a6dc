"""Numbers for keys that come as columns of Arrow (section 4.2)."""

from __future__ import annotations

import sys
import tracemalloc
from array import array
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millwheel.rpc.column_keys import ColumnKeys
from millwheel.rpc.columns import RecordColumns
from millwheel.worker.interval.hooks.pane_gate import starts_in
from millwheel.worker.interval.panes.key_index import MAX_KEY, MIXERS, KeyIndex, distinct, selector
from millwheel.worker.interval.panes.table import PaneTable, WindowPanes

NAME = (0, 10, b"")
"""A window."""


def column(keys: list[bytes], behind: int = 0) -> ColumnKeys:
    """Keys as a column. ``behind``: so many other keys are before them in its buffers."""
    whole = pa.array([b"other"] * behind + keys, pa.binary())
    batch = pa.record_batch([whole.slice(behind)], ["key"])
    return RecordColumns(batch, array("q", bytes(8 * len(keys))), "key").keys()


short = st.one_of(
    st.binary(max_size=3), st.sampled_from([b"", b"\0", b"\0\0", b"a", b"a\0", b"12345678", b"12345678\0"])
)
long = st.binary(min_size=7, max_size=MAX_KEY)
calls = st.lists(st.tuples(st.lists(st.one_of(short, long), min_size=1, max_size=40), st.integers(0, 3)), max_size=8)


@given(calls, st.integers(1, 8))
@example([([b"12345678"], 0), ([b"12345678" + bytes(8)], 0), ([b"12345678"], 0)], 8)
def test_a_key_has_one_number_for_as_long_as_it_is_known(given_calls: list[Any], probes: int) -> None:
    index, model = KeyIndex(probes), dict[bytes, int]()
    for keys, behind in given_calls:
        numbers = index.numbers_of(column(keys, behind), slice(None))
        if numbers is None:
            continue
        for key, number in zip(keys, numbers.tolist(), strict=True):
            assert index.keys[number] == key
            assert model.setdefault(key, number) == number
    assert len(set(index.keys)) == len(index.keys)


def test_many_keys_have_numbers_although_the_table_grows() -> None:
    index = KeyIndex()
    keys = [f"key-{number * number}".encode() for number in range(9_000)]
    for first in range(0, len(keys), 1_500):
        assert index.numbers_of(column(keys[first : first + 1_500]), slice(None)) is not None
    numbers = index.numbers_of(column(keys[::-1]), slice(None))
    assert numbers is not None
    assert [index.keys[number] for number in numbers.tolist()] == keys[::-1]
    assert len(index.keys) == len(keys)


def test_keys_that_differ_in_zeros_at_their_ends_are_others() -> None:
    """As words they are equal, and some of them meet in one place."""
    index, keys = KeyIndex(), [f"{one}".encode() + bytes(more) for one in range(100) for more in range(30)]
    numbers = index.numbers_of(column(keys), slice(None))
    assert numbers is not None
    assert [index.keys[number] for number in numbers.tolist()] == keys


def test_numbers_of_some_records() -> None:
    index, keys = KeyIndex(), column([b"a", b"b", b"c", b"b", b"d"], 2)
    for some in (slice(1, 4), np.array([1, 2, 3])):
        numbers = index.numbers_of(keys, some)
        assert numbers is not None
        assert [index.keys[number] for number in numbers.tolist()] == [b"b", b"c", b"b"]
    assert sorted(index.keys) == [b"b", b"c"]
    none = index.numbers_of(keys, slice(0, 0))
    assert none is not None
    assert not len(none)


@pytest.mark.guarantee("G8")
def test_numbers_of_a_part_cost_nothing_for_the_others() -> None:
    """A large delivery is taken in many parts. If each cost as the whole, one sender would stop all intervals."""
    index, keys = KeyIndex(), column([b"x"] * 8 + [b"y" * MAX_KEY] * 300_000)
    tracemalloc.start()
    try:
        assert index.numbers_of(keys, slice(0, 8)) is not None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_long_keys_and_empty_columns_have_no_numbers() -> None:
    index = KeyIndex()
    assert index.numbers_of(column([b"a", b"x" * (MAX_KEY + 1)]), slice(None)) is None
    assert index.numbers_of(column([b"a", b"x" * MAX_KEY]), slice(None)) is not None
    without = RecordColumns(pa.record_batch({"key": ["a"]}), array("q", [1])).keys()
    assert index.numbers_of(without, slice(None)) is None


@pytest.mark.guarantee("G8")
def test_keys_that_meet_in_one_place_end_the_search() -> None:
    """A sender that chooses the keys must not make the search long."""
    index, keys = KeyIndex(1), [f"{number}".encode() for number in range(300)]
    assert index.numbers_of(column(keys), slice(None)) is None


def meeting(place: int, number: int) -> bytes:
    """A key of eight bytes whose first place is this one, in a table of any size: the steps of ``_places_of`` back."""
    whole = 1 << 64
    mixed = (place << 32 | number) * pow(MIXERS[0], -1, whole) % whole
    mixed ^= mixed >> 32
    return ((mixed ^ 8 * MIXERS[-1] % whole) * pow(MIXERS[0], -1, whole) % whole).to_bytes(8, "little")


@pytest.mark.guarantee("G8")
def test_growth_ends_although_keys_meet_in_one_place() -> None:
    """Added one by one, each needs few steps. Put back at once, some would need a step for each other key."""
    index = KeyIndex()
    keys = [meeting(0, number) for number in range(32)] + [meeting(place, place) for place in range(1, 400)]
    for key in keys:
        numbers = index.numbers_of(column([key]), slice(None))
        assert numbers is not None
        assert index.keys[numbers[0]] == key
    assert index.generation == 1
    numbers = index.numbers_of(column(keys[::-1]), slice(None))
    assert numbers is None or [index.keys[number] for number in numbers.tolist()] == keys[::-1]


@pytest.mark.guarantee("G13")
def test_a_window_of_few_panes_has_no_place_for_each_key() -> None:
    table, sizes = PaneTable(), 0
    keys = [f"{number}".encode() for number in range(20_000)]
    numbers = table.numbers_of(column(keys), range(20_000))
    assert numbers is not None
    table.changing(NAME, ["<i8"]).rows_of_numbers(numbers, table.index)
    for number in range(500):
        window = table.changing((10 + number, 20 + number, b""), ["<i8"])
        rows = window.rows_of_numbers(numbers[[number, 7, number]], table.index)
        assert [window.keys[row] for row in rows.tolist()] == [keys[number], b"7", keys[number]]
        sizes += window.bytes
    assert sizes < 1 << 20
    many = table.changing(NAME, ["<i8"])
    rows = many.rows_of_numbers(numbers[:2_000], table.index)
    assert [many.keys[row] for row in rows.tolist()] == keys[:2_000]
    assert many.numbered is not None


@pytest.mark.guarantee("G13")
def test_a_window_counts_no_rows_by_key_before_it_has_them() -> None:
    """Regression: its first results made it larger, so that the next window had no room by columns."""
    table, keys = PaneTable(), [f"{number}".encode() for number in range(1_000)]
    numbers = table.numbers_of(column(keys), range(1_000))
    assert numbers is not None
    window = table.changing(NAME, ["<i8"])
    window.rows_of_numbers(numbers, table.index)
    before = window.bytes
    window.finish(window.first_keys(0, 10))
    assert window.bytes == before
    assert len(window.rows_of_numbers(np.sort(numbers)[10:], table.index)) == 990
    assert window.bytes == before, "each pane still has its number"
    assert len(window.rows) == 990
    assert window.bytes == before + 60 * 1_000


@pytest.mark.guarantee("G1")
def test_a_reader_at_the_end_of_a_recovery_changes_nothing() -> None:
    """A thread that counts keys stops at each of its steps, while the event loop's thread ends the recovery."""
    steps = 0
    while steps >= 0:
        window = WindowPanes((0, 10, b""), ["<i8"])
        window.rows_of([b"a", b"b"])
        window.first = -1  # as an entry that was read leaves it
        index = KeyIndex()

        def goes_on(window: WindowPanes = window, index: KeyIndex = index) -> None:
            window.find_first()
            numbers = index.numbers_of(column([b"a", b"b", b"c"]), slice(None))
            assert numbers is not None
            window.rows_of_numbers(numbers, index)

        ended = run_amid(lambda window=window: window.first_keys(0, 1), steps, goes_on)  # type: ignore[misc]
        steps = -1 if ended else steps + 1
        assert (window.count, window.listed()) == (3, {b"a": 0, b"b": 1, b"c": 2})


def run_amid(reader: Callable[[], object], steps: int, other: Callable[[], None]) -> bool:
    """Run ``other`` after so many steps of the interpreter in the reader. Returns whether the reader has ended before.

    A compiled reader is one step.
    """
    left, former = steps, sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == -1:
                other()
        return trace

    sys.settrace(trace)
    try:
        reader()
    finally:
        sys.settrace(former)
    if left >= 0:
        other()
    return left >= 0


@pytest.mark.guarantee("G13")
def test_the_index_of_a_table_without_windows_is_empty() -> None:
    """A worker may have many intervals, and most of them be idle."""
    table = PaneTable()
    keys = [f"{number}".encode() for number in range(10_000)]
    window = table.changing(NAME, ["<i8"])
    numbers = table.numbers_of(column(keys), range(10_000))
    assert numbers is not None
    window.rows_of_numbers(numbers, table.index)
    table.settle()
    assert table.bytes > 1 << 20
    table.changing(NAME, ["<i8"]).close(keys)
    table.settle()
    assert (len(table.index.keys), table.bytes) == (0, table.index.bytes)


@pytest.mark.guarantee("G13")
def test_the_index_forgets_keys_of_former_windows() -> None:
    table = PaneTable()
    for first in range(0, 60_000, 5_000):
        keys = [f"{number}".encode() for number in range(first, first + 5_000)]
        numbers = table.numbers_of(column(keys), range(5_000))
        assert numbers is not None
        assert [table.index.keys[number] for number in numbers.tolist()] == keys
        assert len(table.index.keys) <= 25_000
        assert table.bytes == table.index.bytes >= 50 * len(table.index.keys)
    assert table.index.generation > 0


steps = st.lists(
    st.tuples(
        st.sampled_from(["keys", "column", "close", "finish", "reopen", "empty", "seal", "look"]),
        st.lists(short, min_size=1, max_size=6),
    ),
    max_size=20,
)


@given(steps)
@example([("column", [b"a", b"b"]), ("close", [b"a"]), ("column", [b"b", b"a"])])
@example([("column", [b"a"]), ("close", [b"a"]), ("reopen", [b"a"]), ("column", [b"a"])])
@example([("keys", [b"a"]), ("column", [b"a"])])
@example([("column", [b"a", b"b"]), ("finish", [b"x"]), ("column", [b"b", b"a"])])
@example([("column", [b"a", b"b"]), ("finish", [b"x"]), ("look", [b"a"]), ("reopen", [b"a"]), ("column", [b"a"])])
@example([("keys", [b"a", b"b", b"c"]), ("close", [b"b"]), ("finish", [b"x"]), ("finish", [b"x"])])
@example([("keys", [b"a", b"b", b"c"]), ("finish", [b"x"]), ("close", [b"c"]), ("keys", [b"d"]), ("finish", [b"x"])])
def test_rows_by_numbers_are_the_rows_of_the_keys(given_steps: list[Any]) -> None:
    """``finish``: as many keys as it has, from the first one on. A key leaves once in a batch."""
    table = PaneTable()
    window, model, closed = WindowPanes(NAME, ["<i8"]), dict[bytes, int](), set[int]()
    for kind, keys in given_steps:
        gone = {window.keys[row] for row in closed}
        if kind == "empty":
            table.index.empty()
        elif kind == "look":
            assert window.rows == model
            settled = {window.keys[row]: row for row in (*model.values(), *closed) if row < window.sealed}
            some = [key for key in keys if key not in model or key not in gone]
            assert [window.settled_row(key) for key in some] == list(map(settled.get, some))
        elif kind == "seal":
            window.closing, window.leaving, window.sealed, closed = {}, range(0), len(window.keys), set()
        elif kind == "finish":
            first = window.first_keys(0, len(keys))
            assert len(first) == min(len(keys), len(model))
            assert window.present(first, None)[0].tolist() == [0] * len(first)
            if not gone.intersection(first):
                window.finish(first)
                closed |= {model.pop(key) for key in first}
        elif kind in ("close", "reopen"):
            for key in keys:
                if kind == "close" and key in model and key not in gone:
                    window.close([key])
                    closed.add(model.pop(key))
                elif kind == "reopen" and key in window.closing and key not in model:
                    model[key] = window.closing[key]
                    window.reopen(key)
                    closed.discard(model[key])
        else:
            numbers = table.numbers_of(column(keys), range(len(keys))) if kind == "column" else None
            rows = window.rows_of(keys) if numbers is None else window.rows_of_numbers(numbers, table.index)
            for key, row in zip(keys, rows.tolist(), strict=True):
                assert window.keys[row] == key
                assert model.setdefault(key, row) == row
        assert (window.listed(), window.count) == (model, len(model))
        assert window.closed_rows().tolist() == sorted(closed)
        assert window.first < 0 or sorted(model.values()) == list(range(window.first, len(window.keys)))
        settled = {window.keys[row]: row for row in (*model.values(), *closed) if row < window.sealed}
        assert window.settled() == settled
    known = window.first
    window.find_first()
    assert known in (-1, window.first)
    assert window.listed() == model
    assert window.first < 0 or sorted(model.values()) == list(range(window.first, len(window.keys)))


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(31, 600))
def test_distinct_numbers(numbers: list[int], below: int) -> None:
    assert distinct(np.array(numbers, np.int64), below).tolist() == sorted(set(numbers))


@given(st.lists(st.integers(0, 30), max_size=30, unique=True).map(sorted), st.integers(0, 30), st.integers(0, 9))
def test_a_selector_finds_the_items_at_the_indexes(indexes: list[int], first: int, count: int) -> None:
    column = np.arange(100, 140)
    for some in (indexes, range(first, first + count), range(first, first + count, 2)):
        assert column[selector(some)].tolist() == [100 + index for index in some]


@given(st.lists(st.integers(-5, 40), max_size=30), st.integers(1, 20))
def test_the_starts_of_windows_are_each_named_once(numbers: list[int], size: int) -> None:
    starts = [number * size - 7 for number in numbers]
    assert starts_in(np.array(starts, np.int64), size) == sorted(set(starts))
