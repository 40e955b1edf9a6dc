"""Decides which intervals to move, split or merge because of load, and finds keys too hot to split (7.1, 8.4).

Pure: a :class:`ClusterView` of loads and the time go in, requests come out. For constant loads the decisions come to
an end, for these reasons:

- A move reduces the sum of the squares of the workers' loads by an amount with a lower bound. The moved interval
  has a minimum cost, and its new owner stays below the old owner's load by half of the imbalance.
- A split divides an interval that is too busy. The part on either side is too large to be merged.
- A merge joins intervals that together are far from too busy.

Real loads vary. So a series of moves starts at a larger imbalance than it ends at, and an interval rests for a while
after each change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from millwheel.master.load_book import divide
from millwheel.master.messages import IntervalName, MergeIntervals, MoveInterval, ReshapeRequest, SplitInterval
from millwheel.master.trends import SOON_SECONDS, Pace
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.model.time import Duration, Timestamp, minutes, seconds
from millwheel.rpc.v1 import inspection_pb2 as wire

__all__ = ["BalanceSettings", "Balancer", "ClusterView", "HotKey", "IntervalView", "WorkerView", "involved"]

_COOL_DOWN: Final = seconds(30)
_COLD_FOR: Final = minutes(5)
_MIN_HOT_RECORDS_PER_SECOND: Final = 2.0
"""Records per second of a key that counts as hot: twenty in the ten seconds over which a rate is measured.

With fewer records, the shares of keys are random. A key that costs half a second per record has a slow hook.
"""
_MIN_HOT_BUSY: Final = 0.8
"""In cores. An interval that works for less of its time has time left, unless its
backlog shows that others take the time of its process."""
_MIN_MOVED_CORES: Final = 0.005
"""In cores. A cheaper interval is not worth the short time for which a move delays its records."""


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """Loads are in cores.

    - ``on`` False: intervals are moved, split and merged only at an operator's request.
    - ``imbalance``: the difference between two workers' loads that starts a series of moves.
    - ``balanced``: the difference at which the series ends.
    - ``split_busy``, ``split_bytes``, ``split_keys``: an interval with this much work, cache or keys is split.
    - ``smallest_side``: the smallest part of the load that a split may leave on one side, 0 to 0.5.
    - ``merge_busy``: neighbours are merged if together they stay below this for ``cold_for``, and below
      ``merge_part`` of the limits for cache and keys. Intervals from an operator's split are never merged because
      of load.
    - ``cool_down``: how long an interval rests after a change.
    - ``most_operations``: the maximum number of changes in progress.
    """

    on: bool = True
    imbalance: float = 0.25
    balanced: float = 0.1
    split_busy: float = 0.5
    split_bytes: int = 512 << 20
    split_keys: int = 2_000_000
    merge_part: float = 0.25
    smallest_side: float = 0.1
    merge_busy: float = 0.04
    cold_for: Duration = _COLD_FOR
    cool_down: Duration = _COOL_DOWN
    most_operations: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.balanced <= self.imbalance:
            raise ValueError(f"balanced is {self.balanced}: give a number above 0, up to imbalance ({self.imbalance})")
        if not 0 < self.smallest_side <= 0.5:
            raise ValueError(f"smallest_side is {self.smallest_side}: give a number above 0, up to 0.5")
        if not 0 <= self.merge_busy < self.split_busy * self.smallest_side:
            most = self.split_busy * self.smallest_side
            raise ValueError(
                f"merge_busy is {self.merge_busy}: give a number from 0 to below split_busy times smallest_side"
                f" ({most:g}), or what was just split would be merged again"
            )
        if self.most_operations < 1 or self.cool_down < 0 or self.cold_for < 0:
            raise ValueError("most_operations must be 1 at least, and cool_down and cold_for no less than 0")
        if min(self.split_bytes, self.split_keys) < 1:
            raise ValueError("split_bytes and split_keys must be 1 at least")

    def for_cache(self, cache_bytes: int) -> BalanceSettings:
        """These settings where the states of an interval may take so much memory.

        Invariant: an interval whose states fit into its cache is not split for its size. After a split the caches of
        both parts are empty: each key that they meet, also a new one, has its row read. Who may break it: a limit of
        splits below the limit of the cache. A merge empties caches, too, so its limits stay as they are.
        """
        times = max(1.0, 2 * cache_bytes / self.split_bytes)
        return replace(
            self,
            split_bytes=int(self.split_bytes * times),
            split_keys=int(self.split_keys * times),
            merge_part=self.merge_part / times,
        )


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker with a recent load report. ``base``: its cost in cores besides its intervals."""

    name: str
    package: str = ""
    base: float = 0.0


