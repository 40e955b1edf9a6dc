"""Turning a batch into one journal entry: the commit's new states, timers, holds, productions and ids (G2)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from millwheel.core.limits import MAX_STATE_BYTES
from millwheel.sdk.context import UNSET, Production, TimerSetting
from millwheel.sdk.errors import TooLargeError
from millwheel.worker.dedup import BatchIds, IdDelta, PositionIds
from millwheel.worker.interval.entry import FORMAT, Entry, ProductionRow, TimerRow
from millwheel.worker.interval.intake import Receipt
from millwheel.worker.interval.outbox import Shipment
from millwheel.worker.interval.runner import Batch
from millwheel.worker.interval.state import INDEX_BITS, IntervalState, effective_hold

__all__ = ["Sealed", "Sealer"]


class Sealed:
    """A sealed batch on its way into the journal.

    Its effects are in the soft state already; until the entry is committed nothing of it is shown to
    anybody: not ACKed, not sent (weak productions aside), and ``released`` still holds the output watermark.
    """

    __slots__ = ("commit", "consumed", "entry", "ids", "released", "shipments", "unacked")

    def __init__(self, commit: int) -> None:
        self.commit = commit
        self.entry: Entry | None = None
        self.consumed: list[tuple[Receipt, list[int]]] = []
        self.ids: IdDelta | None = None
        self.released: list[int] = []
        self.shipments: list[Shipment] = []
        self.unacked: set[int] = set()
        """Tokens of weak productions that the commit waits for (6.1.3)."""


class Sealer:
    """Seals batches, in the order of their commit numbers."""

    def __init__(self, state: IntervalState, failed: Callable[[bytes, Exception], None]) -> None:
        self.state = state
        self._failed = failed

    def encode_states(self, batch: Batch) -> list[tuple[bytes, bytes]]:
        """The changed states of the batch, encoded. A key whose state cannot be stored fails, and drops out."""
        encode = self.state.program.state.encode
        changed: list[tuple[bytes, bytes]] = []
        broken: list[tuple[bytes, Exception]] = []
        for key, context in batch.contexts.items():
            cell = context._cell
            value = cell.value
            if value is UNSET:
                continue
            try:
                encoded = encode(value) if value is not None else b""
            except Exception as error:
                broken.append((key, error))
                continue
            if encoded != cell.encoded:
                if len(encoded) > MAX_STATE_BYTES:
                    what = f"the state of key {context.key!r}"
                    broken.append((key, TooLargeError(what, len(encoded), MAX_STATE_BYTES)))
                else:
                    changed.append((key, encoded))
        for key, error in broken:
            self._failed(key, error)
        return changed

    def seal(self, batch: Batch, changed: list[tuple[bytes, bytes]], duplicates: int) -> Sealed:
        """Apply the batch to the soft state, as commit ``state.sealed + 1``, and build its entry."""
        state = self.state
        state.sealed += 1
        sealed = Sealed(state.sealed)
        sealed.released = batch.firing
        sealed.consumed = [one for one in batch.consumed if one[1]]
        state.cells.changed(changed, sealed.commit)
        cleared = self._clear_fired(batch, sealed)
        timers: list[TimerRow] = []
        holds: list[tuple[bytes, int | None]] = []
        producing: list[tuple[bytes, list[Production]]] = []
        for key, context in batch.contexts.items():
            if context._timers is not None:
                self._apply_timers(key, context._timers, sealed, timers, cleared)
            if context._productions:
                producing.append((key, context._productions))
            if context._hold is not UNSET:
                self._apply_hold(key, context._hold, sealed)
                holds.append((key, context._hold))
        productions = self._productions(producing, sealed.commit)
        if state.program.options.exactly_once and sealed.consumed:
            sealed.ids = state.dedup.take([(receipt.verdict, indexes) for receipt, indexes in sealed.consumed])
        records = sum(len(indexes) for _, indexes in sealed.consumed)
        sealed.shipments = state.outbox.add(productions)
        sealed.entry = Entry(
            FORMAT,
            state.watermark,
            state.wall,
            changed,
            holds,
            timers,
            cleared,
            productions,
            sealed.ids.to_wire() if sealed.ids is not None else [],
            [],
            (records, duplicates, batch.late, batch.dead),
        )
        return sealed

    def _clear_fired(self, batch: Batch, sealed: Sealed) -> list[tuple[bytes, bool, str]]:
        cleared = []
        for key, fired in batch.fired.items():
            for _, wall, tag in fired:
                self._release(self.state.timers[wall].cancel(key, tag), wall, sealed)
                cleared.append((key, wall, tag))
        return cleared

    def _release(self, setting: TimerSetting | None, wall: bool, sealed: Sealed) -> None:
        """A timer's hold goes when the commit that ends the timer is in the journal, not before."""
        if setting is not None and (hold := effective_hold(setting, wall)) is not None:
            sealed.released.append(hold)

    def _apply_timers(
        self,
        key: bytes,
        settings: dict[tuple[bool, str], TimerSetting | None],
        sealed: Sealed,
        timers: list[TimerRow],
        cleared: list[tuple[bytes, bool, str]],
    ) -> None:
        state = self.state
        for (wall, tag), setting in settings.items():
            if setting is None:
                previous = state.timers[wall].cancel(key, tag)
                if previous is not None:
                    self._release(previous, wall, sealed)
                    cleared.append((key, wall, tag))
                continue
            previous = state.timers[wall].get(key, tag)
            hold = setting.hold
            if hold is not None and hold < state.output:
                # Nothing can hold back what has been reported: what a late setter causes is late.
                hold = setting.cause
            if previous is not None and (previous.at, previous.hold) == (setting.at, hold) and not wall:
                # Set again as it is, say by each record of a window: nothing to journal.
                continue
            origin = sealed.commit << INDEX_BITS | len(timers)
            setting = TimerSetting(setting.at, hold, setting.cause, origin)
            if (holds_at := effective_hold(setting, wall)) is not None:
                state.hold_times.add(holds_at)
            self._release(state.timers[wall].set(key, tag, setting), wall, sealed)
            timers.append((key, wall, tag, setting.at, hold, setting.cause, origin))

    def _apply_hold(self, key: bytes, hold: int | None, sealed: Sealed) -> None:
        state = self.state
        previous = state.holds.pop(key, None)
        if previous is not None:
            sealed.released.append(previous)
        if hold is not None:
            state.holds[key] = hold
            state.hold_times.add(hold)

    def _productions(self, producing: list[tuple[bytes, list[Production]]], commit: int) -> list[ProductionRow]:
        rows: list[ProductionRow] = []
        position = commit << INDEX_BITS
        weak = not self.state.program.options.strong
        append = rows.append
        for key, produced in producing:
            ordinal, origin = 0, None
            for stream, value, timestamp, targets, cause in produced:
                opaque = b""
                if weak:
                    ordinal = ordinal + 1 if cause is origin else 0
                    origin = cause
                    opaque = self._causal_id(cause, stream, ordinal)
                append((position, key, stream, value, timestamp, targets, opaque))
                position += 1
        return rows

    def _causal_id(self, cause: Any, stream: str, ordinal: int) -> bytes:
        """A weak production's id: a hash of what caused it and its number, the same after any crash (design §8)."""
        config = self.state.config
        source = _record_name(*cause) if isinstance(cause, tuple) else f"timer/{config.journal}/{cause}".encode()
        text = b"\0".join((config.computation.encode(), source, stream.encode(), str(ordinal).encode()))
        return hashlib.blake2b(text, digest_size=16).digest()


def _record_name(ids: Any, index: int) -> bytes:
    """An input record's id as bytes: the same for every copy of the record, whoever delivers it."""
    if isinstance(ids, PositionIds):
        return f"position/{ids.sequence}/{ids.positions[index]}".encode()
    if isinstance(ids, BatchIds):
        return b"batch/" + ids.query.encode() + b"/" + ids.ids[index]
    return b"opaque/" + bytes(ids.ids[index])
