"""The texts about hooks and key functions that fail, and hooks that do not end.

Commands, health and injectors all show these texts, so they are defined once, here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millwheel.model.time import Duration, format_duration, seconds
from millwheel.rpc.key_failures import key_function_text, keys_failed_lately
from millwheel.rpc.raised_errors import error_text, is_news, moment
from millwheel.rpc.v1 import cluster_pb2 as cluster
from millwheel.rpc.v1 import inspection_pb2 as wire

__all__ = [
    "AWAITED_PROBLEM",
    "AWAITED_SHOWN",
    "REMEDY",
    "absence_text",
    "awaited_text",
    "blocks",
    "computation_text",
    "connector_awaited_text",
    "failed_lately",
    "failure_text",
    "heading",
    "merged",
    "names_remedy",
    "shown_key",
]

AWAITED_SHOWN: Final[Duration] = seconds(10)
"""An asynchronous hook that runs longer is shown to users. Injectors look up the reason for a missing ACK after the
same time."""
AWAITED_PROBLEM: Final[Duration] = seconds(60)
"""An asynchronous hook that runs longer is a problem of the cluster's health. Calls to other services end sooner:
clients of HTTP, databases and gRPC commonly give up after 5 to 30 seconds. A hook that needs to wait for a minute can
set a timer instead."""

_MAX_KEY_CHARACTERS: Final = 80
_MAX_OLDEST_KEYS: Final = 3
REMEDY: Final = (
    "fix the code, or give such records up by `on_failure=mw.dead_letter()`, an argument of the step that fails; then "
    "`millwheel topology update MODULE:ATTR`"
)
"""The remedy for a hook that raises at every attempt: its code is wrong, or the record is."""
_MISSING_MODULE_REMEDY: Final = (
    "if the module is yours, package it too: `millwheel topology update ... --include MODULE`; if it is a library, "
    "install it where the workers run"
)
"""The remedy for a hook that imports a module when it runs. A module imported before is missed when the code loads."""
_AWAITED_REMEDY: Final = (
    "the key's records and timers wait until it ends: see what it awaits, and give that a limit by asyncio.timeout"
)


def shown_key(key: bytes) -> str:
    """Return a key as readable text, shortened."""
    return repr(key[:_MAX_KEY_CHARACTERS].decode("utf-8", "backslashreplace"))


def failure_text(failure: wire.KeyFailure, now: int, *, stopped: bool = False, first: str = "") -> str:
    """Return one sentence about a blocked key: the hook, its error, since when, how often, and the next attempt.

    Args:
        failure: the report of the interval's owner.
        now: the wall time, in microseconds.
        stopped: whether the failure policy has stopped the computation, so that nothing is tried again by itself.
        first: a remedy that is quicker than the usual one, and comes before it. Empty: there is none.
    """
    count = "1 attempt" if failure.attempts == 1 else f"{failure.attempts:,} attempts"
    since = f"since {moment(failure.since_us)} ({count})"
    text = f"{failure.hook} of key {shown_key(failure.key)} raises {error_text(failure)}, {since}"
    if failure.HasField("next_attempt_us"):
        wait = failure.next_attempt_us - now
        text += f"; next attempt {'now' if wait <= 0 else f'in {format_duration(Duration(wait))}'}"
    if first:
        text += f"; {first}"
    if failure.dead_letter_problem:
        return f"{text}; {failure.dead_letter_problem}"
    remedy = _MISSING_MODULE_REMEDY if failure.error == ModuleNotFoundError.__name__ else REMEDY
    if first:
        remedy = f"otherwise {remedy}"
    if stopped:
        return f"{text}; {remedy}: it goes on where it stopped"
    if first:
        return f"{text}; {remedy}"
    helps = "trying again does not help" if failure.permanent else "it is tried again by itself; if that does not help"
    return f"{text}; {helps}: {remedy}"


def awaited_text(awaited: wire.AwaitedHook, now: int) -> str:
    """Return one sentence about an asynchronous hook that does not end."""
    since = format_duration(Duration(max(0, now - awaited.since_us)))
    return f"{awaited.hook} of key {shown_key(awaited.key)} has been awaiting for {since} ({awaited.work})"


def connector_awaited_text(
    name: str, part: cluster.ConnectorPart.ValueType, awaited: wire.AwaitedHook, now: int
) -> str:
    """Return one sentence about a call of a source or a sink that does not end. It is not the user's code that waits.

    Args:
        name: The computation, as ``topology/computation``.
        part: Which part of a source or a sink it is.
        awaited: The call.
        now: the wall time, in microseconds.
    """
    since = format_duration(Duration(max(0, now - awaited.since_us)))
    if part == cluster.CONNECTOR_PART_FINDS_SPLITS:
        what = f"the search for splits of source {name.removesuffix('-splits')}"
    elif part == cluster.CONNECTOR_PART_READS:
        what = f"the read of split {shown_key(awaited.key)} of source {name.removesuffix('-reader')}"
    else:
        what = f"the write of shard {shown_key(awaited.key)} of sink {name}"
    why = "see whether it can be reached. After a minute it is tried again"
    return f"{what} has waited {since} for the other system: {why}"


def names_remedy(failures: wire.HookFailures, stopped: str) -> bool:
    """Return whether :func:`computation_text` contains a remedy."""
    awaits_only = bool(failures.awaited) and not failures.blocked_keys
    return bool(stopped) or awaits_only or bool(failures.oldest)


def heading(failures: wire.HookFailures, stopped: str, now: int) -> str:
    """Return the word to put before :func:`computation_text`."""
    fails = stopped or failures.blocked_keys or failed_lately(failures, now)
    return "FAILING" if fails else "AWAITING"


def computation_text(
    name: str,
    failures: wire.HookFailures,
    stopped: str,
    now: int,
    first: str = "",
    part: cluster.ConnectorPart.ValueType = cluster.CONNECTOR_PART_UNSPECIFIED,
) -> str:
    """Return a text about all failures of a computation's hooks and key functions.

    Args:
        name: ``topology/computation``.
        failures: the failures of all its intervals.
        stopped: why its failure policy stopped it; empty if it runs.
        now: the wall time, in microseconds.
        first: a remedy for blocked keys that comes before the usual one. Empty: there is none.
        part: which part of a source or a sink it is, if it is one.
    """
    texts = [f"computation {name}: {key_function_text(one, now)}" for one in failures.key_functions]
    if stopped or failures.blocked_keys or _hook_failed_lately(failures, now):
        texts.insert(0, _raised_text(name, failures, stopped, now, first))
    if failures.awaited and part != cluster.CONNECTOR_PART_UNSPECIFIED:
        texts.append(connector_awaited_text(name, part, failures.awaited[0], now))
    elif failures.awaited:
        awaited = f"{awaited_text(failures.awaited[0], now)}; {_AWAITED_REMEDY}"
        texts.append(awaited if texts else f"computation {name}: {awaited}")
    return "; ".join(texts)


def _raised_text(name: str, failures: wire.HookFailures, stopped: str, now: int, first: str) -> str:
    """Return a sentence about the errors that hooks raised."""
    one = failures.oldest[0] if failures.oldest else None
    oldest = "" if one is None else failure_text(one, now, stopped=bool(stopped), first=first)
    if stopped:
        why = oldest or f"{stopped}; {REMEDY}: it goes on where it stopped"
        return f"computation {name} has stopped by its failure policy: {why}"
    if failures.blocked_keys:
        count = failures.blocked_keys
        many = "1 key is blocked, and its" if count == 1 else f"{count:,} keys are blocked, and their"
        return f"computation {name}: {many} records are not ACKed: {oldest}"
    last = failures.last
    ago = format_duration(Duration(max(0, now - last.last_us)))
    return (
        f"computation {name}: {last.hook} raised {error_text(last)}, the last time {ago} ago, for key "
        f"{shown_key(last.key)}, whose work was given up; {failures.attempts:,} attempts failed, and no key is "
        "blocked now: this problem ends by itself within a minute; see what was given up by "
        f"`millwheel dead-letter list {name.partition('/')[0]}`"
    )


def absence_text(name: str, why: str) -> str:
    """Return a sentence about a computation (``topology/computation``) that its worker cannot run."""
    return f"computation {name} does not run: {why}"


def blocks(failures: wire.HookFailures, stopped: str) -> bool:
    """Return whether hooks keep senders waiting for ACKs of delivered records. For key functions see ``keys_wait``."""
    return bool(failures.blocked_keys or failures.awaited or stopped)


def failed_lately(failures: wire.HookFailures, now: int) -> bool:
    """Return whether a hook or a key function failed within the last minute."""
    return _hook_failed_lately(failures, now) or keys_failed_lately(failures, now)


def _hook_failed_lately(failures: wire.HookFailures, now: int) -> bool:
    return failures.HasField("last") and is_news(failures.last.last_us, now)


def merged(parts: Iterable[wire.HookFailures]) -> wire.HookFailures:
    """Merge the failures of several intervals, and the hooks that they wait for."""
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
    whole.oldest.extend(sorted(oldest, key=lambda one: one.since_us)[:_MAX_OLDEST_KEYS])
    whole.awaited.extend(sorted(awaited, key=lambda one: one.since_us)[:_MAX_OLDEST_KEYS])
    return whole
