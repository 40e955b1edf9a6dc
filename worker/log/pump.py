"""What a log does after each event while it serves: it commits, serves its subscribers and reports (4.3, 4.5)."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.rpc.v1.watermark_pb2 import HOLD_KIND_INPUT, HOLD_KIND_RECORD, HoldKind
from millwheel.worker.log.checkpoint import LogCheckpointer
from millwheel.worker.log.commits import LogCommits
from millwheel.worker.log.messages import LogEffect, LogEvent
from millwheel.worker.log.state import LogState
from millwheel.worker.log.subscribers import Subscribers
from millwheel.worker.messages import Report
from millwheel.worker.owner import OwnerPump

__all__ = ["LogPump"]


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
