"""Checks of the options of streams and computations. Each message says which values are allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from millwheel.model.limits import MAX_RETAINED_BYTES
from millwheel.sdk.durations import duration_problem
from millwheel.sdk.options import ComputationOptions, FailureAction, FailurePolicy, Late, LateAction, Retention

__all__ = ["computation_option_problems", "stream_option_problems"]

_PROCESS_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,127}")
_MAX_DELAY_US: Final = 366 * 24 * 3_600 * 1_000_000


def stream_option_problems(*, id_slack: Any, allowed_skew: Any, injectors: Any, retention: Any) -> Iterator[str]:
    """The problems with the options of one stream declaration."""
    yield from _delay("id_slack", id_slack, least=0)
    if allowed_skew is not None:
        yield from _delay("allowed_skew", allowed_skew)
    yield from _injectors(injectors)
    if retention is not None:
        yield from _retention(retention)


def _retention(retention: Any) -> Iterator[str]:
    if not isinstance(retention, Retention):
        yield f"retention= takes millwheel.Retention(age=..., bytes=...), not {retention!r}"
        return
    if retention.age is None and retention.bytes is None:
        yield "Retention() bounds nothing: give it age=, bytes= or both"
    if retention.age is not None:
        yield from _delay("Retention(age=...)", retention.age, most=None)
    if retention.bytes is not None and not _is_count(retention.bytes, 1):
        yield f"Retention(bytes=...) must be a positive number of bytes, not {retention.bytes!r}"
    elif retention.bytes is not None and retention.bytes > MAX_RETAINED_BYTES:
        yield f"Retention(bytes=...) is at most {MAX_RETAINED_BYTES:,}, not {retention.bytes:,}: a log keeps no more"


def _injectors(injectors: Any) -> Iterator[str]:
    if not isinstance(injectors, tuple):
        yield f"injectors= takes a list of names, not {injectors!r:.80}"
        return
    for name in injectors:
        if not isinstance(name, str) or not _PROCESS_NAME.fullmatch(name):
            yield f"injectors= names {name!r}: an injector process's name is 1 to 128 of a-z, 0-9, _, . and -"
    if len(set(injectors)) < len(injectors):
        yield "injectors= names a process twice"


def computation_option_problems(options: ComputationOptions) -> Iterator[str]:
    """The problems with the options of one computation."""
    for name in ("exactly_once", "strong"):
        value = getattr(options, name)
        if not isinstance(value, bool):
            yield f"{name}= must be True or False, not {value!r}"
    late: Any = options.late
    if not isinstance(late, Late):
        yield f"late= takes Late.PROCESS, Late.DROP or divert(stream), not {late!r:.80}"
    elif options.strong is False and late.action is not LateAction.PROCESS:
        # An owner may find a record on time, send its productions and die. The next owner may find the record late, if
        # it was late for its sender or came over a feedback edge.
        yield (
            f"late={late} needs strong productions: those of a record that was on time may have been sent before a "
            "restart, after which the record is late and has the other effect too: leave out strong=False or late="
        )
    on_failure: Any = options.on_failure
    if isinstance(on_failure, FailurePolicy):
        yield from _failure_policy(on_failure)
    else:
        name = getattr(on_failure, "__name__", None) or f"{on_failure!r:.80}"
        yield f"on_failure= takes retry(...), dead_letter(...) or stop(...), not {name}"
    yield from _delay("straggler_delay", options.straggler_delay)


def _failure_policy(policy: FailurePolicy) -> Iterator[str]:
    name = policy.action.name.lower()
    if policy.action is not FailureAction.RETRY and not _is_count(policy.max_attempts, 1):
        yield f"{name}(after=...) must be 1 or more attempts, not {policy.max_attempts!r}"
    wrong = [
        *_delay(f"{name}(initial=...)", policy.initial_backoff),
        *_delay(f"{name}(maximum=...)", policy.max_backoff),
    ]
    yield from wrong
    if not wrong and policy.max_backoff < policy.initial_backoff:
        yield f"{name}(): maximum={policy.max_backoff} is less than initial={policy.initial_backoff}"


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _delay(name: str, value: Any, *, least: int = 1, most: int | None = _MAX_DELAY_US) -> Iterator[str]:
    """Check a duration, in integer microseconds. The upper bound detects durations in another unit."""
    problem = duration_problem(name, value, least=least, most=most)
    if problem:
        yield problem
