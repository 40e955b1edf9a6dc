"""Hold explanations: which record, timer, production or key holds the output watermark (G8). They are for people.

They are computed when a report with changed values goes out. So each function examines a few candidates only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from millwheel.model.time import MIN_TIMESTAMP, TimeDomain, Timestamp, format_timestamp
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.worker.interval.blocked_key_table import BlockedKey, Wait
from millwheel.worker.interval.shown_panes import first_pane
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.interval.timers import effective_hold

__all__ = ["BLOCKED", "hold_detail", "hold_subject", "waits_for_input"]

_MAX_LOOKED_AT: Final = 16
_MAX_TIMERS_ASKED: Final = 10_000
"""The most timers that are searched where a user waits for the answer: some milliseconds."""
_MAX_CHARACTERS: Final = 80


BLOCKED: Final = -1
"""Represents the number of failures of a key that is not retried."""


def hold_detail(state: IntervalState, hold: HoldKind.ValueType) -> tuple[bytes | None, int]:
    """The changing part of a hold explanation besides its values: a blocked key, and how often its hook has failed."""
    if hold not in (HoldKind.HOLD_KIND_RECORD, HoldKind.HOLD_KIND_STATE):
        return None, 0
    first = next(iter(state.blocked.keys.items()), None)
    if first is None:
        return None, 0
    key, blocked = first
    return key, blocked.attempts if blocked.failure is None or blocked.failure.next_attempt is not None else BLOCKED


def hold_subject(state: IntervalState, hold: HoldKind.ValueType, value: int, *, asked: bool = False) -> str:
    """What holds the output watermark at ``value``, besides senders. Empty if only a long search could find it.

    ``asked``: a user waits for the answer, so the search may be longer.
    """
    if hold == HoldKind.HOLD_KIND_RECORD:
        return _record(state, value)
    if hold == HoldKind.HOLD_KIND_PRODUCTION:
        return _production(state, value)
    if hold == HoldKind.HOLD_KIND_TIMER:
        timers, end = state.timers.event_time, state.panes.first_end
        by_columns = end is not None and (timers.first_time is None or end < timers.first_time)
        first = first_pane(state.panes) if by_columns else timers.first()
        return "" if first is None else f"key {_shown(first[0])}, tag {first[1]!r}"
    return _hold(state, value, _MAX_TIMERS_ASKED if asked else _MAX_LOOKED_AT)


def waits_for_input(state: IntervalState, hold: HoldKind.ValueType, value: int) -> bool:
    """Whether a timer holds the output watermark at ``value`` that waits for the input watermark."""
    if hold != HoldKind.HOLD_KIND_STATE:
        return False
    found = _waiting_timer(state, value, _MAX_TIMERS_ASKED)
    return found is not None and found[2] is TimeDomain.EVENT_TIME


def _shown(key: bytes) -> str:
    return repr(key[:_MAX_CHARACTERS].decode("utf-8", "backslashreplace"))


def _waits(blocked: BlockedKey) -> str:
    failure = blocked.failure
    if failure is None:
        return f"waits {blocked.wait.value}"
    kind = failure.kind
    raised = f"{kind.error}{f' at {kind.place}' if kind.place else ''}"
    if failure.next_attempt is None:
        return f"is blocked after {blocked.attempts} failed: {raised}"
    why = "for its next attempt" if blocked.wait is Wait.READY else blocked.wait.value
    letter = f"; {failure.letter_in_short}" if failure.letter else ""
    return f"waits {why} after {blocked.attempts} failed: {raised}{letter}"


def _record(state: IntervalState, value: int) -> str:
    for key, blocked in islice(state.blocked.keys.items(), _MAX_LOOKED_AT):
        if any(receipt.held == value for receipt, _ in blocked.items):
            return f"key {_shown(key)} {_waits(blocked)}"
    for queued in islice(state.intake.queue, _MAX_LOOKED_AT):
        if queued.receipt.held == value:
            delivery = queued.receipt.delivery
            index = _oldest(delivery.timestamps, queued.indexes[queued.cursor :], value)
            count = queued.receipt.open
            together = (
                f", one of {count:,} records that came together and hold it until all are done" if count > 1 else ""
            )
            return f"key {_shown(delivery.keys[index])} of stream {delivery.stream!r} in the queue{together}"
    return ""


def _production(state: IntervalState, value: int) -> str:
    for outbound in islice(state.outbox, _MAX_LOOKED_AT):
        if outbound.held == value:
            index = _oldest(outbound.timestamps, outbound.indexes(), value)
            key = _shown(outbound.keys[index])
            return f"key {key} of stream {outbound.stream!r} for consumer {outbound.consumer!r}"
    return ""


def _oldest(timestamps: Sequence[int], indexes: Sequence[int], value: int) -> int:
    """The first of some records with the least timestamp. ``value``: that of all records. Each report asks for it."""
    if len(indexes) == len(timestamps):
        return timestamps.index(value)
    return min(indexes, key=timestamps.__getitem__)


def _hold(state: IntervalState, value: int, timers: int) -> str:
    for key, held in islice(state.holds.of_keys.items(), _MAX_LOOKED_AT):
        if held == value:
            return f"key {_shown(key)}"
    for key, blocked in islice(state.blocked.keys.items(), _MAX_LOOKED_AT):
        for at, domain, tag in blocked.due:
            if at == value and domain is TimeDomain.EVENT_TIME:
                return f"timer {tag!r} of key {_shown(key)} is due and {_waits(blocked)}"
    found = _waiting_timer(state, value, timers)
    if found is None:
        return ""
    key, tag, domain, at = found
    if state.program.feeds:
        read = f"has been read up to {format_timestamp(Timestamp(value))}" if value > MIN_TIMESTAMP else "is new"
        return f"split {_shown(key)} {read}, and its next records may be as old"
    clock = "its low watermark" if domain is TimeDomain.EVENT_TIME else "the clock"
    return f"timer {tag!r} of key {_shown(key)} waits until {clock} is {format_timestamp(Timestamp(at))}"


def _waiting_timer(state: IntervalState, value: int, most: int) -> tuple[bytes, str, TimeDomain, int] | None:
    """The key, tag, domain and time of a timer with a stated hold at ``value``."""
    for domain, table in state.timers.tables.items():
        for key, tag, setting in islice(table.items(), most):
            if effective_hold(setting, domain) == value:
                return key, tag, domain, setting.at
    return None
