"""The failure policy for a record or timer whose hook keeps failing (docs/computations.md says what each keeps)."""

from __future__ import annotations

import inspect
from asyncio import CancelledError, Future
from enum import Enum
from typing import Any, Final

from millwheel.model.backoff import Backoff
from millwheel.model.deliveries import BatchIds
from millwheel.model.stream_names import DEAD_LETTERS
from millwheel.model.time import TimeDomain, Timestamp, format_timestamp
from millwheel.sdk.dead_letters import DeadLetter, replayed_offset
from millwheel.sdk.effects import Production
from millwheel.sdk.error_texts import bare_message, error_message, error_traceback
from millwheel.sdk.errors import KeyExtractionError, UsageError
from millwheel.sdk.growing.pages import PagesNeededError
from millwheel.sdk.options import FailureAction, FailurePolicy
from millwheel.sdk.typeinfo import type_name
from millwheel.worker.interval.blocked_key_table import BlockedKey, Item, RecordItem
from millwheel.worker.interval.failing_keys import ErrorKinds, KeyFailure
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import HookFailed

__all__ = [
    "HOOK_ERRORS",
    "Decision",
    "Failures",
    "UnkeyedLetterError",
    "others_key_problem",
    "refuse_result",
    "work_text",
]

HOOK_ERRORS: Final = (Exception, CancelledError, SystemExit, PagesNeededError)
"""Errors of a hook that affect its own work only.

CancelledError and SystemExit are not Exceptions. A hook raises them by mistake when it awaits a cancelled future or
calls a program's main function. An interrupt (KeyboardInterrupt) does not come from the hook.
PagesNeededError is no failure: the hook runs again when its pages have been read.
"""

_ERROR_CHARACTERS: Final = 2_000
_LETTER_CHARACTERS: Final = 1_000
_TRACEBACK_CHARACTERS: Final = 8_000
"""With the key, both fit into what MAX_DELIVERED_BYTES leaves besides the largest record."""


def refuse_result(hook: str, result: object) -> None:
    """Raise a UsageError for ``hook``, which returned ``result`` instead of None. The result would otherwise be lost.

    A coroutine is closed and a future is cancelled, so that neither uses the context later.
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
    """The policy's decision about a failure."""

    RETRY = "it will be tried again"
    DEAD_LETTER = "it goes to the dead letters"
    STOP = "the computation stops"


class UnkeyedLetterError(Exception):
    """A consumer of the dead letters has no key for a letter.

    The text names the consumer, the reason and the remedy.
    """

    def __init__(self, error: BaseException) -> None:
        """``error``: the exception of the consumer's key function."""
        computation = error.computation if isinstance(error, KeyExtractionError) else ""
        at = f" at computation `{computation}`" if computation else ""
        remedy = f": fix `{computation}`'s key function" if computation else ""
        why = " ".join(error_message(error).split())[:_LETTER_CHARACTERS]
        super().__init__(f"its dead letter has no key{at}: {why}{remedy}")


def others_key_problem(error: BaseException) -> str:
    """Why work is not given up whose hook failed by the key function of another topology. Empty: it failed otherwise.

    A failure policy is for the topology's own code. Another topology that reads its stream must not lose it work.
    """
    if not isinstance(error, KeyExtractionError) or not error.other_topology:
        return ""
    topology = error.other_topology
    who = f"`{topology}/{error.computation}`" if error.computation else "a computation"
    return f"its production has no key at computation {who} of another topology: fix or cancel topology `{topology}`"


