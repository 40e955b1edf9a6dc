"""Failures of hooks, and hooks that do not end, in words.

One place for the sentences that commands, health and injectors show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from millwheel.core.time import Duration, Timestamp, format_duration, format_timestamp, seconds
from millwheel.rpc.v1 import inspection_pb2 as wire

__all__ = [
    "AWAITED_PROBLEM",
    "AWAITED_SHOWN",
    "REMEDY",
    "awaited_text",
    "blocks",
    "computation_text",
    "error_text",
    "failed_lately",
    "failure_text",
    "heading",
    "merged",
    "merged_hooks",
    "moment",
    "names_remedy",
    "shown_key",
]

AWAITED_SHOWN: Final[Duration] = seconds(10)
"""An asynchronous hook that runs for longer is shown to who looks: after as long an injector asks why no ACK comes."""
AWAITED_PROBLEM: Final[Duration] = seconds(60)
"""After so long it is a problem of the cluster's health. Calls to other services end sooner: clients of HTTP, databases
and gRPC commonly give up after 5 to 30 seconds. A hook that means to wait for a minute sets a timer instead."""

_SHOWN_KEY: Final = 80
_SHOWN_ERROR: Final = 1_000
_OLDEST: Final = 3
_LATELY: Final = 60_000_000
"""Microseconds for which a failure is news although no key is blocked by it any more."""
REMEDY: Final = (
    "mend the code, or give such records up by `on_failure=mw.dead_letter()`; then `millwheel topology update`"
)
"""What to do about a hook that raises whenever it is tried: its code is at fault, or the record is."""
_AWAITED_REMEDY: Final = (
    "the key's records and timers wait until it ends: see what it awaits, and give that a limit by asyncio.timeout"
)


def shown_key(key: bytes) -> str:
    """A key as people know it, cut."""
    return repr(key[:_SHOWN_KEY].decode("utf-8", "backslashreplace"))


def moment(at: int) -> str:
    """A wall time to the second."""
    return format_timestamp(Timestamp(at - at % 1_000_000))


def error_text(failure: wire.KeyFailure) -> str:
    """The error, with its message and its place, on one line; indented lines, such as code, stay lines of their own."""
    message = re.sub(r"\n(?! )", " ", failure.message.strip())
    cut = message[:_SHOWN_ERROR] + ("…" if len(message) > _SHOWN_ERROR else "") + "\n" * ("\n" in message)
    text = f"{failure.error}: {cut}" if cut else failure.error
    return f"{text} ({failure.place})" if failure.place else text


def failure_text(failure: wire.KeyFailure, now: int, *, remedy: bool = True) -> str:
    """A blocked key as a sentence: which hook raises what, since when, how often, and when it is tried again.

    Args:
        failure: what the interval's owner reported.
        now: the wall time, in microseconds.
        remedy: says what to do where trying again does not help.
    """
    count = "1 attempt" if failure.attempts == 1 else f"{failure.attempts:,} attempts"
    since = f"since {moment(failure.since_us)} ({count})"
    text = f"{failure.hook} of key {shown_key(failure.key)} raises {error_text(failure)}, {since}"
    if failure.HasField("next_attempt_us"):
        wait = failure.next_attempt_us - now
        text += f"; next attempt {'now' if wait <= 0 else f'in {format_duration(Duration(wait))}'}"
    return f"{text}; trying again does not help: {REMEDY}" if failure.permanent and remedy else text


def awaited_text(awaited: wire.AwaitedHook, now: int) -> str:
    """An asynchronous hook that does not end, as a sentence."""
    since = format_duration(Duration(max(0, now - awaited.since_us)))
    return f"{awaited.hook} of key {shown_key(awaited.key)} has been awaiting for {since} ({awaited.work})"


def names_remedy(failures: wire.HookFailures, stopped: str) -> bool:
    """Whether :func:`computation_text` says what to do."""
    awaits_only = bool(failures.awaited) and not failures.blocked_keys
    return bool(stopped) or awaits_only or any(one.permanent for one in failures.oldest[:1])


def heading(failures: wire.HookFailures, stopped: str, now: int) -> str:
    """The word before :func:`computation_text`."""
    fails = stopped or failures.blocked_keys or failed_lately(failures, now)
    return "FAILING" if fails else "AWAITING"


def computation_text(name: str, failures: wire.HookFailures, stopped: str, now: int) -> str:
    """What is wrong with a computation's hooks, in words.

    Args:
        name: ``topology/computation``.
        failures: those of all its intervals.
        stopped: why it stands still by its failure policy; empty if it does not.
        now: the wall time, in microseconds.
    """
    if not failures.awaited:
        return _raised_text(name, failures, stopped, now)
    awaited = f"{awaited_text(failures.awaited[0], now)}; {_AWAITED_REMEDY}"
    if heading(failures, stopped, now) == "AWAITING":
        return f"computation {name}: {awaited}"
    return f"{_raised_text(name, failures, stopped, now)}; {awaited}"


def _raised_text(name: str, failures: wire.HookFailures, stopped: str, now: int) -> str:
    """What hooks raised, as a sentence."""
    oldest = failure_text(failures.oldest[0], now, remedy=not stopped) if failures.oldest else ""
    if stopped:
        why = oldest or stopped
        return f"computation {name} has stopped by its failure policy: {why}; {REMEDY}: it goes on where it stopped"
    if failures.blocked_keys:
        count = failures.blocked_keys
        many = "1 key is blocked, and its" if count == 1 else f"{count:,} keys are blocked, and their"
        return f"computation {name}: {many} records are not ACKed: {oldest}"
    last = failures.last
    ago = format_duration(Duration(max(0, now - last.last_us)))
    return (
        f"computation {name}: {last.hook} raised {error_text(last)}, the last time {ago} ago, for key "
        f"{shown_key(last.key)}; {failures.attempts:,} attempts failed, and no key is blocked now"
    )


def blocks(failures: wire.HookFailures, stopped: str) -> bool:
    """Whether senders wait for ACKs because of it."""
    return bool(failures.blocked_keys or failures.awaited or stopped)


def failed_lately(failures: wire.HookFailures, now: int) -> bool:
    """Whether anything failed within the last minute."""
    return failures.HasField("last") and now - failures.last.last_us < _LATELY


def merged(parts: Iterable[wire.HookFailures]) -> wire.HookFailures:
    """The failures of several intervals together, and the hooks that they wait for."""
    whole = wire.HookFailures()
    oldest: list[wire.KeyFailure] = []
    awaited: list[wire.AwaitedHook] = []
    for part in parts:
        whole.attempts += part.attempts
        whole.blocked_keys += part.blocked_keys
        oldest += part.oldest
        awaited += part.awaited
        if part.HasField("last") and part.last.last_us >= whole.last.last_us:
            whole.last.CopyFrom(part.last)
    whole.oldest.extend(sorted(oldest, key=lambda one: one.since_us)[:_OLDEST])
    whole.awaited.extend(sorted(awaited, key=lambda one: one.since_us)[:_OLDEST])
    return whole


def merged_hooks(parts: Iterable[wire.HookTime]) -> list[wire.HookTime]:
    """The times of each hook over several intervals, by the hooks' names."""
    whole: dict[str, wire.HookTime] = {}
    for part in parts:
        one = whole.setdefault(part.hook, wire.HookTime(hook=part.hook))
        one.calls += part.calls
        one.seconds += part.seconds
        one.failures += part.failures
        one.blocked += part.blocked
    return [whole[hook] for hook in sorted(whole)]