@dataclass(frozen=True, slots=True)
class IntervalView:
    """One interval. ``code`` None: a stream's log. ``reported``: its present owner has reported its load.

    ``cost`` combines work and memory; ``busy`` is the work alone. ``slow`` is the part of ``busy`` spent in slow
    calls of hooks. ``records`` is a rate per second. ``by_operator``: an operator's split made it. ``keeps_bounds``: it
    is neither split nor merged now, because it still needs its parents' journals, or is quarantined. ``backlog``:
    what comes and goes in it, if work waits in it.

    It has many attributes: each is one figure that a rule of the balancer reads.
    """

    journal: str
    sequencer: int
    incarnation: IncarnationId
    keys: KeyInterval
    owner: str
    code: str | None
    cost: float
    busy: float = 0.0
    slow: float = 0.0
    records: float = 0.0
    cached_bytes: int = 0
    count: int = 0
    sample: tuple[wire.KeyLoad, ...] = ()
    reported: bool = True
    keeps_bounds: bool = False
    by_operator: bool = False
    backlog: Pace | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at one moment. Intervals are in key order within each incarnation."""

    workers: tuple[WorkerView, ...]
    intervals: tuple[IntervalView, ...]
    complete: frozenset[IncarnationId] = frozenset()
    """Computations whose topology may have no more intervals."""


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key that keeps its interval too busy and cannot be split.

    ``share``: its part of the records. ``busy``: in cores.
    """

    incarnation: IncarnationId
    journal: str
    key: bytes
    share: float
    busy: float


def involved(request: ReshapeRequest) -> str:
    """Return the journal that a balancer's request names."""
    return request.interval.journal


@dataclass(slots=True)
class _Loads:
    """Workers' loads as they will be after all decided changes."""

    workers: Mapping[str, WorkerView]
    load: dict[str, float]
    owned: dict[str, list[IntervalView]]
    _fit: dict[str | None, list[str]] = field(default_factory=dict)

    def candidates(self, code: str | None) -> list[str]:
        """Return the workers preferred for that code, by the assigner's rule."""
        found = self._fit.get(code)
        if found is None:
            fit = [name for name, one in self.workers.items() if not one.package or one.package == code]
            found = self._fit[code] = [name for name in fit if self.workers[name].package] or fit
        return found

    def least(self, code: str | None, but: str) -> str | None:
        """Return the least loaded candidate other than ``but``."""
        fit = [name for name in self.candidates(code) if name != but]
        return min(fit, key=lambda name: (self.load[name], name)) if fit else None

    def move(self, interval: IntervalView, to: str) -> None:
        """Count ``interval`` as owned by another worker."""
        if interval.owner in self.load:
            self.load[interval.owner] -= interval.cost
            self.owned[interval.owner].remove(interval)
        if to in self.load:
            self.load[to] += interval.cost


