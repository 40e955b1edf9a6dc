"""Measures in a history how long a fault had effects. Pure.

A delay is abnormal if it is over a second, and over twice the ninetieth percentile before the fault. Delays (see
tests.faults.progress) are back to normal after the last abnormal one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tests.faults.history import Event, Mended, Received, Struck
from tests.faults.progress import Arrival, Progress

_BEFORE: Final = 5_000_000
_LEAST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds: the ninetieth percentile of delays before the fault, the longest delay after it, and the time from the
    fault until delays were normal."""

    normal: float
    longest: float
    back: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """``lasted``: seconds until the fault's end. ``silent``: the longest time without a result."""

    fault: str
    text: str
    lasted: float
    silent: float
    records: Delays
    windows: Delays
    recovered: bool


def recoveries(events: Iterable[Event]) -> list[Recovery]:
    """The recoveries of a history's faults, in their order."""
    progress, records, windows, struck = Progress(), list[Arrival](), list[Arrival](), list[Struck]()
    mended: dict[tuple[str, bool], int] = {}
    for event in events:
        came = progress.take(event)
        if isinstance(event, Received):
            (windows if event.stream == "windows" else records).extend(came)
        elif isinstance(event, Struck):
            struck.append(event)
        elif isinstance(event, Mended):
            mended[event.fault, event.recovered] = event.at
    found = []
    for number, fault in enumerate(struck):
        until = struck[number + 1].at if number + 1 < len(struck) else 1 << 62
        found.append(
            Recovery(
                fault.fault,
                fault.text,
                (mended.get((fault.fault, False), fault.at) - fault.at) / 1e6,
                _silent([one.at for one in records], fault.at, until),
                _delays(records, fault.at, until),
                _delays(windows, fault.at, until),
                (fault.fault, True) in mended,
            )
        )
    return found


def _delays(arrivals: Sequence[Arrival], struck: int, until: int) -> Delays:
    before = sorted(one.delay for one in arrivals if struck - _BEFORE <= one.at < struck)
    normal = before[len(before) * 9 // 10] if before else 0
    since = [one for one in arrivals if struck <= one.at < until]
    slow = [one.at for one in since if one.delay > max(_LEAST, 2 * normal)]
    longest = max((one.delay for one in since), default=0)
    return Delays(normal / 1e6, longest / 1e6, (max(slow) - struck) / 1e6 if slow else 0.0)


def _silent(moments: Sequence[int], struck: int, until: int) -> float:
    """The most seconds from one result to the next, from the last result before the fault on."""
    first = max(0, bisect_left(moments, struck) - 1)
    seen = [at for at in moments[first:] if at < until]
    return max((b - a for a, b in pairwise(seen)), default=0) / 1e6


def table(found: Sequence[Recovery]) -> list[str]:
    """The text for people, in seconds."""
    head = f"{'':42}{'':>8}{'longest':>9}  {'records: delay':>20}{'back':>7}  {'windows: delay':>20}{'back':>7}"
    lines = [
        head,
        f"{'fault':42}{'lasted':>8}{'silence':>9}  {'usual':>10}{'longest':>10}{'after':>7}  "
        f"{'usual':>10}{'longest':>10}{'after':>7}",
    ]
    for one in found:
        line = f"{one.fault:42}{one.lasted:8.1f}{one.silent:9.1f}"
        for delays in (one.records, one.windows):
            line += f"  {delays.normal:10.2f}{delays.longest:10.1f}{delays.back:7.1f}"
        lines.append(line + ("" if one.recovered else "  NOT BACK TO NORMAL"))
    return lines
