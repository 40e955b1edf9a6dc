"""A model of the authority: who may speak for which keys, and the minimum over all of them (7.2)."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.time import MIN_TIMESTAMP

__all__ = ["Shares"]


@dataclass
class _Share:
    keys: KeyInterval
    sequencer: int = 0
    value: int = MIN_TIMESTAMP


class Shares:
    """One computation's shares, which cover every key. A new one starts from the smallest value of what it replaces."""

    def __init__(self) -> None:
        self._shares = [_Share(ALL_KEYS)]

    def accept(self, keys: KeyInterval, sequencer: int) -> int | None:
        """The value that the owner of ``keys`` starts from; None: a larger sequencer holds some of them."""
        concerned = [share for share in self._shares if share.keys.overlaps(keys)]
        if any(share.sequencer > sequencer for share in concerned):
            return None
        kept = [share for share in self._shares if not share.keys.overlaps(keys)]
        for share in concerned:
            if share.keys.start < keys.start:
                kept.append(_Share(KeyInterval(share.keys.start, keys.start), share.sequencer, share.value))
            if keys.end is not None and (share.keys.end is None or keys.end < share.keys.end):
                kept.append(_Share(KeyInterval(keys.end, share.keys.end), share.sequencer, share.value))
        value = min(share.value for share in concerned)
        self._shares = sorted([*kept, _Share(keys, sequencer, value)], key=lambda share: share.keys.start)
        return value

    def report(self, keys: KeyInterval, sequencer: int, value: int) -> None:
        """Counts only if it comes from exactly who was accepted last; values never go back."""
        for share in self._shares:
            if (share.keys, share.sequencer) == (keys, sequencer):
                share.value = max(share.value, value)

    @property
    def value(self) -> int:
        """What is broadcast."""
        return min(share.value for share in self._shares)

    def sequencers(self) -> list[tuple[KeyInterval, int]]:
        """Those behind the value."""
        return [(share.keys, share.sequencer) for share in self._shares if share.sequencer]