class Failures:
    """Applies a computation's failure policy. The back-off doubles from the initial to the largest delay."""

    def __init__(self, state: IntervalState) -> None:
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._timers = state.timers
        self._blocked = state.blocked
        self.policy: FailurePolicy = self._setup.program.options.on_failure
        self._kinds = ErrorKinds()

    def decide(self, attempts: int) -> Decision:
        """The decision after ``attempts`` failures."""
        policy = self.policy
        if policy.max_attempts and attempts >= policy.max_attempts:
            if policy.action is FailureAction.DEAD_LETTER:
                return Decision.DEAD_LETTER
            if policy.action is FailureAction.STOP:
                return Decision.STOP
        return Decision.RETRY

    def next_attempt(self, attempts: int) -> int:
        """When a retry is due after ``attempts`` failures, a time of ``IntervalClocks.elapsed``."""
        return self._clocks.elapsed + int(Backoff(self.policy.initial_backoff, self.policy.max_backoff).step(attempts))

    def note(
        self,
        key: bytes,
        blocked: BlockedKey,
        item: Item,
        error: BaseException,
        decision: Decision,
        next_attempt: int | None,
        letter: str = "",
    ) -> HookFailed:
        """Record the exception of an attempt at ``item``, for operators. Returns an effect to log it.

        Args:
            key: The blocked key.
            blocked: Its entry, whose ``attempts`` includes this attempt.
            item: The record or timer.
            error: The exception of its hook.
            decision: The policy's decision.
            next_attempt: When the next attempt is due, a time of ``IntervalClocks.elapsed``. None: there is none.
            letter: Why the work was not given up although the policy says so: a consumer has no key for its dead
                letter or its production. Empty in all other cases.
        """
        is_record = isinstance(item, RecordItem)
        meter, wall = self._setup.meter, self._clocks.wall
        program = self._setup.program
        hook, times = (program.record_hook, meter.records) if is_record else ("process_timer", meter.timers)
        times.failures += 1
        kind, work, before = self._kinds.kind_of(error), work_text(item), blocked.failure
        since = wall if before is None else before.since
        text = bare_message(error)
        blocked.failure = KeyFailure(key, hook, work, kind, text, blocked.attempts, since, wall, next_attempt, letter)
        self._blocked.failing.failed(before, blocked.failure)
        name, shown = self._setup.program.name, key.decode("utf-8", "backslashreplace")
        message = (
            f"computation {name!r}, key {shown!r}, {work}: {error_message(error)}{f'; {letter}' if letter else ''} "
            f"(attempt {blocked.attempts}; {decision.value})"
        )
        endless = decision is Decision.RETRY and blocked.attempts >= self.policy.max_attempts
        stops, remedy = decision is Decision.STOP, self._setup.program.remedy
        return HookFailed(message, hook, kind, error, stops, endless, bool(letter), remedy)

    def clear(self, blocked: BlockedKey) -> None:
        """Clear the key's failure: its work has succeeded or was given up."""
        blocked.failing, blocked.attempts = None, 0
        if blocked.failure is not None:
            self._blocked.failing.cleared(blocked.failure)
            blocked.failure = None

    def dead_letter(self, key: bytes, item: Item, error: BaseException, attempts: int) -> Production:
        """The dead letter of ``item``.

        Raises:
            UnkeyedLetterError: A consumer of the dead letters has no key for it.
        """
        cause_id: Any
        replay_of: int | None = None
        if isinstance(item, RecordItem):
            receipt, index = item
            delivery = receipt.delivery
            stream = self._setup.program.input_names[delivery.stream]
            stamp, value, tag = delivery.timestamps[index], delivery.values[index], ""
            cause_id = (delivery.ids, index)
            if isinstance(delivery.ids, BatchIds):
                replay_of = replayed_offset(delivery.ids.query, delivery.ids.ids[index])
        else:
            stream, value, tag = "", b"", item[2]
            stamp = item[0] if item[1] is TimeDomain.EVENT_TIME else self._clocks.watermark_of(key)
            setting = self._timers.tables[item[1]].get(key, item[2])
            cause_id = setting.set_at_position if setting else 0
        letter = DeadLetter(
            self._setup.program.name,
            self._shown_key(key, item),
            stream,
            stamp,
            value,
            tag,
            attempts,
            error_message(error)[:_ERROR_CHARACTERS],
            error_traceback(error)[-_TRACEBACK_CHARACTERS:],
            key,
            self._setup.config.incarnation,
            self._setup.config.code,
            replay_of,
            self._clocks.wall,
        )
        binding = self._setup.scope.outputs[DEAD_LETTERS]
        encoded = binding.encode(letter)
        try:
            targets = binding.route(letter)
        except HOOK_ERRORS as refused:
            raise UnkeyedLetterError(refused) from refused
        return Production(binding.stream, encoded, stamp, targets, cause_id)

    def _shown_key(self, key: bytes, item: Item) -> str:
        """The key in a dead letter: the user's, also where the step of the library has keys of its own."""
        program, own = self._setup.program, key.decode("utf-8", "backslashreplace")

        def values() -> list[Any]:
            if not isinstance(item, RecordItem):
                return []
            delivery = item.receipt.delivery
            return program.diverted[delivery.stream](program.inputs[delivery.stream](delivery.values[item.record]))

        try:
            return program.computation._key_in_letters(own, values)
        except HOOK_ERRORS:
            return own  # the value that cannot be decoded may be why the hook failed


def work_text(item: Item) -> str:
    """A description of the record or timer for people."""
    if isinstance(item, RecordItem):
        delivery = item.receipt.delivery
        at = format_timestamp(Timestamp(delivery.timestamps[item.record]))
        return f"record of stream {delivery.stream!r} at {at}"
    return f"timer {item[2]!r} at {format_timestamp(Timestamp(item[0]))}"
