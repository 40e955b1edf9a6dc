"""The placement policy of a candidate: for which shards it competes, and which it gives up (7.2). No I/O.

A candidate sees the coordinator's data: which candidates exist, and who was elected for which shard. The election
decides the owner. This policy decides only who tries first, so that shards are spread, and which shards an overloaded
candidate gives up. Two candidates with different views both compete, and one is elected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from zlib import crc32

__all__ = ["ElectionView", "PlacementDecision", "PlacementDelays", "PlacementPolicy"]


@dataclass(frozen=True, slots=True)
class ElectionView:
    """The coordinator's view: the existing candidates, and the elected candidate of each shard."""

    candidates: frozenset[str]
    leaders: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class PlacementDelays:
    """The settings of the placement policy. All times are in seconds.

    - ``patience``: how long this candidate waits for each candidate that serves fewer shards.
    - ``settle``: how long another candidate must have had at least two shards fewer before shards are given up.
    - ``pause``: how long this candidate does not compete for a shard that it could not open.
    - ``backing_off``: how long all other candidates go first after that, for every shard.
    """

    patience: float = 0.5
    settle: float = 10.0
    pause: float = 1.0
    backing_off: float = 30.0


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """A placement decision.

    ``compete``: compete for these shards now. ``give_up``: stop serving these shards. ``present``: stay registered as a
    candidate.
    """

    compete: tuple[int, ...] = ()
    give_up: tuple[int, ...] = ()
    present: bool = True


class PlacementPolicy:
    """The placement policy of one candidate. Times are seconds on any clock that does not go back."""

    def __init__(self, name: str, shards: int, delays: PlacementDelays | None = None) -> None:
        self._name = name
        self._shards = shards
        self._delays = delays or PlacementDelays()
        self._vacant_since: dict[int, float] = {}
        self._not_before: dict[int, float] = {}
        self._uneven_since: float | None = None
        self._backing_off_until = float("-inf")

    def failed(self, shard: int, now: float) -> None:
        """Record that an elected shard could not be opened here. Other candidates go first for a while."""
        self._not_before[shard] = now + self._delays.pause
        self._backing_off_until = now + self._delays.backing_off

    def decide(self, view: ElectionView, serving: Collection[int], now: float) -> PlacementDecision:
        """Return the placement decision for ``view``. ``serving`` are the shards that this process serves."""
        vacant = [shard for shard in range(self._shards) if shard not in view.leaders]
        self._vacant_since = {shard: self._vacant_since.get(shard, now) for shard in vacant}
        present = now >= self._backing_off_until
        load = dict.fromkeys(view.candidates - {self._name}, 0)
        if present:
            load[self._name] = 0
        for leader in view.leaders.values():
            if leader in load:
                load[leader] += 1
        compete = self._compete(vacant, load, now)
        return PlacementDecision(compete, self._give_up(vacant, load, serving, now), present)

    def _compete(self, vacant: list[int], load: dict[str, int], now: float) -> tuple[int, ...]:
        """Return the vacant shards for which it is this candidate's turn.

        Candidates with fewer shards go first. All candidates compute the same order.
        """
        compete = []
        served = dict(load)
        for shard in vacant:
            order = sorted(served, key=lambda name: (served[name], crc32(f"{shard}/{name}".encode()), name))
            before = order.index(self._name) if self._name in served else len(order)
            # A candidate that already serves shards waits one turn even if it sees no other: others may be starting.
            turns = max(before, 1 if served.get(self._name) else 0)
            due = self._vacant_since[shard] + turns * self._delays.patience
            if now >= max(due, self._not_before.get(shard, now)):
                compete.append(shard)
            if order:
                served[order[0]] += 1
        return tuple(compete)

    def _give_up(
        self, vacant: list[int], load: dict[str, int], serving: Collection[int], now: float
    ) -> tuple[int, ...]:
        """Return half of the excess over the candidate with the fewest shards, once the excess has lasted."""
        others = [count for name, count in load.items() if name != self._name]
        excess = len(serving) - min(others) if others and not vacant else 0
        if excess < 2:
            self._uneven_since = None
            return ()
        if self._uneven_since is None:
            self._uneven_since = now
        if now - self._uneven_since < self._delays.settle:
            return ()
        self._uneven_since = None
        return tuple(sorted(serving, reverse=True)[: excess // 2])
