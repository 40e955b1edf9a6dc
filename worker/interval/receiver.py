"""The receiver of an interval: it checks deliveries, has them admitted, and queues their fresh records (6.1.1; G13).

It is a ``ReceiverQueue``. So a delivery passes from it to the admission, and its fresh records come back to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millwheel.model.page_keys import PAGE_BYTE
from millwheel.rpc.column_keys import ColumnKeys
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.admission import DeliveryAdmission, column_problem
from millwheel.worker.dedup import DeliveryVerdict
from millwheel.worker.id_segments import AdmissionState
from millwheel.worker.interval.clocks import IntervalClocks
from millwheel.worker.interval.intake import DeliveryReceipt, IntervalIntake
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.messages import AnswerDelivery, Delivery, OwnerEffect

__all__ = ["IntervalReceiver"]

_ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_INVALID = DeliveryOutcome.DELIVERY_OUTCOME_INVALID
_NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER


class IntervalReceiver:
    """Admits deliveries, and queues their fresh records. The only caller of ``IntervalIntake.admit``."""

    def __init__(
        self,
        setup: IntervalSetup,
        clocks: IntervalClocks,
        intake: IntervalIntake,
        ids: AdmissionState,
        is_done: Callable[[DeliveryReceipt, int], bool],
    ) -> None:
        """
        Args:
            setup: The interval's settings and program.
            clocks: Its watermark.
            intake: Its queue.
            ids: The ids that it knows.
            is_done: Whether all records of a delivery up to a timestamp are done, or blocked by a failing hook.
        """
        self.admission = DeliveryAdmission(ids, self, setup.settings.queue_bytes, is_done)
        self._setup = setup
        self._clocks = clocks
        self._intake = intake
        self.began = 0
        """When this owner began to serve, a time of ``elapsed``."""

    def deliver(self, delivery: Delivery) -> list[OwnerEffect]:
        """Admit a delivery. Every record of it is eventually ACKed or answered with another outcome."""
        if delivery.stream not in self._setup.program.inputs:
            # Sender and receiver follow a changing topology. One of them has an old version, so the sender looks up the
            # topology again.
            name = self._setup.program.name
            return [AnswerDelivery(delivery, _NOT_OWNER, (), f"{name!r} does not consume stream {delivery.stream!r}")]
        if (problem := self._problem(delivery)) is not None:
            return [AnswerDelivery(delivery, _INVALID, (), problem)]
        if not delivery.keys:
            return [AnswerDelivery(delivery, _ACKED)]
        for watermark in (delivery.sender.watermark, delivery.sender.received_watermark):
            if watermark is not None and watermark > self._clocks.highest_stated:
                self._clocks.highest_stated = watermark
        out: list[OwnerEffect] = []
        self.admission.arrivals.arrived(delivery, out)
        return out

    def _problem(self, delivery: Delivery) -> str | None:
        """Why the records can never be accepted as they are. None: no problem."""
        keys, own = delivery.keys, self._setup.config.keys
        if (problem := column_problem(delivery)) is not None or not keys:
            return problem
        # The lowest and the highest interval have a bound on one side only.
        if (own.start and _least(keys) < own.start) or (own.end is not None and _greatest(keys) >= own.end):
            return f"keys outside the interval {own}: look up the interval map again"
        if not (isinstance(keys, ColumnKeys) and keys.has_texts) and PAGE_BYTE in b"".join(keys):
            return "a key with the byte 0xFF: a key is text in UTF-8, which never has this byte"
        return None

    # The queue, as the admission sees it.

    def has_room(self) -> bool:
        """Whether there is room for any record."""
        intake, settings = self._intake, self._setup.settings
        return intake.records < settings.queue_records and intake.bytes < settings.queue_bytes

    def bound(self, delivery: Delivery) -> tuple[int, str] | None:
        """The bound is the minimum of the groups' broadcast watermarks. Records on a feedback stream need no turn."""
        order, feedback = delivery.order, self._setup.config.feedback
        if delivery.stream in feedback or (order is not None and not feedback.isdisjoint(order.streams)):
            return None
        return self._clocks.inputs.value, "intake is full"

    def put(
        self, delivery: Delivery, verdict: DeliveryVerdict | None, fresh: Sequence[int], excluded: Sequence[int]
    ) -> DeliveryReceipt | None:
        """Queue the fresh records."""
        now = self._clocks.elapsed
        receipt = self._intake.admit(delivery, verdict, fresh, now)
        received, size = self._setup.meter.measures.received[delivery.stream], receipt.average * len(fresh)
        received[0] += len(fresh)
        received[1] += size
        if now - delivery.waited < self.began:
            received[2] += len(fresh)
            received[3] += size
        receipt.excluded = excluded
        return receipt if receipt.held <= self._clocks.inputs.value else None


def _least(keys: Sequence[bytes]) -> bytes:
    return keys.extremes()[0] if isinstance(keys, ColumnKeys) else min(keys)


def _greatest(keys: Sequence[bytes]) -> bytes:
    return keys.extremes()[1] if isinstance(keys, ColumnKeys) else max(keys)
