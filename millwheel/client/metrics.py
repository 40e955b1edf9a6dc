"""Prometheus metrics of the injectors and subscriptions of this process.

A program asks for them by :func:`register_metrics`. Without that call nothing is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millwheel.client.measured import INJECTORS, SUBSCRIPTIONS, ClientLabels, MeasuredClients, Readings

__all__ = ["ClientCollector", "register_metrics"]

_Gauge = tuple[str, Callable[[Iterable[float]], float]]
"""The help text, and the value of several clients with the same labels."""

_WATERMARK_GAUGES: Final[dict[str, _Gauge]] = {
    "watermark_timestamp_seconds": ("The watermark, in seconds since the epoch, while it is a time", min),
    "data_lag_seconds": ("Wall time minus this watermark. An idle injector has no value", max),
}

_INJECTOR_COUNTERS: Final[dict[str, tuple[str, str]]] = {
    "sent_records": ("Records that an injector has taken", ""),
    "acks": ("ACKs of records, one for each record and consumer", ""),
    "late_records": ("Records that were behind the published watermark", ""),
    "resent_records": ("Records of deliveries that were sent again, one for each consumer", ""),
    "table_records": ("Records of tables that an injector has taken, by columns or by rows", "form"),
    "refused_deliveries": ("Deliveries that a worker has refused. The injector keeps the records", "reason"),
    "blocked_seconds": ("Seconds in which at least one call waited until records are taken", "cause"),
}

_INJECTOR_GAUGES: Final[dict[str, _Gauge]] = {
    "unacked_records": ("Records without an ACK, one for each consumer", sum),
    "unacked_bytes": ("Bytes of the values of these records", sum),
    "failed": ("Whether the injector has stopped by an error: 1 or 0", max),
    **_WATERMARK_GAUGES,
}

_SUBSCRIPTION_COUNTERS: Final[dict[str, tuple[str, str]]] = {
    "received_records": ("Records that the program has taken", ""),
    "acked_records": ("Records that the program has ACKed under a cursor", ""),
    "missed_records": ("Records that the log had deleted before they were delivered", ""),
}

_SUBSCRIPTION_GAUGES: Final[dict[str, _Gauge]] = {
    "lag_records": ("Records of the log, as of its last response, that the program has not taken", sum),
    "unacked_records": ("Records that the program has taken and not ACKed under its cursor", sum),
    **_WATERMARK_GAUGES,
}


class ClientCollector(Collector):
    """Reads the injectors and subscriptions of this process at each scrape, in the scraper's thread."""

    def collect(self) -> Iterator[Metric]:
        """All metrics at this moment."""
        yield from _families("injector", "process", INJECTORS, _INJECTOR_COUNTERS, _INJECTOR_GAUGES)
        yield from _families("subscription", "cursor", SUBSCRIPTIONS, _SUBSCRIPTION_COUNTERS, _SUBSCRIPTION_GAUGES)

    def describe(self) -> Iterator[Metric]:
        """The same. By it a registry refuses a second collector, which would count everything twice."""
        return self.collect()


def register_metrics(registry: CollectorRegistry = REGISTRY) -> ClientCollector:
    """Add the metrics of the injectors and subscriptions of this process to a registry of ``prometheus_client``.

    They are those of all injectors and subscriptions that are open, whenever they were opened. From this call on the
    counts of closed ones are kept, too. docs/operations.md lists them.

        >>> from prometheus_client import CollectorRegistry
        >>> registry = CollectorRegistry()
        >>> collector = register_metrics(registry)
        >>> registry.unregister(collector)

    Args:
        registry: The registry. By default the one that ``prometheus_client.start_http_server`` serves.

    Returns:
        The collector, for ``registry.unregister``.

    Raises:
        ValueError: The registry has these metrics already.
    """
    collector = ClientCollector()
    registry.register(collector)
    INJECTORS.kept = SUBSCRIPTIONS.kept = True
    return collector


def _families(
    kind: str,
    name_label: str,
    clients: MeasuredClients,
    counters: Mapping[str, tuple[str, str]],
    gauges: Mapping[str, _Gauge],
) -> Iterator[Metric]:
    """All metrics of one kind of clients."""
    now, counted = clients.look()
    labels = ["stream", name_label]
    for name, (help_text, label) in counters.items():
        counter = CounterMetricFamily(
            f"millwheel_{kind}_{name}", help_text, labels=[*labels, label] if label else labels
        )
        for client, counts in counted.items():
            for value, count in _of(counts, name):
                counter.add_metric([*client, value] if label else list(client), count)
        yield counter
    for name, (help_text, together) in gauges.items():
        gauge = GaugeMetricFamily(f"millwheel_{kind}_{name}", help_text, labels=labels)
        values: dict[ClientLabels, list[float]] = {}
        for client, readings in now:
            for _, reading in _of(readings, name):
                values.setdefault(client, []).append(reading)
        for client, those in values.items():
            gauge.add_metric(list(client), together(those))
        yield gauge


def _of(readings: Readings, name: str) -> Iterator[tuple[str, float]]:
    """The readings of one metric, with the value of its label."""
    return ((label, value) for (found, label), value in readings.items() if found == name)
