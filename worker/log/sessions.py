"""The subscriptions to a log: their beginning, requests and end, and operators' requests about cursors (section 4.3).

If several subscribers use one cursor, the newest continues and the others end.
"""

from __future__ import annotations

from typing import Any, Final

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.store.contract import CorruptValueError, StateRow
from millwheel.worker.log.cursors import Cursor
from millwheel.worker.log.entry import SegmentBlob, decode, row_key
from millwheel.worker.log.messages import (
    AckOffset,
    CursorInfo,
    CursorsAnswer,
    DeleteCursor,
    EndSubscription,
    Fetch,
    ListCursors,
    LogEffect,
    Start,
    Subscribe,
    Unsubscribe,
)
from millwheel.worker.log.segment_rows import load_row
from millwheel.worker.log.segments import LogSegment
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import ReadStates, StatesRead

__all__ = ["SegmentReader", "Sessions", "SubscriberSession"]

_MAX_NAMES: Final = 64


class SubscriberSession:
    """One subscriber. ``sent`` is the last (watermark, next offset, durable ACK) that was sent to it."""

    __slots__ = ("credit", "cursor", "position", "ready", "resume", "sent", "subscriber", "window")

    def __init__(self, subscriber: Any, cursor: Cursor | None, window: int, resume: int | None) -> None:
        self.subscriber = subscriber
        self.cursor = cursor
        """The cursor's life that it reads with. None for a tail."""
        self.window = window
        self.resume = resume
        self.position = 0
        self.credit = 0
        self.ready = False
        """Whether its cursor is durable, so that it may read."""
        self.sent: tuple[int, int, int] | None = None


class Sessions:
    """All subscribers of one log."""

    def __init__(self, state: LogState) -> None:
        self.state = state
        self.by_subscriber: dict[int, SubscriberSession] = {}
        """By the subscriber's ``id()``. The session keeps the subscriber alive, so ids are unique."""
        self._by_cursor: dict[str, SubscriberSession] = {}
        self._names: dict[str, list[str]] = {}
        """Names of recent subscribers of each cursor. The last one has the cursor. Bounded, and only in memory."""

    def subscribe(self, event: Subscribe) -> list[LogEffect]:
        """Add a subscriber. An earlier subscriber of the same cursor ends."""
        state, out = self.state, list[LogEffect]()
        end = state.records.end
        if event.resume is not None and event.resume > end:
            return [EndSubscription(event.subscriber, self.beyond_end(event.resume))]
        cursor = state.cursors.find(event.cursor) if event.cursor else None
        if event.life and (cursor is None or cursor.life != event.life):
            return [EndSubscription(event.subscriber, self._cursor_deleted(event.cursor))]
        if event.cursor and not self._enter(event.cursor, event.name):
            return [EndSubscription(event.subscriber, self._taken_over(event.cursor))]
        if event.cursor and cursor is None:
            cursor = state.cursors.create(event.cursor, event.start)
        session = SubscriberSession(event.subscriber, cursor, event.window or state.settings.window, event.resume)
        if cursor is not None:
            former = self._by_cursor.get(event.cursor)
            if former is not None:
                out.append(self.end(former, self._taken_over(event.cursor)))
            self._by_cursor[event.cursor] = session
        else:
            session.ready = True
            begin = state.records.start if event.start is Start.OLDEST else end
            session.position = begin if event.resume is None else event.resume
        self.by_subscriber[id(event.subscriber)] = session
        return out

    def _enter(self, cursor: str, name: str) -> bool:
        """Whether ``name`` may take the cursor: not if another subscriber took it from ``name`` before."""
        names = self._names.setdefault(cursor, [])
        if name and name in names[:-1]:
            return False
        if not names or names[-1] != name:
            names.append(name)
            del names[:-_MAX_NAMES]
        return True

    def fetch(self, event: Fetch) -> None:
        """The subscriber requests more responses."""
        session = self.by_subscriber.get(id(event.subscriber))
        if session is not None:
            session.credit += event.responses

    def ack(self, event: AckOffset) -> list[LogEffect]:
        """The subscriber has processed everything below an offset. No effect for a tail, which has no cursor."""
        session = self.by_subscriber.get(id(event.subscriber))
        if session is None or session.cursor is None:
            return []
        if event.below > self.state.records.end:
            return [self.end(session, self.beyond_end(event.below))]
        self.state.cursors.ack(session.cursor, event.below, self.state.clock.now)
        session.position = max(session.position, event.below)
        return []

    def unsubscribe(self, event: Unsubscribe) -> None:
        """A subscriber's call has ended."""
        self._remove(event.subscriber)

    def _remove(self, subscriber: Any) -> None:
        session = self.by_subscriber.pop(id(subscriber), None)
        if session is None or session.cursor is None:
            return
        if self._by_cursor.get(session.cursor.name) is session:
            del self._by_cursor[session.cursor.name]

    def end(self, session: SubscriberSession, error: RequestError) -> EndSubscription:
        """End a subscriber's call."""
        self._remove(session.subscriber)
        return EndSubscription(session.subscriber, error)

    def _end_cursor(self, name: str) -> list[LogEffect]:
        session = self._by_cursor.get(name)
        self._names.pop(name, None)
        if session is None:
            return []
        return [self.end(session, self._cursor_deleted(name))]

    def end_all(self, error: RequestError) -> list[LogEffect]:
        """End all subscribers."""
        return [self.end(session, error) for session in list(self.by_subscriber.values())]

    def _cursor_deleted(self, cursor: str) -> RequestError:
        message = f"cursor {cursor!r} of stream {self.state.config.stream!r} was deleted"
        return RequestError(FailureCode.NOT_FOUND, message, reason="CURSOR_DELETED")

    def _taken_over(self, cursor: str) -> RequestError:
        return RequestError(
            FailureCode.ABORTED,
            f"another subscriber has taken over cursor {cursor!r} of stream {self.state.config.stream!r}",
            "give each subscriber a cursor of its own, or run only one",
            reason="CURSOR_TAKEN_OVER",
        )

    def beyond_end(self, offset: int) -> RequestError:
        """The error for an offset that the log does not have yet."""
        return RequestError(
            FailureCode.OUT_OF_RANGE,
            f"stream {self.state.config.stream!r} has no offset {offset:,}: its log ends at {self.state.records.end:,}",
            "subscribe again",
            reason="OFFSET_BEYOND_END",
        )

    # Cursors.

    def list_cursors(self, event: ListCursors) -> list[LogEffect]:
        """Answer with the durable cursors."""
        end = self.state.records.end
        found = [CursorInfo(name, acked, end) for name, acked in sorted(self.state.cursors.durable.items())]
        return [CursorsAnswer(event.asker, found)]

    def delete_cursor(self, event: DeleteCursor) -> list[LogEffect]:
        """Delete a cursor, and end its subscriber."""
        if self.state.cursors.find(event.cursor) is None:
            message = f"stream {self.state.config.stream!r} has no cursor {event.cursor!r}"
            remedy = "list them with `millwheel stream cursors list`"
            return [CursorsAnswer(event.asker, [], RequestError(FailureCode.NOT_FOUND, message, remedy))]
        self.state.cursors.delete(event.cursor, event.asker)
        return self._end_cursor(event.cursor)


