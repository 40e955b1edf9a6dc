"""Subscribers of a log: their positions, and what may be sent to them.

Invariant: a response is sent only for a fetch, and only with committed records. With a cursor it contains only records
in the window beyond the cursor's last ACK. If several subscribers use one cursor, the newest continues and the others
end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.store.contract import CorruptValueError, StateRow
from millwheel.worker.log.cursors import Cursor
from millwheel.worker.log.entry import SegmentBlob, decode, row_key
from millwheel.worker.log.messages import AckOffset, EndSubscription, Fetch, LogEffect, Publish, Start, Subscribe
from millwheel.worker.log.segments import LogSegment
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import ReadStates

__all__ = ["Subscribers"]

_LAST: Final = MAX_TIMESTAMP - 1
"""The largest watermark for a subscriber that has not read everything. MAX_TIMESTAMP means: no records are left."""

_MAX_NAMES: Final = 64


class _Session:
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


class Subscribers:
    """All subscribers of one log."""

    def __init__(self, state: LogState) -> None:
        self.state = state
        self._sessions: dict[int, _Session] = {}
        """By the subscriber's ``id()``. The session keeps the subscriber alive, so ids are unique."""
        self._by_cursor: dict[str, _Session] = {}
        self._names: dict[str, list[str]] = {}
        """Names of recent subscribers of each cursor. The last one has the cursor. Bounded, and only in memory."""
        self._reading: set[int] = set()
        """First offsets of the segments that are being read back."""
        self._wanted: list[int] = []

    def __len__(self) -> int:
        return len(self._sessions)

    # Start and end of subscriptions.

    def subscribe(self, event: Subscribe) -> list[LogEffect]:
        """Add a subscriber. An earlier subscriber of the same cursor ends."""
        state, out = self.state, list[LogEffect]()
        end = state.records.end
        if event.resume is not None and event.resume > end:
            return [EndSubscription(event.subscriber, self._beyond(event.resume))]
        cursor = state.cursors.find(event.cursor) if event.cursor else None
        if event.life and (cursor is None or cursor.life != event.life):
            return [EndSubscription(event.subscriber, self._deleted(event.cursor))]
        if event.cursor and not self._enter(event.cursor, event.name):
            return [EndSubscription(event.subscriber, self._taken_over(event.cursor))]
        if event.cursor and cursor is None:
            cursor = state.cursors.create(event.cursor, event.start)
        session = _Session(event.subscriber, cursor, event.window or state.settings.window, event.resume)
        if cursor is not None:
            former = self._by_cursor.get(event.cursor)
            if former is not None:
                out.append(self._end(former, self._taken_over(event.cursor)))
            self._by_cursor[event.cursor] = session
        else:
            session.ready = True
            begin = state.records.start if event.start is Start.OLDEST else end
            session.position = begin if event.resume is None else event.resume
        self._sessions[id(event.subscriber)] = session
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

    def unsubscribe(self, subscriber: Any) -> None:
        """Remove a subscriber whose call has ended."""
        session = self._sessions.pop(id(subscriber), None)
        if session is None or session.cursor is None:
            return
        if self._by_cursor.get(session.cursor.name) is session:
            del self._by_cursor[session.cursor.name]

    def _end(self, session: _Session, error: RequestError) -> EndSubscription:
        self.unsubscribe(session.subscriber)
        return EndSubscription(session.subscriber, error)

    def end_cursor(self, name: str) -> list[LogEffect]:
        """The cursor is being deleted: end its subscriber."""
        session = self._by_cursor.get(name)
        self._names.pop(name, None)
        if session is None:
            return []
        return [self._end(session, self._deleted(name))]

    def end_all(self, error: RequestError) -> list[LogEffect]:
        """End all subscribers."""
        return [self._end(session, error) for session in list(self._sessions.values())]

    def _deleted(self, cursor: str) -> RequestError:
        message = f"cursor {cursor!r} of stream {self.state.config.stream!r} was deleted"
        return RequestError(FailureCode.NOT_FOUND, message, reason="CURSOR_DELETED")

    def _taken_over(self, cursor: str) -> RequestError:
        return RequestError(
            FailureCode.ABORTED,
            f"another subscriber has taken over cursor {cursor!r} of stream {self.state.config.stream!r}",
            "give each subscriber a cursor of its own, or run only one",
            reason="CURSOR_TAKEN_OVER",
        )

    def _beyond(self, offset: int) -> RequestError:
        return RequestError(
            FailureCode.OUT_OF_RANGE,
            f"stream {self.state.config.stream!r} has no offset {offset:,}: its log ends at {self.state.records.end:,}",
            "subscribe again",
            reason="OFFSET_BEYOND_END",
        )

    # Requests of subscribers.

    def fetch(self, event: Fetch) -> None:
        """The subscriber requests more responses."""
        session = self._sessions.get(id(event.subscriber))
        if session is not None:
            session.credit += event.responses

    def ack(self, event: AckOffset) -> list[LogEffect]:
        """The subscriber has processed everything below an offset. No effect for a tail, which has no cursor."""
        session = self._sessions.get(id(event.subscriber))
        if session is None or session.cursor is None:
            return []
        if event.below > self.state.records.end:
            return [self._end(session, self._beyond(event.below))]
        self.state.cursors.ack(session.cursor, event.below, self.state.clock)
        session.position = max(session.position, event.below)
        return []

    # Serving.

    def serve(self, out: list[LogEffect]) -> None:
        """Send everything that may be sent."""
        for session in list(self._sessions.values()):
            if session.credit and (session.ready or self._make_ready(session)):
                self._serve(session, out)
        if self._wanted:
            config = self.state.config
            out.append(ReadStates(config.computation, [row_key(first) for first in self._wanted]))
            self._wanted = []

    def _make_ready(self, session: _Session) -> bool:
        """Invariant: nothing is sent through a cursor before the creation of its present life is in the journal."""
        if session.cursor is None or not session.cursor.is_durable:
            return False
        session.ready = True
        session.position = max(session.cursor.newest, session.resume or 0)
        return True

    def _serve(self, session: _Session, out: list[LogEffect]) -> None:
        records = self.state.records
        while session.credit:
            session.position = max(session.position, records.start)
            limit = records.end
            if session.cursor is not None:
                limit = min(limit, session.cursor.newest + session.window)
            if session.position >= limit:
                self._serve_news(session, out)
                return
            segment = records.find(session.position)
            if not segment.loaded:
                self._read(segment)
                return
            out.append(self._publish(session, segment, min(limit, segment.end)))

    def _publish(self, session: _Session, segment: LogSegment, limit: int) -> Publish:
        settings, first = self.state.settings, session.position
        low = first - segment.first
        values = segment.values[low : min(limit - segment.first, low + settings.publish_records)]
        if sum(map(len, values)) > settings.publish_bytes:
            values = values[: _fitting(values, settings.publish_bytes)]
        session.position = first + len(values)
        return self._response(session, first, values, segment.timestamps[low : low + len(values)])

    def _response(self, session: _Session, first: int, values: list[bytes], timestamps: list[int]) -> Publish:
        watermark, following, acked = session.sent = self._news(session)
        session.credit -= 1
        life = session.cursor.life if session.cursor is not None else 0
        return Publish(session.subscriber, first, values, timestamps, watermark, following, acked, life)

    def _serve_news(self, session: _Session, out: list[LogEffect]) -> None:
        """There are no records to send: send an empty response if the watermark or the durable ACK has advanced."""
        if self._news(session) != session.sent:
            out.append(self._response(session, session.position, [], []))

    def _news(self, session: _Session) -> tuple[int, int, int]:
        acked = session.cursor.acked or 0 if session.cursor is not None else 0
        return self._watermark_at(session.position), session.position, acked

    def _watermark_at(self, offset: int) -> int:
        """The watermark for a subscriber that has read everything below ``offset``."""
        state, records = self.state, self.state.records
        if offset >= records.end:
            # Publish only the journaled watermark. A deposed owner may still receive broadcasts. But it does not know
            # its successor's records.
            return state.assured
        segment = records.find(offset)
        watermark = segment.watermark_at(offset) if segment.loaded else segment.watermark
        return min(watermark, _LAST)

    # Reading back.

    def _read(self, segment: LogSegment) -> None:
        if segment.first not in self._reading and len(self._reading) < self.state.settings.reads:
            self._reading.add(segment.first)
            self._wanted.append(segment.first)

    def rows_read(
        self, keys: Sequence[bytes], rows: Sequence[StateRow | None], damaged: Mapping[bytes, str]
    ) -> list[LogEffect]:
        """Segments have been read back. A ``damaged`` segment ends only the subscribers that need it."""
        out: list[LogEffect] = []
        for key, row in zip(keys, rows, strict=True):
            first = int.from_bytes(key, "big")
            self._reading.discard(first)
            segment = self.state.records.known(first)
            if segment is None or segment.loaded:
                continue
            try:
                self._load(segment, row, damaged.get(key, "the row is missing"))
            except CorruptValueError as error:
                out.extend(self._lost(segment, error))
        return out

    def _load(self, segment: LogSegment, row: StateRow | None, why_not: str) -> None:
        where = f"stream {self.state.config.stream!r}, segment from offset {segment.first:,}"
        if row is None:
            raise CorruptValueError(where, why_not)
        try:
            self.state.records.loaded(segment, decode(row.blob, SegmentBlob, where))
        except ValueError as error:
            raise CorruptValueError(where, str(error)) from error

    def _lost(self, segment: LogSegment, error: CorruptValueError) -> list[LogEffect]:
        failure = RequestError(FailureCode.DATA_LOSS, str(error), "restore the store from a snapshot")
        concerned = [one for one in self._sessions.values() if segment.first <= one.position < segment.end]
        return [self._end(session, failure) for session in concerned]


def _fitting(values: Sequence[bytes], limit: int) -> int:
    """How many of the values fit into ``limit`` bytes, at least one."""
    for count, size in enumerate(accumulate(map(len, values))):
        if size > limit:
            return max(1, count)
    return len(values)
