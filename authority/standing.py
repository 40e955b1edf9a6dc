"""Which shards a candidate stands for, and which it gives up, without its I/O (7.2).

A candidate sees what the coordinator says: who is there, and who was elected for which shard. The election decides;
this decides only who tries first, so that shards are spread, and what one that has too many lets go of. Two
candidates that see different things both stand, and one of them is elected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from zlib import crc32

__all__ = ["Manners", "Orders", "Standing", "View"]


@dataclass(frozen=True, slots=True)
class View:
    """What the coordinator says: the candidates that are there, and who was elected, by shard."""

    candidates: frozenset[str]
    leaders: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Manners:
    """Seconds. ``patience``: how long each candidate that serves fewer shards is let stand first.

    ``settle``: how long others must have had two shards less before some are given up to them. ``pause``: how long
    a shard that could not be opened here is left alone. ``ailing``: how long others are served first after that.
    """

    patience: float = 0.5
    settle: float = 10.0
    pause: float = 1.0
    ailing: float = 30.0


@dataclass(frozen=True, slots=True)
class Orders:
    """``stand``: for these shards, now. ``give_up``: these, served here. ``present``: be among the candidates."""

    stand: tuple[int, ...] = ()
    give_up: tuple[int, ...] = ()
    present: bool = True


class Standing:
    """One candidate's decisions. Times are seconds on any clock that does not go back."""

    def __init__(self, name: str, shards: int, manners: Manners | None = None) -> None:
        self._name = name
        self._shards = shards
        self._manners = manners or Manners()
        self._vacant_since: dict[int, float] = {}
        self._not_before: dict[int, float] = {}
        self._uneven_since: float | None = None
        self._ailing_until = float("-inf")

    def failed(self, shard: int, now: float) -> None:
        """A shard could not be opened here, though elected: others, if there are any, go first for a while."""
        self._not_before[shard] = now + self._manners.pause
        self._ailing_until = now + self._manners.ailing

    def look(self, view: View, serving: Collection[int], now: float) -> Orders:
        """What to do, now that the coordinator says ``view``; ``serving`` are the shards that are served here."""
        vacant = [shard for shard in range(self._shards) if shard not in view.leaders]
        self._vacant_since = {shard: self._vacant_since.get(shard, now) for shard in vacant}
        present = now >= self._ailing_until
        load = dict.fromkeys(view.candidates - {self._name}, 0)
        if present:
            load[self._name] = 0
        for leader in view.leaders.values():
            if leader in load:
                load[leader] += 1
        stand = self._stand(vacant, load, now)
        return Orders(stand, self._give_up(vacant, load, serving, now), present)

    def _stand(self, vacant: list[int], load: dict[str, int], now: float) -> tuple[int, ...]:
        """The vacant shards whose turn is this candidate's: those with fewer go first, as all of them reckon alike."""
        stand = []
        share = dict(load)
        for shard in vacant:
            order = sorted(share, key=lambda name: (share[name], crc32(f"{shard}/{name}".encode()), name))
            before = order.index(self._name) if self._name in share else len(order)
            # One that serves some already waits a moment even if it sees nobody: others may be about to come.
            turns = max(before, 1 if share.get(self._name) else 0)
            due = self._vacant_since[shard] + turns * self._manners.patience
            if now >= max(due, self._not_before.get(shard, now)):
                stand.append(shard)
            if order:
                share[order[0]] += 1
        return tuple(stand)

    def _give_up(
        self, vacant: list[int], load: dict[str, int], serving: Collection[int], now: float
    ) -> tuple[int, ...]:
        """Half of what this candidate has more than the one with the fewest, once that has lasted."""
        others = [count for name, count in load.items() if name != self._name]
        excess = len(serving) - min(others) if others and not vacant else 0
        if excess < 2:
            self._uneven_since = None
            return ()
        if self._uneven_since is None:
            self._uneven_since = now
        if now - self._uneven_since < self._manners.settle:
            return ()
        self._uneven_since = None
        return tuple(sorted(serving, reverse=True)[: excess // 2])
