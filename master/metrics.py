"""The master's Prometheus metrics: leadership, changes of intervals, keys too hot to split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millwheel.master.replica import MasterReplica
from millwheel.master.views import names_of

__all__ = ["MasterCollector"]


class MasterCollector(Collector):
    """Reads a replica at each scrape. Hot keys come only from the leader."""

    def __init__(self, replica: MasterReplica) -> None:
        self._replica = replica

    def collect(self) -> Iterator[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        replica = self._replica
        yield GaugeMetricFamily(
            "millwheel_master_leads", "Whether this replica leads: 1 or 0", value=int(replica.leads)
        )
        operations = CounterMetricFamily(
            "millwheel_master_interval_operations",
            "Intervals moved, split and merged by this replica, on whose word, and how it went",
            labels=["kind", "by", "outcome"],
        )
        for labels, count in sorted(replica.operations.items()):
            operations.add_metric(labels, count)
        yield operations
        hot = GaugeMetricFamily(
            "millwheel_master_hot_keys",
            "Keys that keep their interval too busy and cannot be split; `millwheel cluster health` names them",
            labels=["topology", "computation"],
        )
        known = replica.catalog
        names = {} if known is None else names_of(known)
        numbers = Counter(names[one.incarnation] for one in replica.hot_keys if one.incarnation in names)
        for name, number in sorted(numbers.items()):
            hot.add_metric(name, number)
        yield hot
