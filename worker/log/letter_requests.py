"""Operators' requests about the letters of a dead-letter stream: their states, and changes of them."""

from __future__ import annotations

from millwheel.model.letters import LetterAction
from millwheel.model.stream_names import is_dead_letter_stream
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.worker.log.letters import MAX_IN_BATCH, MAX_MARKS, LetterChange
from millwheel.worker.log.messages import LetterInfo, LettersAnswer, ListLetters, LogEffect, MarkLetters
from millwheel.worker.log.state import LogState

__all__ = ["list_letters", "mark_letters"]


def list_letters(state: LogState, event: ListLetters) -> list[LogEffect]:
    """Answer with what the journal says."""
    if (error := _no_letters(state)) is not None:
        return [LettersAnswer(event.asker, error=error)]
    records, letters = state.records, state.letters
    return [LettersAnswer(event.asker, LetterInfo(records.start, records.end, letters.batch, letters.runs()))]


def mark_letters(state: LogState, event: MarkLetters) -> list[LogEffect]:
    """Change letters with the next commit, which answers; or refuse to."""
    error = _no_letters(state) or _too_many(state, event.changes)
    if error is not None:
        return [LettersAnswer(event.asker, error=error)]
    state.letters.change(event.changes, event.asker)
    return []


def _no_letters(state: LogState) -> RequestError | None:
    if is_dead_letter_stream(state.config.stream):
        return None
    message = f"stream {state.config.stream!r} has no dead letters"
    return RequestError(FailureCode.INVALID_ARGUMENT, message, "name a stream such as TOPOLOGY/dead-letters")


def _too_many(state: LogState, changes: list[LetterChange]) -> RequestError | None:
    stream, letters = state.config.stream, state.letters
    last = max((end for _, _, end in changes), default=0)
    if last > state.records.end:
        message = f"stream {stream!r} has no letter {last - 1:,}: its log ends at {state.records.end:,}"
        return RequestError(FailureCode.OUT_OF_RANGE, message, "list the letters, and name those")
    before = letters.in_batch(())
    if before < letters.in_batch(changes) > MAX_IN_BATCH:
        message = (
            f"the replays of {before:,} letters of stream {stream!r} have begun since none was in replay; "
            f"the most are {MAX_IN_BATCH:,}"
        )
        remedy = "replay those that are in replay again, or discard them with `--in-replay`; then go on"
        return RequestError(FailureCode.RESOURCE_EXHAUSTED, message, remedy, reason="LETTERS_IN_REPLAY")
    grows = any(action != LetterAction.CONFIRM for action, _, _ in changes)
    if grows and letters.marks + 2 * len(changes) > MAX_MARKS:
        message = f"the handled letters of stream {stream!r} have {letters.marks:,} gaps between them"
        remedy = "replay or discard the letters between handled ones"
        return RequestError(FailureCode.RESOURCE_EXHAUSTED, message, remedy, reason="LETTERS_SCATTERED")
    return None
