"""Admission of deliveries to a log: limits, the duplicate check, and the bounds of queue and log (6.1.1; G13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.admission import DeliveryAdmission, column_problem
from millwheel.worker.dedup import DeliveryVerdict
from millwheel.worker.log.segments import RECORD_OVERHEAD_BYTES, records_size
from millwheel.worker.log.state import FreshRecords, LogReceipt, LogState
from millwheel.worker.lookups import refusal
from millwheel.worker.messages import Acknowledge, Delivery, OwnerEffect

__all__ = ["LogReceiving"]

_ACKED: Final = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_INVALID: Final = DeliveryOutcome.DELIVERY_OUTCOME_INVALID


class LogReceiving(DeliveryAdmission):
    """Checks deliveries and queues the fresh records."""

    def __init__(self, state: LogState) -> None:
        super().__init__(state, state.settings.queue_bytes, lambda receipt, _: receipt.open == 0)
        self.state = state

    def deliver(self, delivery: Delivery, serving: bool) -> list[OwnerEffect]:
        """Check a delivery. Every record of it is finally ACKed, or answered with another outcome."""
        config = self.state.config
        if not serving:
            return [refusal(delivery, "the log is being opened")]
        if delivery.stream != config.stream:
            return [Acknowledge(delivery, _INVALID, (), f"this is the log of stream {config.stream!r}")]
        if (problem := column_problem(delivery)) is not None:
            return [Acknowledge(delivery, _INVALID, (), problem)]
        if not delivery.keys:
            return [Acknowledge(delivery, _ACKED)]
        out: list[OwnerEffect] = []
        self._arrivals.arrived(delivery, out)
        return out

    def _limit(self, delivery: Delivery) -> tuple[int, str] | None:
        """The bound is at least the input watermark, unless the log is far above its cap.

        Records that hold the watermark are accepted up to a quarter above the cap. So a full log does not stop the
        watermark for all consumers. Above that, everything is refused: a subscriber that never returns must not fill
        the store.
        """
        state, settings = self.state, self.state.settings
        kept = state.records.kept + state.intake.bytes
        if kept >= settings.cap_bytes:
            hard = kept >= settings.cap_bytes + settings.cap_bytes // 4
            return (MIN_TIMESTAMP - 1 if hard else state.inputs.value), self._cap_reason(kept)
        if state.intake.bytes >= settings.queue_bytes or state.records.dirty_memory >= settings.memory_bytes:
            least = min(state.intake.pending.min(), max(delivery.timestamps))
            return max(least, state.inputs.value), "intake is full: the store is behind"
        if self._turns.origin:
            self._turns.clear()
        return None

    def _cap_reason(self, kept: int) -> str:
        state = self.state
        stream, cap, end = state.config.stream, state.settings.cap_bytes, state.records.end
        slowest, oldest = state.cursors.slowest(), next(state.records.oldest(), None)
        full = f"the log of stream {stream!r} keeps {kept:,} bytes, and its cap is {cap:,}"
        if slowest is None or (oldest is not None and slowest[1] >= oldest.end):
            return f"{full}: lower the stream's retention, or raise the cap"
        name, acked = slowest
        return (
            f"{full}: the slowest cursor is {name!r}, at offset {acked:,} of {end:,}; have its subscriber acknowledge, "
            f"or delete it with `millwheel stream cursors delete {stream} {name}`"
        )

    def _put(
        self, delivery: Delivery, verdict: DeliveryVerdict | None, fresh: Sequence[int], excluded: Sequence[int]
    ) -> LogReceipt:
        """Queue fresh records, in pieces that each fit into a segment."""
        assert verdict is not None, "a log always checks for duplicates"
        receipt = LogReceipt(delivery, excluded)
        values, timestamps = delivery.values, delivery.timestamps
        whole = len(fresh) == len(values)
        if not whole:
            values, timestamps = [values[index] for index in fresh], [timestamps[index] for index in fresh]
        size, limit = records_size(values), self.state.settings.segment_bytes
        put = self.state.intake.put
        if size <= limit:
            put(FreshRecords(receipt, verdict, None if whole else fresh, values, timestamps, size))
            return receipt
        for first, last, size in _cut(values, limit):
            part = fresh[first:last]
            put(FreshRecords(receipt, verdict, part, values[first:last], timestamps[first:last], size))
        return receipt


def _cut(values: Sequence[bytes], limit: int) -> list[tuple[int, int, int]]:
    """(first, last + 1, size) of each piece of a delivery that is too large for one segment."""
    cuts: list[tuple[int, int, int]] = []
    first = size = 0
    for index, value in enumerate(values):
        one = len(value) + RECORD_OVERHEAD_BYTES
        if size and size + one > limit:
            cuts.append((first, index, size))
            first, size = index, 0
        size += one
    cuts.append((first, len(values), size))
    return cuts
