"""Converts batches to messages of delivery.proto."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.client.injector.ids import IdKind
from millwheel.client.injector.messages import SendBatch
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.watermarks import injector_computation

__all__ = ["SenderIdentity"]


@dataclass(frozen=True, slots=True)
class SenderIdentity:
    """The sender of deliveries. ``watched``: False if another process publishes the watermark for this sender."""

    stream: str
    process: str
    sequencer: int
    watched: bool = True

    def request(self, send: SendBatch) -> wire.DeliverRequest:
        """The message for one delivery attempt."""
        computation = injector_computation(self.stream)
        request = wire.DeliverRequest(
            token=send.token,
            consumer=send.consumer,
            journal=send.journal,
            stream=self.stream,
            sender=wire.Sender(
                origin=f"{computation}/{self.process}",
                sequencer=self.sequencer,
                computation=computation,
                watermark_us=send.watermark if self.watched else None,
            ),
            keys=send.keys,
            values=send.values,
            timestamps_us=send.timestamps,
        )
        scope = send.scope
        if scope.kind is IdKind.POSITION:
            positions = request.positions
            positions.sequence = scope.name
            positions.mark = send.mark
            positions.positions.extend(send.ids)  # type: ignore[arg-type]
            positions.unacked.extend(send.unacked)
        elif scope.kind is IdKind.OPAQUE:
            request.opaque.ids = b"".join(send.ids)  # type: ignore[arg-type]
        else:
            request.batch.query = scope.name
            request.batch.batch = scope.batch
            request.batch.ids = b"".join(send.ids)  # type: ignore[arg-type]
        return request
