"""Percentile watermarks: low watermarks without the stragglers, from the members' pending work (7.2). Pure.

The watermark of percentile p has two upper bounds. At least p percent of the timestamps at work are at or above the
first. The second is the newest record that the group has seen, which bounds the watermark where nothing is at
work.

The value is heuristic: records may arrive behind it. Like every watermark it never goes back. An answer is journaled
first. It is at least every earlier answer for the same percentile or a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millwheel.authority.members import AnyMemberState
from millwheel.model.sketch import TimestampSketch
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["WHOLE", "Work", "percentile_value", "work_of"]

WHOLE: Final = 10_000
"""All timestamps, in hundredths of a percent: this percentile is the low watermark itself."""


@dataclass(frozen=True, slots=True)
class Work:
    """The pending work of a group's members together.

    ``bound``: the upper bound from the newest records seen. ``silent``: the number of members that have not
    published. They hold the value at ``silent_at``, the smallest of their low watermarks.
    """

    sketch: TimestampSketch
    bound: int
    members: int
    silent: int
    silent_at: int = MAX_TIMESTAMP


def work_of(states: Iterable[AnyMemberState], since: int, bound: Callable[[Sequence[int]], int]) -> Work:
    """Combine the pending work that ``states`` published since ``since``. ``bound`` combines their newest records."""
    sketch, newest = TimestampSketch(), list[int]()
    members = silent = 0
    silent_at: int = MAX_TIMESTAMP
    for state in states:
        members += 1
        pending = state.pending_since(since)
        if pending is None:
            silent += 1
            silent_at = min(silent_at, state.watermark)
        else:
            sketch.merge(pending.sketch)
            newest.append(pending.newest)
    return Work(sketch, bound(newest) if newest else MIN_TIMESTAMP, members, silent, silent_at)


def percentile_value(work: Work, basis_points: int, low_watermark: int, decided: Mapping[int, int]) -> int:
    """Return the watermark of that percentile. ``decided`` maps percentiles to the values decided before."""
    before = [value for other, value in decided.items() if other >= basis_points]
    if basis_points >= WHOLE:
        return max([low_watermark, *before])
    left_out = work.sketch.total * (WHOLE - basis_points) // WHOLE
    at_work = work.sketch.at_rank(left_out)
    allowed = min(work.bound, work.silent_at, MAX_TIMESTAMP if at_work is None else at_work)
    return max([allowed, low_watermark, *before])
