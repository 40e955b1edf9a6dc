"""What a log does with each event while it serves: it commits, serves its subscribers and reports (sections 4.3, 4.5).

``core.py`` has the rest of the core: its stages, its subscriptions, and its invariants.
"""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.rpc.v1.watermark_pb2 import HOLD_KIND_INPUT, HOLD_KIND_RECORD, HoldKind
from millwheel.worker.log.checkpoint import LogCheckpointer
from millwheel.worker.log.commits import LogCommits
from millwheel.worker.log.intake import LogReceiver
from millwheel.worker.log.messages import LogEffect, LogEvent
from millwheel.worker.log.sessions import SegmentReader, Sessions
from millwheel.worker.log.settings import LogConfig
from millwheel.worker.log.state import LogState
from millwheel.worker.log.subscribers import Subscribers
from millwheel.worker.owner import OwnerCore
from millwheel.worker.stages import OwnerPhase

__all__ = ["ServingLog"]


class ServingLog(OwnerCore[LogEvent, LogEffect]):
    """The part of a log's core that each event runs through. :class:`LogCore` adds the rest.

    Its clock is the owner's steady clock. No wall clock is used.
    """

    def __init__(self, config: LogConfig) -> None:
        self.state = state = LogState(config)
        self._receiver = LogReceiver(config, state.ids, state.inputs, state.intake, state.records, state.cursors)
        admission = self._receiver.admission
        super().__init__(config, state.inputs, state.ids, admission, self._set_clock)
        self._checkpoints = LogCheckpointer(state)
        self._sessions = sessions = Sessions(state)
        self._reader = SegmentReader(state, sessions)
        self._subscribers = Subscribers(state, sessions, self._reader)
        self._commits = LogCommits(state, admission.segments, self._checkpoints, sessions.by_subscriber)
        self._reported: tuple[int, HoldKind.ValueType] | None = None

    def next_deadline(self) -> int | None:
        """When a ``Tick`` is due if no event comes before, on the same clock. None: never."""
        return self._commits.next_alarm() if self.phase is OwnerPhase.SERVING else None

    def _set_clock(self, now: int) -> None:
        """The steady clock shows ``now``. The log ages by the time since the last event."""
        clock = self.state.clock
        clock.age += now - clock.now
        clock.now = now

    # After each event: perform every step that is possible now.

    def _pump(self) -> list[LogEffect]:
        state = self.state
        self._advance_watermark()
        out = self._commits.try_commit()
        out.extend(self._subscribers.serve())
        if state.records.dirty or state.records.emptied:
            out.extend(self._checkpoints.flush())
        if state.records.memory > state.settings.memory_bytes:
            state.records.evict(state.settings.memory_bytes)
        out.extend(self._report())
        return out

    def _advance_watermark(self) -> None:
        """min(the senders' broadcast values, timestamps of uncommitted records), monotone (G7)."""
        state = self.state
        state.watermark = max(state.watermark, min(state.inputs.value, state.intake.pending.min()))

    def _report(self) -> Sequence[LogEffect]:
        """Report the watermark. Output equals input, which uncommitted records hold (section 4.5)."""
        state = self.state
        pending = state.intake.pending.min() <= state.watermark < state.inputs.value
        hold = HOLD_KIND_RECORD if pending else HOLD_KIND_INPUT
        if (reported := (state.watermark, hold)) == self._reported:
            return ()
        self._reported = reported
        return [self._report_of(state.watermark, state.watermark, hold)]
