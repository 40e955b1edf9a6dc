"""Converts an injector's batches to deliveries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from millwheel.client.injector.ids import IdKind
from millwheel.client.injector.messages import SendBatch
from millwheel.model.deliveries import BatchIds, Delivery, DeliveryIds, OpaqueIds, PositionIds, Sender
from millwheel.rpc.deliveries import encode_delivery
from millwheel.rpc.v1.delivery_pb2 import DeliverRequest
from millwheel.rpc.watermarks import injector_computation

__all__ = ["SenderIdentity"]


@dataclass(frozen=True, slots=True)
class SenderIdentity:
    """The sender of deliveries. ``watched``: False if another process publishes the watermark for this sender."""

    stream: str
    process: str
    sequencer: int
    watched: bool = True

    def request(self, send: SendBatch) -> DeliverRequest:
        """The message for one delivery attempt."""
        return encode_delivery(self.delivery(send), send.token)

    def delivery(self, send: SendBatch) -> Delivery:
        """The delivery of one delivery attempt."""
        computation = injector_computation(self.stream)
        watermark = send.watermark if self.watched else None
        sender = Sender(f"{computation}/{self.process}", self.sequencer, None, computation, watermark)
        keys, values = cast("list[bytes]", send.keys), cast("list[bytes]", send.values)
        timestamps = cast("list[int]", send.timestamps)
        return Delivery(
            send.consumer, send.journal, self.stream, sender, _ids(send), keys, values, timestamps, send.token
        )


def _ids(send: SendBatch) -> DeliveryIds:
    scope = send.scope
    if scope.kind is IdKind.POSITION:
        return PositionIds(scope.name, send.mark, cast("list[int]", send.ids), send.unacked)
    ids = cast("list[bytes]", send.ids)
    return OpaqueIds(ids) if scope.kind is IdKind.OPAQUE else BatchIds(scope.name, scope.batch, ids)
