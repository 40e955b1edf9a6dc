"""What a log does after each event while it serves: it commits, serves its subscribers and reports (4.3, 4.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.columns import bytes_of
from millwheel.rpc.packed_values import sizes_of
from millwheel.rpc.v1.watermark_pb2 import HOLD_KIND_INPUT, HOLD_KIND_RECORD, HoldKind
from millwheel.worker.log.checkpoint import LogCheckpointer
from millwheel.worker.log.commits import LogCommits
from millwheel.worker.log.messages import LogEffect, LogEvent, Publish
from millwheel.worker.log.segments import LogSegment
from millwheel.worker.log.sessions import SegmentReader, Sessions, SubscriberSession
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import Report
from millwheel.worker.owner import OwnerPump

__all__ = ["LogPump", "Subscribers"]

_LAST: Final = MAX_TIMESTAMP - 1
"""The largest watermark for a subscriber that has not read everything. MAX_TIMESTAMP means: no records are left."""


class Subscribers:
    """Sends the subscribers committed records, the watermark, and the durable ACKs of their cursors.

    Invariant: a response is sent only for a fetch, and only with committed records. With a cursor it contains only
    records in the window beyond the cursor's last ACK.
    """

    def __init__(self, state: LogState, sessions: Sessions, reader: SegmentReader) -> None:
        self.state = state
        self._sessions = sessions
        self._reader = reader

    def serve(self) -> list[LogEffect]:
        """Send everything that may be sent."""
        out: list[LogEffect] = []
        for session in list(self._sessions.by_subscriber.values()):
            if session.credit and (session.ready or self._make_ready(session)):
                out.extend(self._serve(session))
        if self._reader.wanted:
            out.append(self._reader.request())
        return out

    def _make_ready(self, session: SubscriberSession) -> bool:
        """Invariant: nothing is sent through a cursor before the creation of its present life is in the journal."""
        if session.cursor is None or not session.cursor.is_durable:
            return False
        session.ready = True
        session.position = max(session.cursor.newest, session.resume or 0)
        return True

    def _serve(self, session: SubscriberSession) -> Iterator[LogEffect]:
        records = self.state.records
        while session.credit:
            session.position = max(session.position, records.start)
            limit = records.end
            if session.cursor is not None:
                limit = min(limit, session.cursor.newest + session.window)
            if session.position >= limit:
                # There are no records to send: send an empty response if the watermark or the durable ACK has advanced.
                if self._progress(session) != session.sent:
                    yield self._response(session, session.position, [], [])
                return
            segment = records.find(session.position)
            if not segment.loaded:
                self._reader.want(segment)
                return
            yield self._publish(session, segment, min(limit, segment.end))

    def _publish(self, session: SubscriberSession, segment: LogSegment, limit: int) -> Publish:
        settings, first = self.state.settings, session.position
        low = first - segment.first
        values = segment.values.between(low, min(limit - segment.first, low + settings.publish_records))
        if bytes_of(values) > settings.publish_bytes:
            values = values[: _fitting(values, settings.publish_bytes)]
        session.position = first + len(values)
        return self._response(session, first, values, segment.timestamps[low : low + len(values)])

    def _response(
        self, session: SubscriberSession, first: int, values: Sequence[bytes], timestamps: list[int]
    ) -> Publish:
        watermark, following, acked = session.sent = self._progress(session)
        session.credit -= 1
        life = session.cursor.life if session.cursor is not None else 0
        end = self.state.records.end
        return Publish(session.subscriber, first, values, timestamps, watermark, following, acked, life, end)

    def _progress(self, session: SubscriberSession) -> tuple[int, int, int]:
        acked = session.cursor.acked or 0 if session.cursor is not None else 0
        return self._watermark_at(session.position), session.position, acked

    def _watermark_at(self, offset: int) -> int:
        """The watermark for a subscriber that has read everything below ``offset``."""
        state, records = self.state, self.state.records
        if offset >= records.end:
            # Publish only the journaled watermark. A deposed owner may still receive broadcasts. But it does not know
            # its successor's records.
            return state.journaled_watermark
        segment = records.find(offset)
        watermark = segment.watermark_at(offset) if segment.loaded else segment.watermark
        return min(watermark, _LAST)


class LogPump(OwnerPump[LogEvent, LogEffect]):
    """Advances the watermark, commits, publishes, writes rows and reports as far as possible."""

    def __init__(
        self, state: LogState, commits: LogCommits, subscribers: Subscribers, checkpoints: LogCheckpointer
    ) -> None:
        self._state = state
        self._commits = commits
        self._subscribers = subscribers
        self._checkpoints = checkpoints
        self._reported: tuple[int, HoldKind.ValueType] | None = None

    def set_now(self, now: int) -> None:
        """The steady clock shows ``now``. The log ages by the time since the last event."""
        clock = self._state.clock
        clock.age += now - clock.now
        clock.now = now

    def run(self, event: LogEvent) -> list[LogEffect]:
        """Perform every step that is possible now."""
        state = self._state
        self._advance_watermark()
        out = self._commits.try_commit()
        out.extend(self._subscribers.serve())
        if state.records.dirty or state.records.emptied:
            out.extend(self._checkpoints.flush())
        if state.records.memory > state.settings.memory_bytes:
            state.records.evict(state.settings.memory_bytes)
        out.extend(self._report())
        return out

    def next_deadline(self) -> int | None:
        """When a ``Tick`` is due if no event comes before, on the steady clock. None: never."""
        return self._commits.next_alarm()

    def _advance_watermark(self) -> None:
        """min(the senders' broadcast values, timestamps of uncommitted records), monotone (G7)."""
        state = self._state
        state.watermark = max(state.watermark, min(state.inputs.value, state.intake.pending.min()))

    def _report(self) -> Sequence[LogEffect]:
        """Report the watermark. Output equals input, which uncommitted records hold (section 4.5)."""
        state = self._state
        pending = state.intake.pending.min() <= state.watermark < state.inputs.value
        hold = HOLD_KIND_RECORD if pending else HOLD_KIND_INPUT
        if (reported := (state.watermark, hold)) == self._reported:
            return ()
        self._reported = reported
        config, at = state.config, state.watermark
        subject = "" if pending else ", ".join(state.inputs.holding())
        return [Report(config.incarnation, config.keys, config.sequencer, at, at, hold, subject)]


def _fitting(values: Sequence[bytes], limit: int) -> int:
    """How many of the values fit into ``limit`` bytes, at least one."""
    for count, size in enumerate(accumulate(sizes_of(values))):
        if size > limit:
            return max(1, count)
    return len(values)
