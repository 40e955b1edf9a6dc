"""What one open subscription shows in metrics (section 4.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millwheel.client.measured import ClientLabels, Readings, watermark_gauges
from millwheel.rpc.clock import wall_now

__all__ = ["SubscriptionMeasures"]


class MeasuredReader(Protocol):
    """What is read of a subscription, which has the meanings."""

    watermark: int
    received: int
    missed: int
    end: int

    @property
    def acked(self) -> int:
        """The offset of the last ACK."""

    @property
    def position(self) -> int:
        """The offset of the next record that the program gets."""


class SubscriptionMeasures:
    """Reads a subscription. :mod:`millwheel.client.metrics` has the meaning of each reading."""

    def __init__(self, reader: MeasuredReader, labels: ClientLabels, now: Callable[[], int] = wall_now) -> None:
        """
        Args:
            reader: The subscription. It has had its first response.
            labels: The stream and the cursor. A tail has an empty one.
            now: The wall clock, in microseconds.
        """
        self._reader = reader
        self._labels = labels
        self._now = now
        self._began = max(reader.acked, reader.position)
        """Where the cursor was when the subscription was opened."""

    @property
    def labels(self) -> ClientLabels:
        """The stream and the cursor."""
        return self._labels

    def counts(self) -> Readings:
        """What it has counted."""
        reader = self._reader
        counts: Readings = {("received_records", ""): reader.received, ("missed_records", ""): reader.missed}
        if self._labels[1]:
            counts["acked_records", ""] = max(0, reader.acked - self._began)
        return counts

    def gauges(self) -> Readings:
        """How it is now."""
        reader, position = self._reader, self._position()
        gauges: Readings = {("lag_records", ""): max(0, reader.end - position)}
        if self._labels[1]:
            gauges["unacked_records", ""] = max(0, position - reader.acked)
        return gauges | watermark_gauges(reader.watermark, self._now())

    def _position(self) -> int:
        while True:
            try:
                return self._reader.position
            except IndexError:
                continue  # the thread of the subscription has taken its last batch in this moment
