"""The invariants of a log's data, which tests and the simulator check after every event."""

from __future__ import annotations

from millwheel.model.core_protocol import RisingValues, require
from millwheel.worker.log.state import LogState

__all__ = ["LogInvariants"]


class LogInvariants:
    """Checks one log's data, and that some of its values never go back."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._rising = RisingValues()

    def check(self) -> None:
        """Check everything.

        Raises:
            InvariantError: An invariant does not hold.
        """
        state, cursors = self._state, self._state.cursors.durable
        start, end = state.records.start, state.records.end
        truncation_point = state.journal.truncation_point
        self._rising.check(
            watermark=state.watermark,
            assured=state.assured,
            age=state.clock.age,
            committed=state.committed,
            truncation_point=truncation_point,
            start=start,
            end=end,
        )
        require(state.assured <= state.watermark, "a journaled watermark is not above the log's (G7)")
        require(truncation_point <= state.committed, "the truncation point is not above the last commit")
        require(start <= end, "the log's first offset is not above its end")
        require(all(acked <= end for acked in cursors.values()), "no cursor's ACK is above the log's end")
        intake = state.intake
        require(intake.bytes >= 0 and (intake.bytes == 0) == (len(intake.pending) == 0), "the intake is balanced (G13)")
