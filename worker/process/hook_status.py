"""Failures and times of an interval's hooks, as messages for masters and operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millwheel.rpc.hook_failures import AWAITED_SHOWN
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.worker.interval import HookTime, IntervalCore
from millwheel.worker.interval.blocked_key_table import Wait
from millwheel.worker.interval.failing_keys import KeyFailure

__all__ = ["failures_of", "hook_time", "hooks_of", "key_failure", "waits_of"]

_MAX_SHOWN_KEYS: Final = 3
"""Maximum number of failing keys, and of hooks that do not end, per interval in a message: the oldest."""


def failures_of(core: IntervalCore, now: int) -> wire.HookFailures | None:
    """Exceptions of the interval's hooks, and hooks that run for long. None if there are neither.

    ``now``: the wall time, in microseconds.
    """
    failing = core.failing
    awaited = core.awaited_hooks(now - AWAITED_SHOWN, _MAX_SHOWN_KEYS)
    if failing.last is None and not failing.blocked and not awaited:
        return None
    return wire.HookFailures(
        attempts=failing.total,
        blocked_keys=failing.blocked,
        oldest=[key_failure(core, one) for one in failing.oldest(_MAX_SHOWN_KEYS)],
        last=None if failing.last is None else key_failure(core, failing.last),
        awaited=[wire.AwaitedHook(key=one.key, hook=one.hook, work=one.work, since_us=one.since) for one in awaited],
    )


def key_failure(core: IntervalCore, failure: KeyFailure) -> wire.KeyFailure:
    """One blocked key."""
    found = wire.KeyFailure(
        key=failure.key,
        hook=failure.hook,
        work=failure.work,
        error=failure.kind.error,
        message=failure.text,
        place=failure.kind.place,
        permanent=failure.kind.permanent,
        attempts=failure.attempts,
        since_us=failure.since,
        last_us=failure.last,
        dead_letter_problem=failure.letter or core.state.program.remedy,
    )
    if failure.next_attempt is not None and not core.stopped:
        found.next_attempt_us = core.state.clocks.wall_at(failure.next_attempt)
    return found


def waits_of(core: IntervalCore, key: bytes) -> str:
    """Why a key is blocked, in words. Empty if it is not."""
    blocked = core.state.blocked.keys.get(key)
    if blocked is None:
        return ""
    if core.stopped:
        return "for an update: the computation has stopped by its failure policy"
    if blocked.wait is Wait.READY and blocked.failure is not None:
        return "for its next attempt, after a failure"
    return blocked.wait.value


def hooks_of(core: IntervalCore) -> Iterator[wire.HookTime]:
    """The times of the hooks that were called or failed."""
    for hook, time in ((core.state.program.record_hook, core.meter.records), ("process_timer", core.meter.timers)):
        if time.calls or time.failures:
            yield hook_time(hook, time)


def hook_time(hook: str, time: HookTime) -> wire.HookTime:
    """The totals of one hook."""
    return wire.HookTime(
        hook=hook,
        calls=time.calls,
        seconds=time.seconds,
        failures=time.failures,
        blocked=time.blocked,
        by_columns=time.by_columns,
        oversized=time.oversized,
    )
