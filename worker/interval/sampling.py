"""Which keys an interval's records are for, by a sample: enough to find a key that halves the load (sections 7.1, 8.4).

Taken per delivery and commit, not per record, so that it costs nothing to speak of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["KeySample"]

_KEPT: Final = 256
"""Of so many picks a key that halves the load is found to within some three percent of the load."""
_MANY: Final = 100
"""So many records of one delivery are worth a pick each; of fewer there is one."""
_PICKS: Final = 4
"""Of one delivery, at most."""

_MULTIPLIER, _INCREMENT, _MASK = 6364136223846793005, 1442695040888963407, (1 << 64) - 1


class KeySample:
    """The keys of the records picked last, each with how many records it stands for.

    Picks are pseudo-random, and the same for the same history: there is no other chance in a core.
    """

    __slots__ = ("_at", "_chance", "_picked")

    def __init__(self) -> None:
        self._picked: list[tuple[bytes, float]] = []
        self._at = 0
        self._chance = 1

    def note(self, keys: Sequence[bytes], indexes: Sequence[int]) -> None:
        """Records ``indexes`` of a delivery with these ``keys`` were committed."""
        count = len(indexes)
        if not count:
            return
        picks = 1 if count < _MANY else min(count // _MANY, _PICKS)
        for _ in range(picks):
            self._chance = (self._chance * _MULTIPLIER + _INCREMENT) & _MASK
            self._pick(keys[indexes[(self._chance >> 33) % count]], count / picks)

    def _pick(self, key: bytes, weight: float) -> None:
        if len(self._picked) < _KEPT:
            self._picked.append((key, weight))
            return
        self._picked[self._at] = (key, weight)
        self._at = (self._at + 1) % _KEPT

    def shares(self) -> list[tuple[bytes, float]]:
        """The sampled keys in their order, each with its share of the records (together 1)."""
        weights: dict[bytes, float] = {}
        for key, weight in self._picked:
            weights[key] = weights.get(key, 0.0) + weight
        total = sum(weights.values())
        return [(key, weights[key] / total) for key in sorted(weights)]