class SegmentReader:
    """Reads segments back that are not in memory any more."""

    def __init__(self, state: LogState, sessions: Sessions) -> None:
        self.state = state
        self._sessions = sessions
        self._reading: set[int] = set()
        """First offsets of the segments that are being read back."""
        self.wanted: list[int] = []
        """Those of them that are not requested yet."""

    def want(self, segment: LogSegment) -> None:
        """A subscriber needs the segment."""
        if segment.first not in self._reading and len(self._reading) < self.state.settings.reads:
            self._reading.add(segment.first)
            self.wanted.append(segment.first)

    def request(self) -> ReadStates:
        """The request for the wanted segments."""
        wanted, self.wanted = self.wanted, []
        return ReadStates(self.state.config.incarnation, [row_key(first) for first in wanted])

    def rows_read(self, event: StatesRead) -> list[LogEffect]:
        """Segments have been read back. A ``damaged`` segment ends only the subscribers that need it."""
        out: list[LogEffect] = []
        for key, row in zip(event.keys, event.rows, strict=True):
            first = int.from_bytes(key, "big")
            self._reading.discard(first)
            segment = self.state.records.known(first)
            if segment is None or segment.loaded:
                continue
            try:
                self._load(segment, row, event.damaged.get(key, "the row is missing"))
            except CorruptValueError as error:
                out.extend(self._lost(segment, error))
        return out

    def _load(self, segment: LogSegment, row: StateRow | None, why_not: str) -> None:
        where = f"stream {self.state.config.stream!r}, segment from offset {segment.first:,}"
        if row is None:
            raise CorruptValueError(where, why_not)
        try:
            load_row(segment, decode(row.blob, SegmentBlob, where))
        except ValueError as error:
            raise CorruptValueError(where, str(error)) from error
        self.state.records.loaded(segment)

    def _lost(self, segment: LogSegment, error: CorruptValueError) -> list[LogEffect]:
        failure = RequestError(FailureCode.DATA_LOSS, str(error), "restore the store from a snapshot")
        concerned = [
            one for one in self._sessions.by_subscriber.values() if segment.first <= one.position < segment.end
        ]
        return [self._sessions.end(session, failure) for session in concerned]
