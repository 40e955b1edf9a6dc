"""The core of one stream's log: a pure state machine (section 4.3).

It takes an event and the time, and returns effects (:mod:`millwheel.model.core_protocol`). It has the stages of every
owner (:mod:`millwheel.worker.owner`). A record goes delivery → duplicate check → one conditional append → ACK to the
sender → subscribers. One commit is in flight at a time. Records that arrive meanwhile form the next commit. So a commit
is one delivery under light load, and grows under heavy load.

Invariant: subscribers see only committed records, and their ACKs never exceed the log's end. A log that is lost also
ends its subscribers' calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millwheel.model.core_protocol import RisingValues, require
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.worker.followed_senders import FollowedSenders
from millwheel.worker.log.checkpoint import LogCheckpointer
from millwheel.worker.log.commits import LogCommits
from millwheel.worker.log.intake import LogReceiver
from millwheel.worker.log.letter_requests import list_letters, mark_letters
from millwheel.worker.log.messages import (
    AckOffset,
    CursorsAnswer,
    DeleteCursor,
    EndSubscription,
    Fetch,
    LettersAnswer,
    ListCursors,
    ListLetters,
    LogEffect,
    LogEvent,
    MarkLetters,
    RetentionChanged,
    Subscribe,
    Unsubscribe,
)
from millwheel.worker.log.pump import LogPump, Subscribers
from millwheel.worker.log.recovery import recover
from millwheel.worker.log.sessions import SegmentReader, Sessions
from millwheel.worker.log.settings import LogConfig
from millwheel.worker.log.state import LogState
from millwheel.worker.log.traces import LogTraces
from millwheel.worker.lookups import refusal
from millwheel.worker.messages import (
    Appended,
    Delivery,
    Opened,
    PartsMissing,
    PartsRead,
    PartsWritten,
    PrepareRelease,
    ReleasePrepared,
    StatesFlushed,
    StatesRead,
    Tick,
)
from millwheel.worker.owner import Handler, OwnerCore, OwnerPhase
from millwheel.worker.snapshot_holds import SnapshotHolds

__all__ = ["LogCore"]

_ANSWERED: Final = frozenset({Subscribe, ListCursors, DeleteCursor, ListLetters, MarkLetters})
"""Events that a lost log also answers: it reports that it is not served here."""


class LogCore(OwnerCore[LogEvent, LogEffect]):
    """One stream's log, for one sequencer. Driven as :class:`millwheel.model.core_protocol.Core` says.

    Its clock is the owner's steady clock. No wall clock is used.
    """

    def __init__(self, config: LogConfig, traces: LogTraces | None = None) -> None:
        """
        Args:
            config: Its identity and limits.
            traces: The spans of sampled records. None: there are none.
        """
        self.state = state = LogState(config, traces)
        self._receiver = LogReceiver(config, state.ids, state.inputs, state.intake, state.records, state.cursors)
        self._admission = admission = self._receiver.admission
        checkpoints = LogCheckpointer(state)
        self._sessions = sessions = Sessions(state)
        self._reader = SegmentReader(state, sessions)
        subscribers = Subscribers(state, sessions, self._reader)
        self._commits = commits = LogCommits(state, admission.segments, checkpoints, sessions.by_subscriber)
        senders = FollowedSenders(state.inputs, state.ids, admission)
        pump = LogPump(state, commits, subscribers, checkpoints)
        super().__init__(config, senders, pump.set_now, pump)
        self._rising = RisingValues()
        self._handlers |= {
            Appended: commits.appended,
            Fetch: sessions.fetch,
            AckOffset: sessions.ack,
            Tick: lambda event: None,
            StatesRead: self._reader.rows_read,
            StatesFlushed: checkpoints.flushed,
            PartsWritten: self._on_parts_written,
            PartsRead: admission.lookups.segments_read,
            PartsMissing: admission.lookups.segments_missing,
            Subscribe: self._on_subscribe,
            Unsubscribe: sessions.unsubscribe,
            ListCursors: self._on_cursor_request,
            DeleteCursor: self._on_cursor_request,
            ListLetters: self._on_letter_request,
            MarkLetters: self._on_letter_request,
            PrepareRelease: self._on_prepare_release,
            RetentionChanged: self._on_retention_changed,
            **SnapshotHolds(state.journal, lambda: self.phase is OwnerPhase.SERVING).handlers,
        }

    # Stages of an owner.

    def _recover(self, opened: Opened) -> None:
        recover(self.state, opened)
        self.state.journaled_watermark = self.state.watermark

    def _serve(self, watermark: int) -> Sequence[LogEffect]:
        self.state.watermark = max(self.state.watermark, watermark)
        return ()

    def _delivery_handler(self, serving: bool) -> Handler:
        return self._receiver.deliver if serving else _refuse

    def _end(self) -> Sequence[LogEffect]:
        error = self._unavailable()
        unanswered: list[LogEffect] = [CursorsAnswer(asker, [], error) for asker in self.state.cursors.askers()]
        unanswered += [LettersAnswer(asker, error=error) for asker in self.state.letters.askers()]
        return [*unanswered, *self._sessions.end_all(error)]

    def _answer_lost(self, event: LogEvent) -> Sequence[LogEffect]:
        return self._handlers[type(event)](event) or () if type(event) in _ANSWERED else ()

    def _unavailable(self) -> RequestError:
        message = f"the log of stream {self.state.config.stream!r} is not served here now: {self.phase.value}"
        return RequestError(FailureCode.UNAVAILABLE, message, "ask the master for its owner, and try again")

    # The store.

    def _on_parts_written(self, event: PartsWritten) -> None:
        self.state.journal.parts_written(event.number)
        self._admission.segments.written(event.number)

    def _on_prepare_release(self, event: PrepareRelease) -> Sequence[LogEffect]:
        """No preparation is needed: a log's base is small, and normal operation keeps its journal short."""
        journal = self.state.journal
        return [ReleasePrepared(event.request, journal.above, journal.committed)]

    def _on_retention_changed(self, event: RetentionChanged) -> None:
        """What is older or more than the new retention keeps goes with the next commit, which comes when it is due."""
        self.state.retention = event.retention

    # Subscribers and cursors.

    @property
    def has_room(self) -> bool:
        """Whether it takes any record. Without room it refuses those ahead of the low watermark, or all."""
        return self._receiver.has_room()

    def _on_subscribe(self, event: Subscribe) -> Sequence[LogEffect]:
        if self.phase is not OwnerPhase.SERVING:
            return [EndSubscription(event.subscriber, self._unavailable())]
        return self._sessions.subscribe(event)

    def _on_cursor_request(self, event: ListCursors | DeleteCursor) -> Sequence[LogEffect]:
        if self.phase is not OwnerPhase.SERVING:
            return [CursorsAnswer(event.asker, [], self._unavailable())]
        if isinstance(event, ListCursors):
            return self._sessions.list_cursors(event)
        return self._sessions.delete_cursor(event)

    def _on_letter_request(self, event: ListLetters | MarkLetters) -> Sequence[LogEffect]:
        if self.phase is not OwnerPhase.SERVING:
            return [LettersAnswer(event.asker, error=self._unavailable())]
        return list_letters(self.state, event) if isinstance(event, ListLetters) else mark_letters(self.state, event)

    def check_invariants(self) -> None:
        """Check the log's invariants, once its journal is read.

        Raises:
            InvariantError: An invariant does not hold.
        """
        if self.phase is OwnerPhase.OPENING:
            return
        state, journal, intake, records = self.state, self.state.journal, self.state.intake, self.state.records
        cursors, start, end = state.cursors.durable, records.start, records.end
        self._rising.check(
            watermark=state.watermark,
            journaled_watermark=state.journaled_watermark,
            age=state.clock.age,
            committed=journal.committed,
            truncation_point=journal.truncation_point,
            start=start,
            end=end,
        )
        require(state.journaled_watermark <= state.watermark, "a journaled watermark is not above the log's (G7)")
        require(journal.above >= 0, "the truncation point is not above the last commit")
        first = (records.oldest() or records.open).first
        require((start, end) == (first, records.open.end), "the log's first and next offset are those of its segments")
        require(start <= end, "the log's first offset is not above its end")
        state.cursors.check()
        state.letters.check()
        require(all(acked <= end for acked in cursors.values()), "no cursor's ACK is above the log's end")
        require(intake.bytes >= 0 and (intake.bytes == 0) == (len(intake.pending) == 0), "the intake is balanced (G13)")


def _refuse(delivery: Delivery) -> list[LogEffect]:
    return [refusal(delivery, "the log is being opened")]
