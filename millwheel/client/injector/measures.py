"""What one open injector shows in metrics (section 5.2)."""

from __future__ import annotations

from collections.abc import Callable

from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.room_waits import RoomWaits
from millwheel.client.injector.table_forms import TableCounts
from millwheel.client.measured import ClientLabels, Readings, watermark_gauges
from millwheel.model.wording import refusal_name
from millwheel.rpc.clock import wall_now

__all__ = ["InjectorMeasures"]


class InjectorMeasures:
    """Reads an injector's core. :mod:`millwheel.client.metrics` has the meaning of each reading."""

    def __init__(
        self,
        core: InjectorCore,
        waits: RoomWaits,
        tables: TableCounts,
        *,
        publishes: bool,
        now: Callable[[], int] = wall_now,
    ) -> None:
        """
        Args:
            core: The core of the injector.
            waits: The injector's back-pressure.
            tables: The records of its tables.
            publishes: Whether the injector publishes a watermark. Otherwise it shows none.
            now: The wall clock, in microseconds.
        """
        self._core = core
        self._waits = waits
        self._tables = tables
        self._publishes = publishes
        self._now = now

    @property
    def labels(self) -> ClientLabels:
        """The stream and the process."""
        return self._core.stream, self._core.process

    def counts(self) -> Readings:
        """What it has counted."""
        core = self._core
        counts: Readings = {
            ("sent_records", ""): core.accepted,
            ("acks", ""): core.acked,
            ("late_records", ""): core.late,
            ("resent_records", ""): core.outbound.resent,
            ("table_records", "columns"): self._tables.by_columns,
            ("table_records", "rows"): self._tables.by_rows,
        }
        for outcome, count in list(core.refused.items()):
            counts["refused_deliveries", refusal_name(outcome)] = count
        for cause, seconds in self._waits.seconds().items():
            counts["blocked_seconds", cause.value] = seconds
        return counts

    def gauges(self) -> Readings:
        """How it is now."""
        core, published = self._core, self._core.published
        gauges: Readings = {
            ("unacked_records", ""): core.unacked,
            ("unacked_bytes", ""): core.unacked_bytes,
            ("failed", ""): core.failed is not None,
        }
        if self._publishes:
            gauges |= watermark_gauges(published.watermark, self._now(), idle=published.idle)
        return gauges
