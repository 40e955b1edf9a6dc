"""Compares results with the counts that follow from the input, and reckons rates and pauses. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from bench.kafka_count.hits import Window

__all__ = ["Arrival", "Comparison", "compare", "longest_pause", "steady_rate"]

Arrival = tuple[float, int]
"""Seconds on some clock, and how many records the results that came then had counted."""
_STARTING: Final = 0.1
"""The share of the records that :func:`steady_rate` leaves out."""
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is wrong with the results. All is 0 if each record was counted once, and each window has one result.

    Attributes:
        lost: Records that were not counted.
        twice: Records that were counted more often than they came.
        results_twice: Results of a window that had one before.
        examples: Some of the windows that are wrong, as text.
    """

    lost: int
    twice: int
    results_twice: int
    examples: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return self.lost == self.twice == self.results_twice == 0


def compare(expected: Mapping[Window, int], results: Iterable[tuple[Window, int]]) -> Comparison:
    """Compare all results with the expected counts. The first result of a window counts, and each other one is wrong.

    A result of a window that should have none counts as so many records twice.
    """
    found: defaultdict[Window, list[int]] = defaultdict(list)
    for window, count in results:
        found[window].append(count)
    lost = twice = again = 0
    examples = []
    for window in expected.keys() | found.keys():
        wanted, got = expected.get(window, 0), found.get(window, [])
        first = got[0] if got else 0
        lost += max(0, wanted - first)
        twice += max(0, first - wanted)
        again += max(0, len(got) - 1)
        if got != [wanted]:
            examples.append(f"{window[0]} from {window[1]}: {wanted} records, and the results {got}")
    return Comparison(lost, twice, again, tuple(sorted(examples)[:_SHOWN]))


def longest_pause(arrivals: Sequence[Arrival]) -> float:
    """The longest time between two results that follow each other, in seconds. 0 if there are not two."""
    return max((after - before for (before, _), (after, _) in pairwise(arrivals)), default=0.0)


def steady_rate(arrivals: Sequence[Arrival], records: int) -> float:
    """Records per second, from the moment when a tenth of them was counted until all were.

    So it leaves out how a program starts. 0 if all came at one moment.
    """
    counted, start = 0, None
    for at, more in arrivals:
        counted += more
        if start is None and counted >= records * _STARTING:
            start = at, counted
    if start is None or arrivals[-1][0] == start[0]:
        return 0.0
    return (counted - start[1]) / (arrivals[-1][0] - start[0])
