"""Converts failures and times of hooks to plain values and to cells of tables."""

from __future__ import annotations

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
]

HOOK_COLUMNS: Final = ("hook", "calls", "time", "mean", "failures", "slow")


def _plain_time(name: str, at: int | None) -> dict[str, Plain]:
    """Give a time twice: as text, and in microseconds. None: there is no such time."""
    return {name: None if at is None else format_timestamp(Timestamp(at)), f"{name}_us": at}


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
        **_plain_time("since", failure.since_us),
        **_plain_time("last", failure.last_us),
        **_plain_time("next_attempt", due),
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
        **_plain_time("since", awaited.since_us),
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
        **_plain_time("since", failure.since_us),
        **_plain_time("last", failure.last_us),
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
        "absence": found.absence or None,
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
            "by_columns": one.by_columns,
            "oversized_calls": one.oversized,
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
