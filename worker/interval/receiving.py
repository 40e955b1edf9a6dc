"""Admission of deliveries to an interval: limits, duplicate check and intake bounds (sections 6.1.1, 4.1; G13)."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.admission import DeliveryAdmission, column_problem, refusal
from millwheel.worker.arrivals import Admission
from millwheel.worker.dedup import DeliveryVerdict
from millwheel.worker.interval.intake import DeliveryReceipt
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import Acknowledge, Delivery, OwnerEffect, SenderWatermarks
from millwheel.worker.turns import HolderTurns

__all__ = ["Receiving"]

_ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_INVALID = DeliveryOutcome.DELIVERY_OUTCOME_INVALID
_NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER
_MAX_EARLY_DELIVERIES = 1_000
"""Maximum deliveries that wait for the interval to serve."""


class Receiving(DeliveryAdmission):
    """Admits deliveries and queues their fresh records."""

    def __init__(self, state: IntervalState) -> None:
        super().__init__(state, state.settings.queue_bytes, state.foreign)
        self.state = state
        self._turns: HolderTurns[DeliveryReceipt] = HolderTurns(state.intake.is_done)
        self._early_deliveries: list[Delivery] = []
        self._early_bytes = 0

    def deliver(self, delivery: Delivery, serving: bool) -> list[OwnerEffect]:
        """Admit a delivery. Every record of it is eventually ACKed or answered with another outcome."""
        if not serving:
            return self._keep_waiting(delivery)
        if delivery.stream not in self.state.program.inputs:
            # Sender and receiver follow a changing topology. One of them has an old version, so the sender looks up the
            # topology again.
            name = self.state.program.name
            return [Acknowledge(delivery, _NOT_OWNER, (), f"{name!r} does not consume stream {delivery.stream!r}")]
        if (problem := self._problem(delivery)) is not None:
            return [Acknowledge(delivery, _INVALID, (), problem)]
        if not delivery.keys:
            return [Acknowledge(delivery, _ACKED)]
        for watermark in (delivery.sender.watermark, delivery.sender.heard):
            if watermark is not None and watermark > self.state.heard:
                self.state.heard = watermark
        out: list[OwnerEffect] = []
        self._arrivals.arrived(delivery, out)
        return out

    def _take_in(self, delivery: Delivery, out: list[OwnerEffect]) -> Admission:
        if not self.state.program.options.exactly_once:
            return self._admit(delivery, None, range(len(delivery.keys)), (), out)
        return self._judge(delivery, out)

    def _keep_waiting(self, delivery: Delivery) -> list[OwnerEffect]:
        """Keep a delivery while the interval is being opened, if there is room. A resend would take longer."""
        size = sum(map(len, delivery.values))
        if (
            self._early_bytes + size > self.state.settings.queue_bytes
            or len(self._early_deliveries) >= _MAX_EARLY_DELIVERIES
        ):
            return [refusal(delivery, "the interval is being opened")]
        self._early_bytes += size
        self._early_deliveries.append(delivery)
        return []

    def opened(self) -> list[OwnerEffect]:
        """Admit the deliveries that waited for the interval to serve."""
        waiting, self._early_deliveries = self._early_deliveries, []
        self._early_bytes = 0
        out: list[OwnerEffect] = []
        for delivery in waiting:
            out.extend(self.deliver(delivery, True))
        return out

    def _problem(self, delivery: Delivery) -> str | None:
        """Why the records can never be accepted as they are. None: no problem."""
        keys, config = delivery.keys, self.state.config
        if (problem := column_problem(delivery)) is not None:
            return problem
        if keys and (min(keys) not in config.keys or max(keys) not in config.keys):
            return f"keys outside the interval {config.keys}: look up the interval map again"
        return None

    def _admit(
        self,
        delivery: Delivery,
        verdict: DeliveryVerdict | None,
        fresh: Sequence[int],
        waiting: Sequence[int],
        out: list[OwnerEffect],
    ) -> Admission:
        excluded = sorted(waiting)
        beyond, ahead = self._ahead(delivery, fresh)
        if ahead:
            if verdict is not None:
                self.state.dedup.abandon(verdict, ahead)
            if delivery.order is not None:
                out.append(refusal(delivery, "intake is full"))
                return Admission.REFUSED
            refused = set(ahead)
            fresh = [index for index in fresh if index not in refused]
            excluded = sorted([*excluded, *ahead])
        self._answer_taken(delivery, fresh, excluded, "intake is full, or a copy is being processed", out)
        receipt: DeliveryReceipt | None = None
        if fresh:
            receipt = self.state.intake.admit(delivery, verdict, fresh)
            receipt.excluded = excluded
        if beyond:
            holds = receipt is not None and receipt.held <= self.state.inputs.value
            self._turns.entered(delivery.sender.name, min(delivery.timestamps), receipt if holds else None)
        return Admission.TAKEN

    def _ahead(self, delivery: Delivery, fresh: Sequence[int]) -> tuple[bool, Sequence[int]]:
        """Whether the delivery exceeds the bound, and which fresh records have no room.

        Records that hold the watermark are always admitted, from one sender at a time. Their sender's broadcast value
        waits for them. If the sender keeps an order, the records before them are admitted too. Records on a feedback
        stream need no turn.
        """
        state = self.state
        intake, settings, feedback = state.intake, state.settings, state.config.feedback
        if intake.records < settings.queue_records and intake.bytes < settings.queue_bytes:
            self._turns.clear()
            return False, ()
        order = delivery.order
        if delivery.stream in feedback or (order is not None and not feedback.isdisjoint(order.streams)):
            return False, ()
        return self._turns.choose(delivery, fresh, state.inputs.value)

    def collect(self, event: SenderWatermarks) -> None:
        """Delete ids that no sender can send again, by the broadcast watermarks."""
        if self.state.program.options.exactly_once:
            super().collect(event)
