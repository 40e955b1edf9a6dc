"""Low watermarks with the stragglers left out, from what members have told of their work (7.2). Pure.

A percentile watermark of a computation is at most the timestamp that so many percent of the timestamps at work in it
are at or above, and at most the newest record that it has seen: where nothing is at work, time is as far as the
records that came. It is a heuristic value: records may come behind it. Like every watermark it never goes back: what
is answered was journaled, and is at least what was answered for it, and for any larger percentile, before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millwheel.authority.shares import AnyShare
from millwheel.core.sketch import TimestampSketch
from millwheel.core.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["WHOLE", "Work", "percentile_value", "work_of"]

WHOLE: Final = 10_000
"""All of them, in hundredths of a percent: the low watermark itself."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the members of a computation have told together.

    ``bound``: how far time can be at most. ``silent``: members that have not told, and that hold the value at
    ``silent_at``, the least of their low watermarks.
    """

    sketch: TimestampSketch
    bound: int
    members: int
    silent: int
    silent_at: int = MAX_TIMESTAMP


def work_of(shares: Iterable[AnyShare], since: int, bound: Callable[[Sequence[int]], int]) -> Work:
    """What ``shares`` have told since ``since``; ``bound`` is of the newest records that each of them has seen."""
    sketch, newest = TimestampSketch(), list[int]()
    members = silent = 0
    silent_at: int = MAX_TIMESTAMP
    for share in shares:
        members += 1
        told = share.told(since)
        if told is None:
            silent += 1
            silent_at = min(silent_at, share.watermark)
        else:
            sketch.merge(told.sketch)
            newest.append(told.newest)
    return Work(sketch, bound(newest) if newest else MIN_TIMESTAMP, members, silent, silent_at)


def percentile_value(work: Work, basis_points: int, low_watermark: int, decided: Mapping[int, int]) -> int:
    """The watermark of that percentile, given what was ``decided`` before and the low watermark."""
    before = [value for other, value in decided.items() if other >= basis_points]
    if basis_points >= WHOLE:
        return max([low_watermark, *before])
    left_out = work.sketch.total * (WHOLE - basis_points) // WHOLE
    at_work = work.sketch.at_rank(left_out)
    allowed = min(work.bound, work.silent_at, MAX_TIMESTAMP if at_work is None else at_work)
    return max([allowed, low_watermark, *before])
