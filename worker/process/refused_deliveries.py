"""Counts the deliveries that the intervals and logs of a process refuse: its back-pressure, by who feels it (G13)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from typing import Final

from millwheel.model.deliveries import Delivery
from millwheel.model.incarnation import INJECTOR_PREFIX
from millwheel.model.wording import refusal_name
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome

__all__ = ["RefusalLabels", "RefusedDeliveries", "injector_name"]

RefusalLabels = tuple[str, str, str, str, str]
"""(topology, computation, stream, injector process, reason). The first two are empty for a log."""


_MAX_PLACES: Final = 1_000
"""Names in a delivery are the sender's. After so many places, the stream and the process of further ones are empty."""


class RefusedDeliveries:
    """The counts since the process began. The event loop's thread counts, and any thread reads."""

    def __init__(self) -> None:
        self._counts: defaultdict[RefusalLabels, int] = defaultdict(int)

    def add(self, place: tuple[str, str], delivery: Delivery, outcome: DeliveryOutcome.ValueType) -> None:
        """Count one refusal of a delivery, or of a part of it."""
        reason = refusal_name(outcome)
        one = (*place, delivery.stream, injector_name(delivery.sender.name), reason)
        known = one in self._counts or len(self._counts) < _MAX_PLACES
        self._counts[one if known else (*place, "", "", reason)] += 1

    def totals(self) -> dict[RefusalLabels, int]:
        """The number of refusals at each place."""
        return dict(self._counts)

    def keep(self, places: Set[tuple[str, str]]) -> None:
        """Drop the counts of what was removed."""
        for name in [name for name in self._counts if name[:2] not in places]:
            del self._counts[name]


def injector_name(sender: str) -> str:
    """The injector process that a sender's name names. Empty: the sender is an interval."""
    return sender.rpartition("/")[2] if sender.startswith(INJECTOR_PREFIX) else ""
