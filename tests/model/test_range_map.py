"""RangeMap against a naive model, and its costs at the paper's figure (7.1, 7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.range_map import RangeMap

POINTS = [bytes([n]) for n in range(1, 13)]
"""Where intervals may begin and end."""

PROBES = [b"", b"\x00", *(p for point in POINTS for p in (point, point + b"\x00")), b"\xff"]
"""A key in every range between two points, so that equal values here are equal values everywhere."""


@st.composite
def intervals(draw: st.DrawFn) -> KeyInterval:
    start, end = sorted(draw(st.lists(st.integers(0, 13), min_size=2, max_size=2, unique=True)))
    return KeyInterval(b"" if start == 0 else POINTS[start - 1], None if end == 13 else POINTS[end - 1])


steps = st.tuples(intervals(), st.integers(0, 5))


def keys(*names: bytes) -> list[KeyInterval]:
    """Neighbouring intervals that start at b"" and at each name."""
    bounds: list[bytes | None] = [b"", *names, None]
    return [KeyInterval(start or b"", end) for start, end in pairwise(bounds)]


@pytest.mark.paper(section="7.1")
@settings(max_examples=400)
@given(st.lists(steps, max_size=25), intervals())
def test_interval_map_equals_a_map_of_single_keys(history: list[tuple[KeyInterval, int]], window: KeyInterval) -> None:
    made: RangeMap[int] = RangeMap()
    model: dict[bytes, int | None] = dict.fromkeys(PROBES)
    for interval, value in history:
        made.assign(interval, value)
        model.update({key: value for key in PROBES if key in interval})
        assert made.exact(interval) == value

    assert {key: value for piece, value in made.items() for key in PROBES if key in piece} == {
        key: value for key, value in model.items() if value is not None
    }
    pieces = [interval for interval, _ in made.items()]
    assert len(pieces) == len(made)
    for left, right in pairwise(pieces):
        assert left.end is not None
        assert left.end <= right.start
    assert [piece for piece, _ in made.overlapping(window)] == [piece for piece in pieces if piece.overlaps(window)]
    assert list(made.overlapping_values(window)) == [value for _, value in made.overlapping(window)]
    missing = {key for key in PROBES if key in window and model[key] is None}
    assert {key for key in PROBES for gap in made.gaps(window) if key in gap} == missing
    assert list(RangeMap.from_items(reversed(list(made.items()))).items()) == list(made.items())


@pytest.mark.paper(section="7.1")
def test_a_cut_piece_keeps_its_value_on_both_sides() -> None:
    made = RangeMap.from_items([(ALL_KEYS, "old")])
    made.assign(KeyInterval(b"g", b"p"), "new")
    assert list(made.items()) == [
        (KeyInterval(b"", b"g"), "old"),
        (KeyInterval(b"g", b"p"), "new"),
        (KeyInterval(b"p", None), "old"),
    ]


@pytest.mark.paper(section="7.1")
def test_equal_neighbours_with_two_owners_stay_two_intervals() -> None:
    made = RangeMap.from_items([(piece, 1) for piece in keys(b"m")])
    assert [piece for piece, _ in made.items()] == keys(b"m")


@pytest.mark.guarantee("G11")
def test_overlapping_items_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"\['a', 'n'\) and \['m', \+inf\) overlap"):
        RangeMap.from_items([(KeyInterval(b"m"), 1), (KeyInterval(b"a", b"n"), 2)])
    with pytest.raises(ValueError, match="overlap"):
        RangeMap.from_items([(KeyInterval(b"a"), 1), (KeyInterval(b"b"), 2)])


@pytest.mark.guarantee("G11")
def test_gaps_name_the_uncovered_keys() -> None:
    made = RangeMap.from_items([(KeyInterval(b"c", b"f"), 1), (KeyInterval(b"m", b"p"), 2)])
    assert made.gaps() == [KeyInterval(b"", b"c"), KeyInterval(b"f", b"m"), KeyInterval(b"p")]
    assert made.gaps(KeyInterval(b"d", b"n")) == [KeyInterval(b"f", b"m")]
    assert made.gaps(KeyInterval(b"m", b"n")) == []
    assert RangeMap().gaps() == [ALL_KEYS]


@pytest.mark.guarantee("G7", section="7.2")
@settings(max_examples=200)
@given(st.lists(st.tuples(steps, st.booleans()), max_size=25))
def test_a_list_of_values_stays_as_it_was(history: list[tuple[tuple[KeyInterval, int], bool]]) -> None:
    """A base of the authority keeps such a list while members move."""
    made: RangeMap[int] = RangeMap()
    taken: list[tuple[Sequence[int], list[int]]] = []
    for (interval, value), is_taken in history:
        made.assign(interval, value)
        if is_taken:
            taken.append((made.values(), list(made.values())))
        assert list(made.values()) == [found for _, found in made.items()]
    assert all(list(values) == copy for values, copy in taken)


def test_only_a_whole_piece_is_exact() -> None:
    made = RangeMap.from_items([(KeyInterval(b"c", b"f"), 1)])
    assert made.exact(KeyInterval(b"c", b"e")) is None
    assert made.exact(KeyInterval(b"c", b"f")) == 1
    assert made.values() == [1]


@pytest.mark.paper(section="7.2")
def test_replacing_one_of_500_000_intervals_is_a_binary_search() -> None:
    bounds: list[bytes | None] = [b"", *(b"%07d" % n for n in range(1, 500_000)), None]
    pieces = [KeyInterval(start or b"", end) for start, end in pairwise(bounds)]
    made = RangeMap.from_items((piece, 0) for piece in pieces)
    chosen = pieces[::500]
    began = perf_counter()
    for piece in chosen:
        made.assign(piece, 1)
    each = (perf_counter() - began) / len(chosen)
    assert each < 0.001, f"{each * 1e6:.0f} us for one assignment"
    assert sum(made.values()) == len(chosen)
