"""InspectionService: keys, states and timers after the interval's last commit, reported by its owner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from millwheel.model.interval_map import interval_from_proto
from millwheel.model.time import TimeDomain
from millwheel.rpc.clock import wall_now
from millwheel.rpc.errors import answering
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.rpc.v1.inspection_pb2_grpc import InspectionServiceServicer
from millwheel.sdk.effects import TimerSetting
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.scope import PAGES_TAG
from millwheel.store.contract import PartId, StateStore
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.entry import TimerRow
from millwheel.worker.interval.shown_panes import pane_timers, panes_of, with_panes
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.process.hook_status import failures_of, hooks_of, key_failure, waits_of
from millwheel.worker.process.listings import KeyListing, TimerListing, page_size, spilled_rows
from millwheel.worker.process.owned_states import OwnedStates
from millwheel.worker.process.state_text import MAX_SHOWN, shown_state, state_text

__all__ = ["InspectionService", "status_of"]

Page = TypeVar("Page", wire.ListKeysResponse, wire.ListTimersResponse)

_APPEND_SECONDS: Final = 2.0
"""An append takes some milliseconds. If the store does not answer, an inspection says so, instead of waiting for it."""


class InspectionService(InspectionServiceServicer):
    """Answers for the intervals that this process runs."""

    def __init__(
        self,
        owned: OwnedStates,
        store: StateStore,
        load: Callable[[], wire.GetWorkerLoadResponse],
        append_seconds: float = _APPEND_SECONDS,
    ) -> None:
        """
        Args:
            owned: The intervals and states of this process.
            store: The store with spilled timers.
            load: The load of the process and its intervals.
            append_seconds: How long an inspection waits for the commit that it shows.
        """
        self._owned = owned
        self._store = store
        self._load = load
        self._append_seconds = append_seconds
        self._keys = KeyListing(owned, store)
        self._timers = TimerListing(store)
        self._listing = asyncio.Lock()
        """One page is made at a time."""

    async def InspectKey(self, request: wire.InspectKeyRequest, context: Any) -> wire.InspectKeyResponse:
        """One key: state, timers, hold and pending work."""
        return await answering(context, lambda: self._inspect(request))

    async def ListKeys(self, request: wire.ListKeysRequest, context: Any) -> wire.ListKeysResponse:
        """Keys of one interval that have a state or a timer."""

        async def page(core: IntervalCore) -> wire.ListKeysResponse:
            try:
                within = interval_from_proto(request.keys)
            except ValueError as error:
                raise RequestError(FailureCode.INVALID_ARGUMENT, str(error)) from error
            size = page_size(request.page_size)
            return await self._keys.page(core, within, size, request.page_token, states=request.states)

        return await answering(context, lambda: self._list(request.journal, page))

    async def ListTimers(self, request: wire.ListTimersRequest, context: Any) -> wire.ListTimersResponse:
        """Timers of one interval that have not fired."""

        async def page(core: IntervalCore) -> wire.ListTimersResponse:
            key = request.key if request.HasField("key") else None
            return await self._timers.page(core, key, page_size(request.page_size), request.page_token)

        return await answering(context, lambda: self._list(request.journal, page))

    async def _list(self, journal: str, page: Callable[[IntervalCore], Awaitable[Page]]) -> Page:
        """Make a page, and wait until all that it shows is committed."""
        async with self._listing:
            core = self._owned.core(journal, f"journal {journal!r}")
            made = await page(core)
        sealed = core.state.journal.sealed
        try:
            await self._owned.committed(core, sealed, self._append_seconds)
        except TimeoutError:
            raise RequestError(
                FailureCode.UNAVAILABLE,
                f"the store has not taken commit {sealed} of journal {journal}",
                "try again later",
            ) from None
        return made

    async def GetIntervalStatus(
        self, request: wire.GetIntervalStatusRequest, context: Any
    ) -> wire.GetIntervalStatusResponse:
        """One interval: commits, watermarks, queues and totals."""
        return await answering(context, lambda: self._status(request))

    async def GetWorkerLoad(self, request: wire.GetWorkerLoadRequest, context: Any) -> wire.GetWorkerLoadResponse:
        """The load of the process and of each interval over the last seconds."""
        return self._load()

    async def _inspect(self, request: wire.InspectKeyRequest) -> wire.InspectKeyResponse:
        journal = self._owned.locate(request.incarnation, request.key)
        core = self._owned.core(journal, f"an interval of {request.incarnation!r} with key {request.key!r}")
        state = core.state
        spilled = await self._spilled_timers(state, request.key)
        encoded, damage = await self._encoded_state(core, request.key)
        # From here to the wait nothing changes, unless the state had to be read from its row.
        sealed = state.journal.sealed
        response = wire.InspectKeyResponse(journal=state.config.journal, state=encoded, state_error=damage)
        _add_state(response, state, request.key)
        _add_timers(response, state, request.key, spilled)
        hold = state.holds.of_keys.get(request.key)
        if hold is not None:
            response.hold_us = hold
        response.pending_productions = sum(
            outbound.producers[index] == request.key for outbound in state.outbox for index in outbound.indexes()
        )
        blocked = state.blocked.keys.get(request.key)
        response.pending_records = len(blocked.items) if blocked is not None else 0
        if blocked is not None and blocked.failure is not None:
            response.failure.CopyFrom(key_failure(core, blocked.failure))
        response.waits, response.stopped = waits_of(core, request.key), core.stopped
        # All of this is what is sealed. It is committed once its entry is in the journal.
        try:
            await self._owned.committed(core, sealed, self._append_seconds)
        except TimeoutError:
            response.sealed_commit = sealed
        response.commit = min(sealed, state.committed)
        return response

    async def _spilled_timers(self, state: IntervalState, key: bytes) -> list[TimerRow]:
        """The key's timers that are only in the store, as of the return. Parts may change during the reading."""
        read: dict[PartId, list[TimerRow]] = {}
        while missing := [part for part in state.timers.spilled.parts_of(key) if part not in read]:
            read[missing[0]] = []
            async for rows in spilled_rows(self._store, state, missing[0]):
                read[missing[0]] += [row for row in rows if row[0] == key]
        spilled = state.timers.spilled
        return spilled.current_rows(row for part in spilled.parts_of(key) for row in read[part])

    async def _encoded_state(self, core: IntervalCore, key: bytes) -> tuple[bytes, str]:
        """The key's state, and why it cannot be read. One of them is empty."""
        cell = core.state.cells.peek(key)
        if cell is not None:
            return cell.encoded, ""
        damaged: dict[bytes, str] = {}
        rows = await self._owned.rows(core, [key], damaged)
        return rows.get(key, b""), damaged.get(key, "")

    async def _status(self, request: wire.GetIntervalStatusRequest) -> wire.GetIntervalStatusResponse:
        return status_of(self._owned.core(request.journal, f"journal {request.journal!r}"))


