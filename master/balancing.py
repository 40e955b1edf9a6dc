"""What is to be moved, split and merged for the sake of load, and which keys no split can relieve (sections 7.1, 8.4).

Pure: a :class:`View` of loads and the time go in, requests come out. Why it settles, for loads that stay as they are:

- a move makes the sum of the squares of the workers' loads smaller, by an amount that has a lower bound: what is
  moved costs something, and its new owner stays below its old one's load by half of the imbalance;
- a split is of an interval that is too busy, and leaves a part of it on either side that is no candidate for a merge;
- a merge is of intervals that together are far from too busy.

Loads do not stay as they are, so there is a band between what sets off a series of moves and what ends it,
and whatever was just changed is left alone for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from millwheel.core.keys import KeyInterval
from millwheel.core.time import Duration, Timestamp, minutes, seconds
from millwheel.master.load_book import divide
from millwheel.master.messages import IntervalName, MergeIntervals, MoveInterval, Reshape, SplitInterval
from millwheel.rpc.v1 import inspection_pb2 as wire

__all__ = ["BalanceSettings", "Balancer", "HotKey", "IntervalView", "View", "WorkerView", "involved"]

_COOL_DOWN: Final = seconds(30)
_COLD_FOR: Final = minutes(5)
_FEWEST_HOT_RECORDS: Final = 2.0
"""Records a second of a key that is called hot: twenty in the ten seconds that a rate is taken over. The shares of
fewer are chance, and what costs half a second for each record is a slow hook."""
_WORTH_MOVING: Final = 0.005
"""Cores; less is not worth the moment for which a move keeps records waiting."""


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """``on`` False: nothing is moved, split or merged but on an operator's word. Loads are in cores.

    ``imbalance``: how far apart two workers may be before intervals are moved; ``balanced``: how close is close enough.
    ``split_busy``, ``split_bytes``, ``split_keys``: an interval with as much work, cache or keys is split.
    ``smallest_side``: the smallest part of the load that a split may leave on one side, 0 to 0.5.
    ``merge_busy``: neighbours that together stay below it for ``cold_for``, and far below the other two, are merged,
    unless an operator's split made one of them.
    ``cool_down``: for how long an interval is left alone after a change.
    ``most_operations``: the most changes under way at a time.
    """

    on: bool = True
    imbalance: float = 0.25
    balanced: float = 0.1
    split_busy: float = 0.5
    split_bytes: int = 512 << 20
    split_keys: int = 2_000_000
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


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker that tells its load. ``base``: what it costs beside its intervals."""

    name: str
    package: str = ""
    base: float = 0.0


@dataclass(frozen=True, slots=True)
class IntervalView:
    """One interval. ``code`` None: a stream's log. ``told``: its present owner has told of it.

    ``cost`` weighs work and memory, ``busy`` is the work alone; ``slow`` is the part of it in slow calls of hooks, with
    ``records`` a second. ``by_operator``: an operator's split made it.
    """

    journal: str
    sequencer: int
    incarnation: str
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
    told: bool = True
    has_parents: bool = False
    by_operator: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """Everything at one moment; intervals in the order of their keys within each incarnation."""

    workers: tuple[WorkerView, ...]
    intervals: tuple[IntervalView, ...]


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key that keeps its interval too busy, and cannot be split. ``share`` of its records, ``busy`` in cores."""

    incarnation: str
    journal: str
    key: bytes
    share: float
    busy: float


def involved(request: Reshape) -> str:
    """The journal that a request of a balancer names."""
    return request.interval.journal


@dataclass(slots=True)
class _Loads:
    """Workers' loads as they will be once everything decided is done."""

    workers: Mapping[str, WorkerView]
    load: dict[str, float]
    owned: dict[str, list[IntervalView]]

    def candidates(self, code: str | None) -> list[str]:
        """Who should own intervals of that code: as the assigner has it."""
        fit = [name for name, one in self.workers.items() if not one.package or one.package == code]
        return [name for name in fit if self.workers[name].package] or fit

    def least(self, code: str | None, but: str) -> str | None:
        """The least loaded candidate other than ``but``."""
        fit = [name for name in self.candidates(code) if name != but]
        return min(fit, key=lambda name: (self.load[name], name)) if fit else None

    def move(self, interval: IntervalView, to: str) -> None:
        """Count ``interval`` for another worker."""
        if interval.owner in self.load:
            self.load[interval.owner] -= interval.cost
            self.owned[interval.owner].remove(interval)
        if to in self.load:
            self.load[to] += interval.cost


@dataclass(slots=True)
class _Round:
    """One call of ``decide``: what is there, what may be touched, and what was decided so far."""

    loads: _Loads
    view: View
    free: Callable[[IntervalView], bool]
    slots: int
    taken: set[str] = field(default_factory=set)
    decided: list[Reshape] = field(default_factory=list)

    def may(self, interval: IntervalView) -> bool:
        """Whether an interval may be changed now."""
        return interval.told and interval.journal not in self.taken and self.free(interval)

    @property
    def is_full(self) -> bool:
        """Whether as much is under way as may be."""
        return len(self.decided) >= self.slots

    def decide(self, request: Reshape, *journals: str) -> None:
        """Have it done, and leave those intervals alone otherwise."""
        self.decided.append(request)
        self.taken.update(journals)


