"""Helpers for the messages of the data plane (proto/millwheel/v1/delivery.proto)."""

from __future__ import annotations

from millwheel.rpc.v1.delivery_pb2 import DeliverResponse

__all__ = ["answered_tokens"]


def answered_tokens(response: DeliverResponse) -> tuple[int, ...]:
    """Return the tokens of all batches that ``response`` answers in the same way, in the order of their answers."""
    return response.token, *response.also
