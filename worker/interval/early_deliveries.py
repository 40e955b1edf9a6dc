"""Deliveries that arrive while an interval is being opened. They wait here, because a resend would take longer."""

from __future__ import annotations

from typing import Final

from millwheel.rpc.columns import bytes_of
from millwheel.worker.lookups import refusal
from millwheel.worker.messages import Delivery, OwnerEffect

__all__ = ["EarlyDeliveries"]

MAX_DELIVERIES: Final = 1_000


class EarlyDeliveries:
    """The deliveries that wait for their interval to serve, with a limit of bytes and of number (G13)."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: list[Delivery] = []
        self._bytes = 0

    def add(self, delivery: Delivery) -> list[OwnerEffect]:
        """Keep a delivery, or refuse it if there is no room."""
        size = bytes_of(delivery.values)
        if self._bytes + size > self._limit_bytes or len(self._waiting) >= MAX_DELIVERIES:
            return [refusal(delivery, "the interval is being opened")]
        self._bytes += size
        self._waiting.append(delivery)
        return []

    def take(self) -> list[Delivery]:
        """The waiting deliveries, in their order. None waits afterwards."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        return waiting
