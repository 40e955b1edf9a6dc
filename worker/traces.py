"""The traced records that one owner of a journal has received, and not answered (docs/tracing.md).

Invariant: all of this is soft state that no decision reads. A new owner begins without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millwheel.model.deliveries import Delivery
from millwheel.model.traces import Operation, RecordSpan, SpanSource
from millwheel.model.wording import refusal_name
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.messages import AnswerDelivery, Deposed, OpenFailed

__all__ = ["OwnerTraces", "ReceivedRecord"]

_ACKED: Final = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_FULL: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL


class ReceivedRecord:
    """A traced record. ``handled``: it is not a duplicate, because its effects are in a commit or in the batch."""

    __slots__ = ("handled", "span")

    def __init__(self, span: RecordSpan) -> None:
        self.span = span
        self.handled = False


class OwnerTraces:
    """Spans of received records. The owner's driver shows it each event before the step, and each effect after it."""

    def __init__(self, spans: SpanSource, place: Mapping[str, str | int] | None = None) -> None:
        """
        Args:
            spans: Starts spans.
            place: More attributes of the spans that begin here: the interval. Those below them do not repeat it.
        """
        self.spans = spans
        self._place = place
        self.received: dict[Delivery, dict[int, ReceivedRecord]] = {}
        """By delivery and index. An answer removes them, so the queue's bounds hold for them, too (G13)."""

    @property
    def active(self) -> bool:
        """Whether an effect may concern a traced record."""
        return bool(self.received)

    def before(self, event: Any) -> None:
        """The owner is about to process an event."""
        if type(event) is Delivery:
            if event.traces:
                self._arrived(event)
        elif isinstance(event, Deposed | OpenFailed):
            self.close("owner lost")

    def after(self, effect: Any) -> None:
        """The owner's step has had an effect."""
        if type(effect) is AnswerDelivery and effect.delivery in self.received:
            self._answered(effect)

    def close(self, why: str) -> None:
        """End all spans: another owner continues, or none."""
        for records in self.received.values():
            for record in records.values():
                record.span.event(why)
                record.span.end()
        self.received.clear()

    def _arrived(self, delivery: Delivery) -> None:
        records: dict[int, ReceivedRecord] = {}
        for index, context in (delivery.traces or {}).items():
            if index < len(delivery.values):
                size = len(delivery.values[index])
                span = self.spans.start(Operation.RECEIVE, delivery.stream, context, size=size, more=self._place)
                if span.context is not None:
                    records[index] = ReceivedRecord(span)
        if records:
            self.received[delivery] = records

    def _answered(self, answer: AnswerDelivery) -> None:
        records, acked = self.received[answer.delivery], answer.outcome == _ACKED
        only, left_out = answer.only, answer.except_for
        concerned = [one for one in records if (one in only if only else one not in left_out)]
        for index in concerned:
            record = records.pop(index)
            if not acked:
                record.span.event("refused", reason=refusal_name(answer.outcome))
            elif not record.handled:
                record.span.event("duplicate")
            record.span.end()
        if not records:
            del self.received[answer.delivery]
