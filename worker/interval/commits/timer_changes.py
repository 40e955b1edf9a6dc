"""What a commit does to the timers and the stated holds of keys, as hooks have asked for it (4.6, 5.2; G6, G7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millwheel.model.time import LAST_TIMESTAMP, TimeDomain
from millwheel.sdk.effects import TimerSetting
from millwheel.worker.interval.blocked_key_table import TimerItem
from millwheel.worker.interval.clocks import OutputWatermark
from millwheel.worker.interval.entry import TimerRow
from millwheel.worker.interval.holds import Hold, Holds
from millwheel.worker.interval.timers import PROCESSING_TIME, IntervalTimers, held_at

__all__ = ["TimerChanges"]

TimerName = tuple[bytes, bool, str]
"""The key, whether its domain is processing time, and the tag."""


class TimerChanges:
    """Changes timers and stated holds at a seal. In each method ``ending`` is the hold of the commit."""

    def __init__(self, timers: IntervalTimers, holds: Holds, output: OutputWatermark, feeds: bool) -> None:
        """``feeds``: whether the computation reads records from outside. Its timers have no cause in event time."""
        self._timers = timers
        self._holds = holds
        self._output = output
        self._feeds = feeds

    def clear_fired(self, fired: Mapping[bytes, Iterable[TimerItem]], ending: Hold) -> list[TimerName]:
        """Remove the timers that have fired. Returns their names."""
        cleared: list[TimerName] = []
        for key, items in fired.items():
            for at, domain, tag in items:
                self._timers.tables[domain].fired(key, tag, at, ending)
                cleared.append((key, domain is PROCESSING_TIME, tag))
        return cleared

    def apply(
        self,
        key: bytes,
        settings: Mapping[tuple[TimeDomain, str], TimerSetting | None],
        commit: int,
        first: int,
        ending: Hold,
        rows: list[TimerRow],
        cleared: list[TimerName],
    ) -> None:
        """Set and cancel timers of a key.

        Args:
            key: The key.
            settings: By domain and tag. None cancels a timer.
            commit: The position of the commit's begin.
            first: The position of the batch's first timer. The next one has the next position.
            ending: The hold of the commit.
            rows: Takes the timers that are set.
            cleared: Takes the names of those that are cancelled.
        """
        tables, spilled = self._timers.tables, self._timers.spilled
        for (domain, tag), setting in settings.items():
            processing = domain is PROCESSING_TIME
            if setting is None:
                known = tables[domain].cancel(key, tag, ending) is not None
                if known or (spilled.parts and spilled.void(key, domain, tag, commit)):
                    cleared.append((key, processing, tag))
                continue
            table = tables[domain]
            previous, hold, at = table.get(key, tag), setting.hold, setting.at
            held = at if hold is None and not processing else held_at(setting, domain)
            if held < self._output.value:
                # A hold below the reported watermark has no effect. The hold becomes the cause's timestamp: what a late
                # record causes is late. What a source reads has no cause. So its hold keeps the watermark where it is.
                hold = min(self._output.value, LAST_TIMESTAMP) if self._feeds else setting.cause
            if previous is not None and not processing and previous.at == at and previous.hold == hold:
                # The timer is unchanged, as when each record of a window sets it. Nothing is journaled.
                continue
            set_at_position = first + len(rows)
            cause = setting.cause
            table.set(key, tag, TimerSetting(at, hold, cause, set_at_position), ending)
            if not processing:
                self._timers.note_due(key, at)
            if previous is None and spilled.parts:
                spilled.void(key, domain, tag, set_at_position)
            rows.append((key, processing, tag, at, hold, cause, set_at_position))

    def apply_hold(self, key: bytes, stated: tuple[int, int] | None, ending: Hold) -> int | None:
        """Set or end (None) the key's stated hold: a timestamp, and that of its cause. Returns the hold."""
        at: int | None = None
        if stated is not None:
            at, cause = stated
            if at < self._output.value:
                at = cause
        self._holds.set_of_key(key, at, ending)
        return at
