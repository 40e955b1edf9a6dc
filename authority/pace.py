"""When a shard appends: soon if a call waits for it, and not too often."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.model.time import milliseconds, seconds

__all__ = ["AppendPace", "PaceSettings"]


@dataclass(frozen=True, slots=True)
class PaceSettings:
    """Delays of a shard's appends, in microseconds.

    - ``coalesce``: the minimum time between two appends, so that changes that arrive close together share one.
    - ``rest``: idle time after an append, as a multiple of the append's duration. Urgent appends skip it. It keeps
      watermarks from occupying a slow store.
    - ``longest_rest``: the upper limit of the rest. An append during an outage of the store lasts as long as the
      outage, and watermarks must not stop for a multiple of that.
    - ``idle``: the maximum delay of a change for which no call waits.
    - ``verify``: how often a shard without changes checks that it was not deposed. Otherwise its listeners would wait
      for ever.
    """

    coalesce: int = milliseconds(2)
    rest: float = 0.0
    longest_rest: int = seconds(1)
    idle: int = milliseconds(100)
    verify: int = seconds(5)


class AppendPace:
    """The time of the next append. One append is in flight at a time."""

    def __init__(self, settings: PaceSettings) -> None:
        self._settings = settings
        self._wanted_at: int | None = None
        """Since when, or from when on, there is something to append."""
        self._asked = False
        """Whether a call waits for a change that is in no append yet."""
        self._verify_at: int | None = None
        self._not_before = 0
        self._rest_until = 0
        self._began = 0

    def want(self, now: int, *, urgent: bool, dirty: bool) -> None:
        """State what waits at ``now``: an answer or a broadcast (``urgent``), or any change (``dirty``)."""
        if self._verify_at is None:
            self._verify_at = now + self._settings.verify
        if urgent:
            self._wanted_at = now if self._wanted_at is None else min(self._wanted_at, now)
        elif dirty and self._wanted_at is None:
            self._wanted_at = now + self._settings.idle

    def ask(self) -> None:
        """A call waits."""
        self._asked = True

    @property
    def due_at(self) -> int | None:
        """The time of the next append. None: nothing was ever stated."""
        wanted, verify = self._wanted_at, self._verify_at
        if wanted is None or (verify is not None and wanted > verify):
            return verify
        at = max(wanted, self._not_before)
        return at if self._asked else max(at, self._rest_until)

    @property
    def verifies(self) -> bool:
        """Whether the next append is due only to check that this shard still owns its journal."""
        wanted, verify = self._wanted_at, self._verify_at
        return wanted is None or (verify is not None and wanted > verify)

    def begin(self, now: int) -> None:
        """The next append takes what waits."""
        self._wanted_at, self._asked, self._began = None, False, now
        self._verify_at = now + self._settings.verify

    def end(self, now: int) -> None:
        """The append is journaled."""
        settings, took = self._settings, now - self._began
        self._verify_at = now + settings.verify
        self._not_before = self._began + settings.coalesce
        self._rest_until = now + min(int(settings.rest * took), settings.longest_rest)
