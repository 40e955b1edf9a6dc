"""What becomes of a record or timer whose hook keeps failing: nothing is lost by any policy."""

from __future__ import annotations

import inspect
import traceback
from asyncio import CancelledError, Future
from enum import Enum
from typing import Any, Final

from millwheel.core.time import Timestamp, format_timestamp
from millwheel.sdk.context import Context, Production
from millwheel.sdk.dead_letters import DeadLetter
from millwheel.sdk.errors import UsageError
from millwheel.sdk.options import FailureAction, FailurePolicy
from millwheel.sdk.typeinfo import type_name
from millwheel.worker.interval.failing_keys import ErrorKinds, KeyFailure
from millwheel.worker.interval.intake import Item, ParkedKey
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import HookFailed

__all__ = ["HOOK_ERRORS", "Decision", "Failures", "refuse_result", "work_text"]

HOOK_ERRORS: Final = (Exception, CancelledError, SystemExit)
"""What a hook may raise without taking down more than its own work. Of what is no Exception, too: to ask a future that
was cancelled, or to call some program's main function, is a mistake like others. An interrupt is not the hook's."""

_ERROR_CHARACTERS: Final = 2_000
_TRACEBACK_CHARACTERS: Final = 8_000
"""With the key they fit what MAX_DELIVERED_BYTES leaves beside the largest record."""


def refuse_result(hook: str, result: object) -> None:
    """Raise the UsageError for ``hook``, which returned ``result`` and not None: what it stands for would be lost.

    A coroutine is closed and a future cancelled, so neither uses the context later.
    """
    remedy = "produce records by ctx.produce(stream, value), and return nothing"
    if inspect.isawaitable(result):
        remedy = "nothing awaits it: make the hook, and each decorator around it, `async def`, and `await` it there"
        if inspect.iscoroutine(result):
            result.close()
        elif isinstance(result, Future):
            result.cancel()
    raise UsageError(f"{hook} returned {type_name(type(result))}, and a hook returns None: {remedy}")


class Decision(Enum):
    """What the policy says about a failure."""

    RETRY = "it will be tried again"
    DEAD_LETTER = "it goes to the dead letters"
    STOP = "the computation stops"


class Failures:
    """Applies a computation's failure policy. Back-off doubles from the initial to the largest delay."""

    def __init__(self, state: IntervalState) -> None:
        self.state = state
        self.policy: FailurePolicy = state.program.options.on_failure
        self._kinds = ErrorKinds()

    def decide(self, attempts: int, now: int) -> tuple[Decision, int]:
        """The decision after ``attempts`` failures, and when a retry is due, ``now`` being the time elapsed."""
        policy = self.policy
        if policy.max_attempts and attempts >= policy.max_attempts:
            if policy.action is FailureAction.DEAD_LETTER:
                return Decision.DEAD_LETTER, 0
            if policy.action is FailureAction.STOP:
                return Decision.STOP, 0
        delay = min(policy.max_backoff, policy.initial_backoff << min(attempts - 1, 40))
        return Decision.RETRY, now + delay

    def note(
        self, key: bytes, parked: ParkedKey, item: Item, error: BaseException, decision: Decision, retry_at: int
    ) -> HookFailed:
        """Remember what the attempt at ``item`` raised, for operators; returns it for the log.

        Args:
            key: the blocked key.
            parked: its entry, in which ``attempts`` counts this one, too.
            item: the record or timer.
            error: what its hook raised.
            decision: what the policy says.
            retry_at: when the next attempt is due, a time of ``IntervalState.elapsed``; for a retry.
        """
        state = self.state
        is_record = len(item) == 2
        hook, times = ("process_record", state.meter.records) if is_record else ("process_timer", state.meter.timers)
        times.failures += 1
        kind, work, before = self._kinds.kind_of(error), work_text(item), parked.failure
        due = retry_at if decision is Decision.RETRY else None
        since = state.wall if before is None else before.since
        text = str(error)
        parked.failure = KeyFailure(key, hook, work, kind, text, parked.attempts, since, state.wall, due)
        state.failing.failed(before, parked.failure)
        name, shown = state.program.name, key.decode("utf-8", "backslashreplace")
        message = (
            f"computation {name!r}, key {shown!r}, {work}: {kind.error}: {text} "
            f"(attempt {parked.attempts}; {decision.value})"
        )
        return HookFailed(message, hook, kind, error, decision is Decision.STOP, not self.policy.max_attempts)

    def clear(self, parked: ParkedKey) -> None:
        """What failed for the key is done with: it succeeded, or was given up."""
        parked.failing, parked.attempts = None, 0
        if parked.failure is not None:
            self.state.failing.cleared(parked.failure)
            parked.failure = None

    def dead_letter(self, context: Context[Any], key: bytes, item: Item, error: BaseException, attempts: int) -> None:
        """Have ``context`` produce the dead letter of ``item``."""
        if len(item) == 2:
            receipt, index = item
            delivery = receipt.delivery
            stream, stamp, value, tag = delivery.stream, delivery.timestamps[index], delivery.values[index], ""
            context._origin = (delivery.ids, index)
        else:
            stream, stamp, value, tag = "", item[0] if not item[1] else self.state.watermark_of(key), b"", item[2]
            setting = self.state.timers[item[1]].get(key, item[2])
            context._origin = setting.origin if setting else 0
        text = "".join(traceback.format_exception(error))
        letter = DeadLetter(
            self.state.program.name,
            key.decode("utf-8", "backslashreplace"),
            stream,
            stamp,
            value,
            tag,
            attempts,
            f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS],
            text[-_TRACEBACK_CHARACTERS:],
        )
        name = self.state.config.dead_letters
        binding = self.state.scope.outputs[name]
        context._add(Production(name, binding.encode(letter), stamp, binding.route(letter), context._origin))


def work_text(item: Item) -> str:
    """The record or timer, for people."""
    if len(item) == 2:
        delivery = item[0].delivery
        at = format_timestamp(Timestamp(delivery.timestamps[item[1]]))
        return f"record of stream {delivery.stream!r} at {at}"
    return f"timer {item[2]!r} at {format_timestamp(Timestamp(item[0]))}"