@dataclass(slots=True)
class _Round:
    """One call of ``decide``: the view, which intervals may change, and the decisions so far."""

    loads: _Loads
    view: ClusterView
    free: Callable[[IntervalView], bool]
    slots: int
    taken: set[str] = field(default_factory=set)
    decided: list[ReshapeRequest] = field(default_factory=list)

    def may(self, interval: IntervalView) -> bool:
        """Whether an interval may be changed now."""
        return interval.reported and interval.journal not in self.taken and self.free(interval)

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of changes is reached."""
        return len(self.decided) >= self.slots

    def decide(self, request: ReshapeRequest, *journals: str) -> None:
        """Decide ``request``, and exclude those intervals from other decisions."""
        self.decided.append(request)
        self.taken.update(journals)


class Balancer:
    """Keeps the changes in progress and the recent changes. Call :meth:`decide` repeatedly."""

    def __init__(self, settings: BalanceSettings, fewest_intervals: int = 1) -> None:
        """``fewest_intervals``: merges leave a computation with at least this many."""
        self.hot_keys: tuple[HotKey, ...] = ()
        """From the last decision, the hottest first."""
        self._settings = settings
        self._fewest = fewest_intervals
        self._running: dict[str, tuple[ReshapeRequest, tuple[str, ...]]] = {}
        self._rest: dict[str, Timestamp] = {}
        self._cold: dict[tuple[str, str], Timestamp] = {}
        self._moving = False

    def decide(self, view: ClusterView, now: Timestamp) -> list[ReshapeRequest]:
        """Return the changes to start now. Call :meth:`ended` for each one when it is over, also if it failed."""
        self._note(view, now)
        self.hot_keys = tuple(sorted(self._hot_keys(view), key=lambda one: -one.busy))
        slots = self._settings.most_operations - len(self._running)
        if not self._settings.on or slots <= 0 or not view.workers:
            return []
        round_ = _Round(self._loads(view), view, lambda one: self._is_free(one, now), slots)
        self._place(round_)
        self._split(round_)
        self._balance(round_)
        if not round_.decided and not self._running:
            self._merge(round_, now)
        for request in round_.decided:
            self._running[involved(request)] = request, tuple(self._journals(request, view))
        return round_.decided

    def ended(self, request: ReshapeRequest, now: Timestamp) -> None:
        """Record that a change is over. Its intervals rest for a while, whether it was done or refused."""
        _, journals = self._running.pop(involved(request), (request, ()))
        for journal in journals:
            self._rest[journal] = Timestamp(now + self._settings.cool_down)

    # Which intervals may change.

    def _note(self, view: ClusterView, now: Timestamp) -> None:
        """New intervals rest first, and so do all intervals when this balancer starts."""
        later = Timestamp(now + self._settings.cool_down)
        self._rest = {one.journal: self._rest.get(one.journal, later) for one in view.intervals}

    def _is_free(self, interval: IntervalView, now: Timestamp) -> bool:
        busy = any(interval.journal in journals for _, journals in self._running.values())
        return not busy and now >= self._rest[interval.journal]

    def _journals(self, request: ReshapeRequest, view: ClusterView) -> Iterator[str]:
        yield involved(request)
        if isinstance(request, MergeIntervals):
            for left, right in pairwise(view.intervals):
                if left.journal == involved(request):
                    yield right.journal

    def _loads(self, view: ClusterView) -> _Loads:
        workers = {one.name: one for one in view.workers}
        load = {one.name: one.base for one in view.workers}
        owned: dict[str, list[IntervalView]] = {name: [] for name in workers}
        for interval in view.intervals:
            if interval.owner in workers:
                load[interval.owner] += interval.cost
                owned[interval.owner].append(interval)
        loads = _Loads(workers, load, owned)
        for request, _ in self._running.values():
            # The old owner may still report the interval, although it is about to lose it.
            moving = (one for one in view.intervals if one.journal == involved(request))
            for one in moving:
                if isinstance(request, MoveInterval) and one.owner != request.worker:
                    loads.move(one, request.worker)
        return loads

    # The decisions.

    def _place(self, round_: _Round) -> None:
        """Move intervals to workers bound to their code, where such workers exist."""
        for interval in round_.view.intervals:
            if round_.is_full:
                return
            candidates = round_.loads.candidates(interval.code)
            if interval.owner in round_.loads.load and candidates and interval.owner not in candidates:
                target = round_.loads.least(interval.code, interval.owner)
                if target is not None and round_.may(interval):
                    self._move(round_, interval, target)

    def _move(self, round_: _Round, interval: IntervalView, target: str) -> None:
        round_.loads.move(interval, target)
        request = MoveInterval(IntervalName(journal=interval.journal), target, expected=interval.sequencer)
        round_.decide(request, interval.journal)

    def _split(self, round_: _Round) -> None:
        """Split intervals that are too large, or that are too busy where another worker could take a half."""
        for interval in sorted(round_.view.intervals, key=lambda one: (-one.cost, one.journal)):
            if round_.is_full:
                return
            if interval.code is None or interval.keeps_bounds or not round_.may(interval):
                continue
            if interval.incarnation in round_.view.complete:
                continue
            relieved = len(round_.loads.candidates(interval.code)) > 1
            if (relieved and self._is_busy(interval)) or self._is_large(interval):
                division = divide(interval.keys, interval.sample)
                if division is not None and division.smaller >= self._settings.smallest_side:
                    name = IntervalName(journal=interval.journal)
                    split = SplitInterval(name, division.at, expected=interval.sequencer)
                    round_.decide(split, interval.journal)

    def _is_busy(self, interval: IntervalView) -> bool:
        return interval.busy >= self._settings.split_busy

    def _is_large(self, interval: IntervalView) -> bool:
        limits = self._settings
        return interval.cached_bytes >= limits.split_bytes or interval.count >= limits.split_keys

    def _hot_keys(self, view: ClusterView) -> Iterator[HotKey]:
        """Find keys too hot to split.

        A hook that blocks the event loop for seconds makes no key hot, because that time is not the records' own
        load. Neither is a key hot whose interval has time left, or catches up soon: an only key has all its records.
        """
        for interval in view.intervals:
            own, backlog = max(0.0, interval.busy - interval.slow), interval.backlog
            least = self._settings.split_busy if backlog else max(self._settings.split_busy, _MIN_HOT_BUSY)
            soon = backlog is not None and backlog.left is not None and backlog.left <= SOON_SECONDS
            if interval.code is None or own < least or soon:
                continue
            division = divide(interval.keys, interval.sample)
            if division is not None and division.smaller >= self._settings.smallest_side:
                continue
            for one in interval.sample:
                busy, records = one.share * own, one.share * interval.records
                often = records >= _MIN_HOT_RECORDS_PER_SECOND
                if often and busy >= self._settings.split_busy / 2 and one.key in interval.keys:
                    yield HotKey(interval.incarnation, interval.journal, one.key, one.share, busy)

    def _balance(self, round_: _Round) -> None:
        """Move intervals from the most loaded to the least loaded.

        A started series continues until all loads are close.
        """
        limit = self._settings.balanced if self._moving else self._settings.imbalance
        while not round_.is_full:
            found = self._best_move(round_.loads, limit, round_.may)
            if found is None:
                # An interval that could move if it were not resting keeps the series alive.
                self._moving = self._moving and self._best_move(round_.loads, limit, lambda _: True) is not None
                return
            self._moving, limit = True, self._settings.balanced
            self._move(round_, *found)

    def _best_move(
        self, loads: _Loads, limit: float, may: Callable[[IntervalView], bool]
    ) -> tuple[IntervalView, str] | None:
        """Return the best move from the most loaded worker that can be relieved.

        The best move leaves the larger load of both workers as small as possible.
        """
        for source in sorted(loads.load, key=lambda name: (-loads.load[name], name)):
            best: tuple[float, str, IntervalView, str] | None = None
            targets = {one.code: loads.least(one.code, source) for one in loads.owned[source]}
            for interval in loads.owned[source]:
                target = targets[interval.code]
                if target is None or interval.cost < _MIN_MOVED_CORES:
                    continue
                high, low = loads.load[source], loads.load[target]
                if high - low <= limit or low + interval.cost > high - limit / 2 or not may(interval):
                    continue
                after = max(high - interval.cost, low + interval.cost)
                if best is None or (after, interval.journal) < best[:2]:
                    best = after, interval.journal, interval, target
            if best is not None:
                return best[2], best[3]
        return None

    def _merge(self, round_: _Round, now: Timestamp) -> None:
        """Merge neighbours that have been cold for long enough."""
        cold = {}
        for pair in pairwise(round_.view.intervals):
            if self._is_cold(*pair):
                names = (pair[0].journal, pair[1].journal)
                cold[names] = self._cold.get(names, now)
        self._cold = cold
        left: dict[str, int] = {}
        for one in round_.view.intervals:
            left[one.incarnation] = left.get(one.incarnation, 0) + 1
        for one, other in pairwise(round_.view.intervals):
            names = (one.journal, other.journal)
            waited = names in cold and now - cold[names] >= self._settings.cold_for
            if waited and left[one.incarnation] > self._fewest and round_.may(one) and round_.may(other):
                if round_.is_full:
                    return
                owners = [name for name in (one.owner, other.owner) if name in round_.loads.load]
                owner = min(owners, key=lambda name: (round_.loads.load[name], name), default="")
                merge = MergeIntervals(IntervalName(journal=one.journal), owner, expected=one.sequencer)
                round_.decide(merge, *names)
                left[one.incarnation] -= 1

    def _is_cold(self, one: IntervalView, other: IntervalView) -> bool:
        limits = self._settings
        return (
            one.incarnation == other.incarnation
            and one.cost + other.cost < limits.merge_busy
            and one.cached_bytes + other.cached_bytes < limits.split_bytes * limits.merge_part
            and one.count + other.count < limits.split_keys * limits.merge_part
            and _may_merge(one)
            and _may_merge(other)
        )


def _may_merge(one: IntervalView) -> bool:
    return one.code is not None and one.reported and not one.keeps_bounds and not one.by_operator