class Balancer:
    """Remembers what it has under way, and what was changed lately. Ask :meth:`decide` again and again."""

    def __init__(self, settings: BalanceSettings, fewest_intervals: int = 1) -> None:
        """``fewest_intervals``: merging leaves a computation with as many."""
        self.hot_keys: tuple[HotKey, ...] = ()
        """As of the last decision, the hottest first."""
        self._settings = settings
        self._fewest = fewest_intervals
        self._running: dict[str, tuple[Reshape, tuple[str, ...]]] = {}
        self._rest: dict[str, Timestamp] = {}
        self._cold: dict[tuple[str, str], Timestamp] = {}
        self._moving = False

    def decide(self, view: View, now: Timestamp) -> list[Reshape]:
        """What is to be begun now; say by :meth:`ended` when each is over, however it went."""
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

    def ended(self, request: Reshape, now: Timestamp) -> None:
        """A change is over; whether it was done or refused, its intervals are left alone for a while."""
        _, journals = self._running.pop(involved(request), (request, ()))
        for journal in journals:
            self._rest[journal] = Timestamp(now + self._settings.cool_down)

    # What may be touched.

    def _note(self, view: View, now: Timestamp) -> None:
        """An interval that was not there before has just been made, or this balancer begins: it rests first."""
        later = Timestamp(now + self._settings.cool_down)
        self._rest = {one.journal: self._rest.get(one.journal, later) for one in view.intervals}

    def _is_free(self, interval: IntervalView, now: Timestamp) -> bool:
        busy = any(interval.journal in journals for _, journals in self._running.values())
        return not busy and now >= self._rest[interval.journal]

    def _journals(self, request: Reshape, view: View) -> Iterator[str]:
        yield involved(request)
        if isinstance(request, MergeIntervals):
            for left, right in pairwise(view.intervals):
                if left.journal == involved(request):
                    yield right.journal

    def _loads(self, view: View) -> _Loads:
        workers = {one.name: one for one in view.workers}
        load = {one.name: one.base for one in view.workers}
        owned: dict[str, list[IntervalView]] = {name: [] for name in workers}
        for interval in view.intervals:
            if interval.owner in workers:
                load[interval.owner] += interval.cost
                owned[interval.owner].append(interval)
        loads = _Loads(workers, load, owned)
        for request, _ in self._running.values():
            # Told of by its old owner still, perhaps; it will not be there any more.
            moving = (one for one in view.intervals if one.journal == involved(request))
            for one in moving:
                if isinstance(request, MoveInterval) and one.owner != request.worker:
                    loads.move(one, request.worker)
        return loads

    # What is to be done.

    def _place(self, round_: _Round) -> None:
        """Intervals go to workers made for their code, where there are any."""
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
        """Intervals that are too busy, where somebody could take a half, or too large."""
        for interval in sorted(round_.view.intervals, key=lambda one: (-one.cost, one.journal)):
            if round_.is_full:
                return
            if interval.code is None or interval.has_parents or not round_.may(interval):
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

    def _hot_keys(self, view: View) -> Iterator[HotKey]:
        """A hook that blocks the loop for seconds makes no key hot: its seconds are none of the records' own load."""
        for interval in view.intervals:
            own = max(0.0, interval.busy - interval.slow)
            if interval.code is None or own < self._settings.split_busy:
                continue
            division = divide(interval.keys, interval.sample)
            if division is not None and division.smaller >= self._settings.smallest_side:
                continue
            for one in interval.sample:
                busy, records = one.share * own, one.share * interval.records
                often = records >= _FEWEST_HOT_RECORDS
                if often and busy >= self._settings.split_busy / 2 and one.key in interval.keys:
                    yield HotKey(interval.incarnation, interval.journal, one.key, one.share, busy)

    def _balance(self, round_: _Round) -> None:
        """Take from the most loaded, give to the least loaded: a series, once begun, goes on until all are close."""
        limit = self._settings.balanced if self._moving else self._settings.imbalance
        while not round_.is_full:
            found = self._best_move(round_.loads, limit, round_.may)
            if found is None:
                # What could be moved if it were not resting keeps the series alive.
                self._moving = self._moving and self._best_move(round_.loads, limit, lambda _: True) is not None
                return
            self._moving, limit = True, self._settings.balanced
            self._move(round_, *found)

    def _best_move(
        self, loads: _Loads, limit: float, may: Callable[[IntervalView], bool]
    ) -> tuple[IntervalView, str] | None:
        """Of the most loaded worker that can be relieved, the interval that leaves both sides with the least."""
        for source in sorted(loads.load, key=lambda name: (-loads.load[name], name)):
            best: tuple[float, str, IntervalView, str] | None = None
            targets = {one.code: loads.least(one.code, source) for one in loads.owned[source]}
            for interval in loads.owned[source]:
                target = targets[interval.code]
                if target is None or interval.cost < _WORTH_MOVING:
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
        """Neighbours that have been cold for long."""
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
        both: Iterable[IntervalView] = (one, other)
        limits = self._settings
        return (
            one.incarnation == other.incarnation
            and not any(each.code is None or each.has_parents or each.by_operator or not each.told for each in both)
            and sum(each.cost for each in both) < limits.merge_busy
            and sum(each.cached_bytes for each in both) < limits.split_bytes / 4
            and sum(each.count for each in both) < limits.split_keys / 4
        )
