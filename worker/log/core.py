"""The core of one stream's log: a pure state machine (section 4.3).

It takes an event and the time, and returns effects (:mod:`millwheel.model.core_protocol`). It starts as an interval
does: it fences and reads the journal (G3), replays it, lets the authority accept its sequencer (G4), then serves. A
record goes delivery → duplicate check → one conditional append → ACK to the sender → subscribers. One commit is in
flight at a time. Records that arrive meanwhile form the next commit. So a commit is one delivery under light load, and
grows under heavy load.

Invariant: subscribers see only committed records, and their ACKs never exceed the log's end. Who could break it: a
deposed owner of the log that resumes. The fence refuses its appends, and the authority refuses its reports. At the
first refusal it ends its subscribers' calls and stops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.worker.log.checkpoint import LogCheckpointer
from millwheel.worker.log.commits import LogCommits
from millwheel.worker.log.invariants import LogInvariants
from millwheel.worker.log.messages import (
    AckOffset,
    CursorsAnswer,
    DeleteCursor,
    EndSubscription,
    Fetch,
    ListCursors,
    LogEffect,
    LogEvent,
    Subscribe,
    Unsubscribe,
)
from millwheel.worker.log.receiving import LogReceiving
from millwheel.worker.log.recovery import recover
from millwheel.worker.log.sessions import SegmentReader, Sessions
from millwheel.worker.log.settings import LogConfig
from millwheel.worker.log.state import LogState
from millwheel.worker.log.subscribers import Subscribers
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Appended,
    CatalogChanged,
    Delivery,
    Deposed,
    FenceJournal,
    Opened,
    OpenFailed,
    PartsMissing,
    PartsRead,
    PartsWritten,
    PrepareRelease,
    ReleasePrepared,
    Report,
    SenderWatermarks,
    SequenceChecked,
    Started,
    StatesFlushed,
    StatesRead,
    Tick,
)

__all__ = ["LogCore", "LogPhase"]


_ANSWERED: Final = frozenset({Subscribe, ListCursors, DeleteCursor})
"""Events that a deposed log also answers: it reports that it is not served here."""


class LogPhase(Enum):
    """The states of an owner."""

    OPENING = "taking the journal"
    ACCEPTING = "waiting for the authority"
    SERVING = "serving"
    LOST = "not the owner any more"


class LogCore:
    """One stream's log, for one sequencer. Driven as :class:`millwheel.model.core_protocol.Core` says."""

    def __init__(self, config: LogConfig) -> None:
        self.state = state = LogState(config)
        self.phase = LogPhase.OPENING
        self.lost_because = ""
        self._receiving = LogReceiving(state)
        self._checkpoints = LogCheckpointer(state)
        self._sessions = sessions = Sessions(state)
        self._reader = SegmentReader(state, sessions)
        self._subscribers = Subscribers(state, sessions, self._reader)
        self._commits = LogCommits(state, self._receiving, self._checkpoints, lambda: bool(sessions.by_subscriber))
        self._reported: tuple[int, HoldKind.ValueType] | None = None
        self._invariants = LogInvariants(state)
        self._handlers: dict[type, Callable[[Any], Sequence[LogEffect] | None]] = {
            Delivery: self._on_delivery,
            Appended: self._on_appended,
            SenderWatermarks: self._on_watermarks,
            Fetch: self._subscribers.fetch,
            AckOffset: self._subscribers.ack,
            Tick: lambda event: None,
            CatalogChanged: self._on_catalog_changed,
            StatesRead: self._reader.rows_read,
            StatesFlushed: self._on_flushed,
            PartsWritten: self._on_parts_written,
            PartsRead: self._receiving.segments_read,
            PartsMissing: self._receiving.segments_missing,
            SequenceChecked: self._receiving.sequence_checked,
            Subscribe: self._on_subscribe,
            Unsubscribe: sessions.unsubscribe,
            ListCursors: self._on_cursor_request,
            DeleteCursor: self._on_cursor_request,
            Started: self._on_started,
            Opened: self._on_opened,
            Accepted: self._on_accepted,
            OpenFailed: self._on_lost,
            PrepareRelease: self._on_prepare_release,
            Deposed: self._on_lost,
        }

    @property
    def keys(self) -> KeyInterval:
        """All keys: a log has one interval."""
        return ALL_KEYS

    @property
    def subscribers(self) -> int:
        """Number of subscribers."""
        return len(self._sessions.by_subscriber)

    def step(self, event: LogEvent, now: int) -> Sequence[LogEffect]:
        """Process ``event`` at ``now``, in microseconds of the owner's steady clock. No wall clock is used."""
        if self.phase is LogPhase.LOST and type(event) not in _ANSWERED:
            return []
        self.state.clock.look(now)
        out = list(self._handlers[type(event)](event) or ())
        if self.phase is LogPhase.SERVING:
            self._pump(out)
        return out

    def next_deadline(self) -> int | None:
        """When a ``Tick`` is due if no event comes before, on the same clock. None: never."""
        return self._commits.next_alarm() if self.phase is LogPhase.SERVING else None

    def check_invariants(self) -> None:
        """Check the log's invariants, once its journal is read. Raises InvariantError."""
        if self.phase is not LogPhase.OPENING:
            self._invariants.check()

    def _on_prepare_release(self, event: PrepareRelease) -> Sequence[LogEffect]:
        """No preparation is needed: a log's base is small, and normal operation keeps its journal short."""
        state = self.state
        return [ReleasePrepared(event.request, state.committed - state.journal.truncation_point, state.committed)]

    # Start and end of ownership.

    def _on_started(self, event: Started) -> Sequence[LogEffect]:
        config = self.state.config
        return [FenceJournal(config.journal, config.sequencer)]

    def _on_opened(self, event: Opened) -> Sequence[LogEffect]:
        recover(self.state, event)
        self.state.assured = self.state.watermark
        self._receiving.collect_early()
        self.phase = LogPhase.ACCEPTING
        config = self.state.config
        return [AcceptSequencer(config.computation, ALL_KEYS, config.sequencer)]

    def _on_accepted(self, event: Accepted) -> None:
        self.state.watermark = max(self.state.watermark, event.watermark)
        self.phase = LogPhase.SERVING

    def _on_lost(self, event: Deposed | OpenFailed) -> Sequence[LogEffect]:
        self.phase = LogPhase.LOST
        self.lost_because = event.reason
        error = self._unavailable()
        unanswered: list[LogEffect] = [CursorsAnswer(asker, [], error) for asker in self.state.cursors.askers()]
        return [*unanswered, *self._sessions.end_all(error)]

    def _unavailable(self) -> RequestError:
        message = f"the log of stream {self.state.config.stream!r} is not served here now: {self.phase.value}"
        return RequestError(FailureCode.UNAVAILABLE, message, "ask the master for its owner, and try again")

    # Deliveries and the store.

    def _on_delivery(self, event: Delivery) -> Sequence[LogEffect]:
        return self._receiving.deliver(event, self.phase is LogPhase.SERVING)

    def _on_appended(self, event: Appended) -> Sequence[LogEffect]:
        return self._commits.appended(event.commit)

    def _on_watermarks(self, event: SenderWatermarks) -> None:
        self.state.inputs.update(event.values)
        if self.phase is LogPhase.OPENING:
            self._receiving.collect_later(event)
        else:
            self._receiving.collect(event)

    def _on_catalog_changed(self, event: CatalogChanged) -> None:
        if event.slack is not None:
            self.state.slack = event.slack
        self._receiving.retire(event.retired)
        self._receiving.end(event.ended_injectors, event.ended_queries)
        inputs = self.state.inputs
        known = inputs.senders.keys()
        for sender in event.senders - known:
            inputs.add(sender)
        for sender in known - event.senders:
            inputs.remove(sender)

    def _on_flushed(self, event: StatesFlushed) -> None:
        self._checkpoints.flushed(event.number)

    def _on_parts_written(self, event: PartsWritten) -> None:
        self._checkpoints.parts_written(event.number)
        self._receiving.parts_written(event.number)

    # Subscribers and cursors.

    def _on_subscribe(self, event: Subscribe) -> Sequence[LogEffect]:
        if self.phase is not LogPhase.SERVING:
            return [EndSubscription(event.subscriber, self._unavailable())]
        return self._sessions.subscribe(event)

    def _on_cursor_request(self, event: ListCursors | DeleteCursor) -> Sequence[LogEffect]:
        if self.phase is not LogPhase.SERVING:
            return [CursorsAnswer(event.asker, [], self._unavailable())]
        if isinstance(event, ListCursors):
            return self._sessions.list_cursors(event)
        return self._sessions.delete_cursor(event)

    # After each event: perform every step that is possible now.

    def _pump(self, out: list[LogEffect]) -> None:
        state = self.state
        self._advance_watermark()
        self._commits.try_commit(out)
        self._subscribers.serve(out)
        if state.records.dirty or state.records.emptied:
            out.extend(self._checkpoints.flush())
        state.records.evict(state.settings.memory_bytes)
        self._report(out)

    def _advance_watermark(self) -> None:
        """min(the senders' broadcast values, timestamps of uncommitted records), monotone (G7)."""
        state = self.state
        state.watermark = max(state.watermark, min(state.inputs.value, state.intake.pending.min()))

    def _report(self, out: list[LogEffect]) -> None:
        """Report the watermark. Output equals input, which uncommitted records hold (section 4.5)."""
        state, config = self.state, self.state.config
        pending = state.intake.pending.min() <= state.watermark < state.inputs.value
        hold = HoldKind.HOLD_KIND_RECORD if pending else HoldKind.HOLD_KIND_INPUT
        if (reported := (state.watermark, hold)) == self._reported:
            return
        self._reported = reported
        subject = "" if pending else ", ".join(state.inputs.holding()[:3])
        at = state.watermark
        out.append(Report(config.computation, ALL_KEYS, config.sequencer, at, at, hold, subject))
