"""What a message of the data plane stands for (proto/millwheel/v1/delivery.proto)."""

from __future__ import annotations

from millwheel.rpc.v1.delivery_pb2 import DeliverResponse

__all__ = ["answered_tokens"]


def answered_tokens(response: DeliverResponse) -> tuple[int, ...]:
    """The batches that ``response`` answers, all alike, in the order in which their answers were given."""
    return response.token, *response.also