def _add_state(response: wire.InspectKeyResponse, state: IntervalState, key: bytes) -> None:
    """Add the panes of ``key`` to its encoded state, and show it as text."""
    encoded = response.state
    try:
        encoded = response.state = with_panes(state, encoded, panes_of(state.panes, key))
    except Exception as error:  # of a migration in user code
        response.state_error = error_message(error)
    if not encoded:
        return
    try:
        value = state.program.state.decode(encoded)
        response.state_text = state_text(value)
        response.state_shown = shown_state(value, state.program.state.kind) if len(encoded) <= MAX_SHOWN else ""
    except Exception as error:  # of a codec, or of a migration in user code
        response.state_error = error_message(error)


def _add_timers(
    response: wire.InspectKeyResponse, state: IntervalState, key: bytes, spilled: Sequence[TimerRow]
) -> None:
    """Add the timers of ``key``. ``spilled``: those that are only in the store."""
    for domain, table in state.timers.tables.items():
        processing = domain is TimeDomain.PROCESSING_TIME
        stored = {row[2]: TimerSetting(*row[3:]) for row in spilled if row[1] is processing}
        if not processing:
            stored |= pane_timers(state.panes, key)
        for tag, setting in sorted((stored | table.of_key(key)).items()):
            if tag == PAGES_TAG:
                continue
            timer = response.timers.add(tag=tag, timestamp_us=setting.at, wall_time=processing)
            if setting.hold is not None:
                timer.hold_us = setting.hold


def status_of(core: IntervalCore) -> wire.GetIntervalStatusResponse:
    """An interval's present figures."""
    state = core.state
    counts = state.counts
    response = wire.GetIntervalStatusResponse(
        journal=state.config.journal,
        incarnation=state.config.incarnation,
        sequencer=state.config.sequencer,
        commit=state.committed,
        truncation_point=state.journal.truncation_point,
        input_watermark_us=state.watermark,
        output_watermark_us=state.output.value,
        queued_records=state.intake.records,
        pending_productions=state.outbox.unacked.records,
        timers=state.timers.count + len(state.panes),
        cached_bytes=state.cells.bytes_held + state.panes.bytes,
        stopped=core.stopped,
        records_total=counts.records,
        duplicates_total=counts.duplicates,
        late_total=counts.late,
        dead_letters_total=counts.dead_letters,
        dropped_total=counts.dropped,
        hooks=hooks_of(core),
    )
    response.hold.kind, response.hold.subject = core.explain_hold()
    response.awaited_groups.extend(core.awaited_groups())
    if (failures := failures_of(core, wall_now())) is not None:
        response.failures.CopyFrom(failures)
    response.keys.start = state.config.keys.start
    if state.config.keys.end is not None:
        response.keys.end = state.config.keys.end
    return response
