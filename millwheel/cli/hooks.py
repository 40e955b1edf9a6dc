"""Converts failures and times of hooks to plain values and to cells of tables."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from millwheel.cli.output import Plain
from millwheel.model.time import Timestamp, format_duration, format_timestamp, seconds
from millwheel.rpc.v1 import cluster_pb2
from millwheel.rpc.v1 import inspection_pb2 as wire

__all__ = [
    "HOOK_COLUMNS",
    "hook_cells",
    "plain_computation",
    "plain_failure",
    "plain_failures",
    "plain_hooks",
    "wall_now",
]

HOOK_COLUMNS: Final = ("hook", "calls", "time", "mean", "failures", "slow")


def wall_now() -> int:
    """Return the wall time in microseconds since the epoch."""
    return time.time_ns() // 1_000


def plain_failure(failure: wire.KeyFailure) -> dict[str, Plain]:
    """Describe a key that is blocked because its hook raises."""
    due = failure.next_attempt_us if failure.HasField("next_attempt_us") else None
    return {
        "key": failure.key.decode("utf-8", "backslashreplace"),
        "hook": failure.hook,
        "work": failure.work,
        "error": failure.error,
        "message": failure.message,
        "place": failure.place or None,
        "permanent": failure.permanent,
        "dead_letter_problem": failure.dead_letter_problem or None,
        "attempts": failure.attempts,
        "since": format_timestamp(Timestamp(failure.since_us)),
        "since_us": failure.since_us,
        "last": format_timestamp(Timestamp(failure.last_us)),
        "last_us": failure.last_us,
        "next_attempt": None if due is None else format_timestamp(Timestamp(due)),
        "next_attempt_us": due,
    }


def plain_failures(failures: wire.HookFailures) -> dict[str, Plain]:
    """Describe the failures of one interval or computation."""
    return {
        "attempts": failures.attempts,
        "blocked_keys": failures.blocked_keys,
        "oldest": [plain_failure(one) for one in failures.oldest],
        "last": plain_failure(failures.last) if failures.HasField("last") else None,
        "awaited": [_plain_awaited(one) for one in failures.awaited],
        "key_functions": [_plain_key_function(one) for one in failures.key_functions],
    }


def _plain_awaited(awaited: wire.AwaitedHook) -> dict[str, Plain]:
    """Describe an asynchronous hook that does not end."""
    return {
        "key": awaited.key.decode("utf-8", "backslashreplace"),
        "hook": awaited.hook,
        "work": awaited.work,
        "since": format_timestamp(Timestamp(awaited.since_us)),
        "since_us": awaited.since_us,
    }


def _plain_key_function(failure: wire.KeyFunctionFailure) -> dict[str, Plain]:
    """Describe a key function that raises."""
    return {
        "stream": failure.stream,
        "extractor": failure.extractor,
        "error": failure.error,
        "message": failure.message,
        "place": failure.place or None,
        "attempts": failure.attempts,
        "since": format_timestamp(Timestamp(failure.since_us)),
        "since_us": failure.since_us,
        "last": format_timestamp(Timestamp(failure.last_us)),
        "last_us": failure.last_us,
        "waiting": [{"process": one.process, "oldest_us": one.oldest_us} for one in failure.waiting],
    }


def plain_computation(found: cluster_pb2.ComputationFailures) -> dict[str, Plain]:
    """Describe a computation whose hooks or key functions raise."""
    return {
        "topology": found.topology,
        "computation": found.computation,
        "text": found.text,
        "blocks": found.blocks,
        "stopped": found.stopped or None,
        **plain_failures(found.failures),
    }


def plain_hooks(hooks: Iterable[wire.HookTime]) -> list[Plain]:
    """Describe the times of hooks."""
    return [
        {
            "hook": one.hook,
            "calls": one.calls,
            "seconds": round(one.seconds, 6),
            "mean_seconds": round(one.seconds / one.calls, 9) if one.calls else None,
            "failures": one.failures,
            "slow_batches": one.blocked,
        }
        for one in hooks
    ]


def hook_cells(one: wire.HookTime) -> list[object]:
    """Return a hook's row of the table with the columns HOOK_COLUMNS."""
    mean = _shown_mean(one.seconds / one.calls) if one.calls else ""
    return [one.hook, f"{one.calls:,}", format_duration(seconds(one.seconds)), mean, f"{one.failures:,}", one.blocked]


def _shown_mean(mean: float) -> str:
    """Format the mean seconds of a call. A short call is shown in microseconds."""
    return f"{mean * 1e6:.1f} us" if mean < 0.001 else format_duration(seconds(mean))
