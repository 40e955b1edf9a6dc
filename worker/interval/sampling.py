"""A sample of the keys of an interval's records, to find a key that halves the load (sections 7.1, 8.4).

Keys are sampled per delivery and commit, not per record, so the cost is negligible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["KeySample"]

_MAX_PICKS: Final = 256
"""With this many picks, a key that halves the load is found with an error of about three percent of the load."""
_MANY: Final = 100
"""Number of records of one delivery for each pick. A delivery with fewer records has one pick."""
_MAX_PICKS_PER_DELIVERY: Final = 4
"""Maximum picks of one delivery."""

_MULTIPLIER, _INCREMENT, _MASK = 6364136223846793005, 1442695040888963407, (1 << 64) - 1


class KeySample:
    """The keys of the last picked records, each with the number of records that it represents.

    Picks are pseudo-random, and equal for equal histories. A core has no other source of randomness.
    """

    __slots__ = ("_at", "_chance", "_picked")

    def __init__(self) -> None:
        self._picked: list[tuple[bytes, float]] = []
        self._at = 0
        self._chance = 1

    def note(self, keys: Sequence[bytes], indexes: Sequence[int]) -> None:
        """Sample the committed records ``indexes`` of a delivery with these ``keys``."""
        count = len(indexes)
        if not count:
            return
        picks = 1 if count < _MANY else min(count // _MANY, _MAX_PICKS_PER_DELIVERY)
        for _ in range(picks):
            self._chance = (self._chance * _MULTIPLIER + _INCREMENT) & _MASK
            self._pick(keys[indexes[(self._chance >> 33) % count]], count / picks)

    def _pick(self, key: bytes, weight: float) -> None:
        if len(self._picked) < _MAX_PICKS:
            self._picked.append((key, weight))
            return
        self._picked[self._at] = (key, weight)
        self._at = (self._at + 1) % _MAX_PICKS

    def shares(self) -> list[tuple[bytes, float]]:
        """The sampled keys in order, each with its share of the records. The shares add up to 1."""
        weights: dict[bytes, float] = {}
        for key, weight in self._picked:
            weights[key] = weights.get(key, 0.0) + weight
        total = sum(weights.values())
        return [(key, weights[key] / total) for key in sorted(weights)]
