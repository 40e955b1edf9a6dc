"""What must hold of an interval between two events, as far as that is cheap to check."""

from __future__ import annotations

from millwheel.model.core_protocol import RisingValues, require
from millwheel.worker.interval.state import IntervalState

__all__ = ["IntervalInvariants"]


class IntervalInvariants:
    """The invariants of one owner of an interval. The object remembers the values that must not fall."""

    def __init__(self, state: IntervalState) -> None:
        self._state = state
        self._rising = RisingValues()

    def check(self) -> None:
        """Check them all. Raises InvariantError."""
        state = self._state
        self._rising.check(
            watermark=state.watermark,
            output=state.holds.output,
            elapsed=state.elapsed,
            committed=state.committed,
            floor=state.floor,
        )
        require(state.floor <= state.committed <= state.sealed, "truncation point, commit and batch are in this order")
        intake, outbox, unacked = state.intake, state.outbox, state.outbox.unacked
        require(intake.records == len(intake.pending), "each received record holds the input watermark, once (G7)")
        require(intake.bytes >= 0 and (intake.records > 0 or intake.bytes == 0), "the queue's bytes are balanced (G13)")
        require(len(unacked.held) == len(outbox), "each outbound batch holds the output watermark, once (G7)")
        require((unacked.records == 0) == (len(outbox) == 0), "the outbox's records are balanced (G13)")
        require(unacked.bytes >= 0 and (unacked.records > 0 or unacked.bytes == 0), "its bytes are balanced, too (G13)")
