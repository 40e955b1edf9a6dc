"""The texts about key functions that raise (section 4.2).

A record without a key belongs to no interval. It waits in its injector, or is refused to its sender.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millwheel.model.time import Duration, format_duration, seconds
from millwheel.model.wording import counted
from millwheel.rpc.raised_errors import error_text, is_news, moment
from millwheel.rpc.v1 import inspection_pb2 as wire

__all__ = [
    "KEY_ASK_SECONDS",
    "KEY_REMEDY",
    "KEY_RETRY_SECONDS",
    "KEY_ROUND",
    "MAX_ASKED_WORKERS",
    "key_function_text",
    "keys_failed_lately",
    "keys_wait",
    "merged_key_functions",
]

KEY_REMEDY: Final = "fix the computation's code, then `millwheel topology update`"
"""The remedy for a key function that raises. Afterwards the waiting records continue by themselves."""

KEY_ASK_SECONDS: Final = 10.0
"""An injector's time limit for a worker's answer about records."""
MAX_ASKED_WORKERS: Final = 3
"""Maximum workers that get a request of an injector, one after the other, until one answers."""
KEY_RETRY_SECONDS: Final = 1.0
"""An injector's pause before it repeats the request for the keys of waiting records."""
KEY_ROUND: Final = seconds(KEY_RETRY_SECONDS + MAX_ASKED_WORKERS * KEY_ASK_SECONDS)
"""The longest time from one request about a consumer's waiting records to the end of the next one. It consists of the
pause and the time limits of workers that hang."""

_SHOWN_PROCESSES: Final = 3


def key_function_text(failure: wire.KeyFunctionFailure, now: int) -> str:
    """Return a text about a key function: its error, how often, which senders' records wait, and the remedy.

    Args:
        failure: The workers' report.
        now: The wall time, in microseconds.
    """
    who = f"the {failure.extractor} of stream {failure.stream!r}"
    attempts = counted(failure.attempts, "attempt")
    if not failure.waiting:
        ago = format_duration(Duration(max(0, now - failure.last_us)))
        return (
            f"{who} raised {error_text(failure)}, the last time {ago} ago; {attempts} failed, and no record waits for "
            "its key now: a record that no consumer takes is refused to its sender"
        )
    more = len(failure.waiting) - _SHOWN_PROCESSES
    names = ", ".join(repr(one.process) for one in failure.waiting[:_SHOWN_PROCESSES])
    processes = f"injector process{'es' if len(failure.waiting) > 1 else ''} {names}"
    processes += f" and {more:,} more" if more > 0 else ""
    return (
        f"{who} raises {error_text(failure)}, since {moment(failure.since_us)} ({attempts}); records of {processes} "
        f"wait for their keys and are not ACKed: {KEY_REMEDY}"
    )


def keys_wait(failures: wire.HookFailures) -> bool:
    """Return whether records wait in injectors because a key function raises."""
    return any(one.waiting for one in failures.key_functions)


def keys_failed_lately(failures: wire.HookFailures, now: int) -> bool:
    """Return whether a key function raised within the last minute."""
    return any(is_news(one.last_us, now) for one in failures.key_functions)


def merged_key_functions(parts: Iterable[wire.KeyFunctionFailure]) -> list[wire.KeyFunctionFailure]:
    """Merge several workers' reports about one computation's key functions: one message per stream, sorted."""
    whole: dict[str, wire.KeyFunctionFailure] = {}
    for part in parts:
        before = whole.get(part.stream)
        newest = part if before is None or part.last_us >= before.last_us else before
        one = whole[part.stream] = wire.KeyFunctionFailure()
        one.CopyFrom(newest)
        if before is not None:
            one.attempts = before.attempts + part.attempts
            one.since_us = min(before.since_us, part.since_us)
            waiting = {one.process: one for one in (*before.waiting, *part.waiting)}
            del one.waiting[:]
            one.waiting.extend(waiting[process] for process in sorted(waiting))
    return [whole[stream] for stream in sorted(whole)]
