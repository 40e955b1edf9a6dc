"""The timers and the hold of a hook's key, for :class:`~millwheel.sdk.context.Context` (sections 4.6, 5.2)."""

from __future__ import annotations

from typing import Any, Final

from millwheel.model.limits import MAX_TAG_BYTES
from millwheel.model.time import TimeDomain, Timestamp
from millwheel.model.units import NEWEST_USUAL_US, OLDEST_USUAL_US
from millwheel.sdk.effects import TimerSetting
from millwheel.sdk.errors import TooLargeError, UsageError
from millwheel.sdk.hook_faults import check_unusual, no_domain, too_many
from millwheel.sdk.scope import PAGES_TAG, Scope

__all__ = ["TimersAndHold"]

_TIMER_BYTES: Final = 96
"""The size counted for each timer that is set, in addition to its key and tag."""


class TimersAndHold:
    """What the hooks of one key have set since the last commit began, besides its state and its productions."""

    __slots__ = ("_cause", "_hold", "_key", "_produced", "_scope", "_timers")

    _key: bytes
    _scope: Scope
    _timers: dict[tuple[TimeDomain, str], TimerSetting | None] | None
    _hold: Any
    _produced: int
    _cause: int
    """From the record or timer of the current hook: the event time for which timers are set."""

    def set_timer(
        self,
        at: Timestamp,
        tag: str = "",
        *,
        domain: TimeDomain = TimeDomain.EVENT_TIME,
        hold: Timestamp | None = None,
    ) -> None:
        """Call ``process_timer`` for this key when the low watermark, or the clock, reaches ``at``.

        A key has at most one timer for each domain (event time or processing time) and tag. Setting it again replaces
        it. It never fires early (G6). In processing time the clock is the wall clock of the key's owner, which is
        ``now``. A timer that a wrong clock has set too far ahead waits until the clocks of later owners reach it.

        Until the firing is committed, the timer holds the output watermark. The records that the firing produces are
        therefore not late (section 4.6).

        Args:
            at: When the timer fires, in microseconds since the epoch.
            tag: Distinguishes the timers of a key; up to 256 bytes.
            domain: Whether ``at`` is an event time or a processing time.
            hold: Where the timer holds the output watermark. By default ``at``; in processing time, the timestamp of
                the record or timer that the hook runs for. A hold behind the reported output watermark becomes that
                timestamp, too. ``max(record.timestamp, ctx.watermark)`` is never behind it.

        Raises:
            UsageError: The computation has no ``process_timer``. Or an argument has a wrong type, is out of range, or
                is probably in another unit.
            TooLargeError: The tag is too long, or the hooks of the key set over 15 million timers in this commit.
        """
        if not self._scope.handles_timers:
            raise UsageError(
                f"computation {self._scope.computation!r} sets a timer, and has no process_timer: define it"
            )
        if type(domain) is not TimeDomain:
            raise no_domain(domain)
        at = self._checked(at, "set_timer", domain)
        hold = None if hold is None else self._checked(hold, "set_timer(hold=…)")
        if tag == PAGES_TAG:
            raise UsageError(f"the tag {tag!r} is MillWheel's own: use another")
        if not isinstance(tag, str):
            raise UsageError(f"a timer's tag is a str, not {type(tag).__name__}: {tag!r}")
        if len(tag) * 4 > MAX_TAG_BYTES and len(tag.encode()) > MAX_TAG_BYTES:
            raise TooLargeError(f"the timer tag {tag[:32]!r}…", len(tag.encode()), MAX_TAG_BYTES)
        self._made(_TIMER_BYTES + len(self._key) + len(tag))
        if self._timers is None:
            self._timers = {}
        elif len(self._timers) >= self._scope.most:
            raise too_many(self._key.decode(), "set", "timers", self._scope.most)
        self._timers[domain, tag] = TimerSetting(at, hold, self._cause)

    def cancel_timer(self, tag: str = "", *, domain: TimeDomain = TimeDomain.EVENT_TIME) -> None:
        """Cancel a timer of this key. This has no effect if there is no such timer.

        Args:
            tag: The tag of the timer.
            domain: The domain of the timer.

        Raises:
            UsageError: The domain is no TimeDomain.
        """
        if type(domain) is not TimeDomain:
            raise no_domain(domain)
        if tag == PAGES_TAG:
            raise UsageError(f"the tag {tag!r} is MillWheel's own: use another")
        if self._timers is None:
            self._timers = {}
        self._timers[domain, tag] = None

    def set_hold(self, timestamp: Timestamp) -> None:
        """Hold the output watermark at ``timestamp`` for this key's state, until it is cleared (section 5.2).

        From the next commit on, hooks of the key may produce records at or after ``timestamp``. If ``timestamp`` is
        behind the reported output watermark, it is too late to hold that. The hold then becomes the timestamp of the
        record or timer that the hook runs for.

        Args:
            timestamp: Microseconds since the epoch.

        Raises:
            UsageError: The timestamp is not an integer, is out of range, or is probably in another unit.
        """
        self._hold = (self._checked(timestamp, "set_hold"), self._cause)

    def clear_hold(self) -> None:
        """Remove the hold of this key's state."""
        self._hold = None

    def _made(self, size: int) -> None:
        """Count bytes of the commit, without states. If there are many, no more hooks run before the commit."""
        self._produced += size
        self._scope.produced_bytes += size

    def _checked(self, timestamp: Timestamp, method: str, domain: TimeDomain = TimeDomain.EVENT_TIME) -> Timestamp:
        """The timestamp, after a check of its type and range. The journal could not decode a value of another type."""
        if type(timestamp) is int and OLDEST_USUAL_US <= timestamp <= NEWEST_USUAL_US:
            return timestamp
        if not _is_integer(timestamp):
            kind = type(timestamp).__name__
            raise UsageError(f"{method} takes a Timestamp (integer microseconds), not {kind}: {timestamp!r}")
        if not OLDEST_USUAL_US <= timestamp <= NEWEST_USUAL_US:
            processing, scope = domain is TimeDomain.PROCESSING_TIME, self._scope
            reference = scope.now if processing else self._cause
            check_unusual(timestamp, method, reference, processing=processing, any_unit=scope.any_timestamp)
        return Timestamp(int(timestamp))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
