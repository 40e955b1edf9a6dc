"""Of letters that are far apart, not all between them are read. The master reads them for people, who wait (4.2)."""

from __future__ import annotations

from random import Random

from millwheel.client.dead_letters import LetterFilter
from millwheel.client.dead_letters.letters import FAR


def ranges(start: int, end: int, *offsets: int) -> list[tuple[int, int]]:
    return list(LetterFilter(frozenset(offsets)).ranges(start, end))


def test_letters_that_are_far_apart_are_read_by_themselves() -> None:
    assert ranges(0, 9_000_000, 3, 5, 8_000_000) == [(3, 6), (8_000_000, 8_000_001)]
    assert ranges(0, 9_000, 0, FAR, 2 * FAR + 1) == [(0, FAR + 1), (2 * FAR + 1, 2 * FAR + 2)]
    assert ranges(4, 8, 3, 8, 9) == [], "the log has none of them"
    assert list(LetterFilter().ranges(4, 8)) == [(4, 8)], "any letter may be meant"
    assert list(LetterFilter().ranges(4, 4)) == []


def test_each_letter_that_is_meant_is_in_one_range() -> None:
    draw = Random(1)
    for _ in range(200):
        start, end = sorted(draw.choices(range(10_000), k=2))
        offsets = set(draw.choices(range(10_000), k=draw.randrange(1, 40)))
        found = ranges(start, end, *offsets)
        read = [offset for first, after in found for offset in range(first, after)]
        assert read == sorted(set(read)), "in order, and none twice"
        assert {one for one in offsets if start <= one < end} <= set(read) <= set(range(start, end))
        assert len(read) <= len(offsets) * (FAR + 1)
