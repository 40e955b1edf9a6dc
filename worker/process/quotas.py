"""How fast each topology may take injected records at this worker process, and its weight in the run queue.

A topology's quota of records is divided evenly among the worker processes that own intervals of it. So the cluster
never takes more than the quota, and takes less if the keys of the injected streams are spread unevenly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millwheel.model.catalog import Catalog, incarnations_of
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["RecordQuotas", "weight_of"]


def weight_of(known: Catalog, topology: str) -> float:
    """The topology's share of a worker's time, beside those of the others."""
    record = known.topologies.get(topology)
    return record.quota.weight or 1.0 if record is not None else 1.0


class _Bucket:
    """Takes ``rate`` records a second. What was not used is kept for one second.

    A batch is taken whole, so it may be in debt. Nothing more is taken until the debt is paid.
    """

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._left = rate
        self._at = now

    def take(self, records: int, now: float) -> None:
        """Take records that have arrived."""
        self._left = min(self.rate, self._left + (now - self._at) * self.rate) - records
        self._at = now

    def wait(self, now: float) -> float:
        """Seconds until the debt is paid."""
        return max(0.0, -(self._left + (now - self._at) * self.rate) / self.rate)


class RecordQuotas(Collector):
    """The quotas of the topologies that have one. Their injectors wait when a quota is used up."""

    def __init__(self, known: Catalog, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            known: The catalog. Call :meth:`refresh` after each change.
            clock: Returns monotone seconds.
        """
        self._known = known
        self._clock = clock
        self.buckets: dict[str, _Bucket] = {}
        """By topology. Empty while none has a quota of records."""
        self._waited: dict[str, float] = {}
        """By topology: the seconds for which connections of injectors have waited."""

    def refresh(self) -> None:
        """The catalog has changed."""
        limited = {name: one for name, one in self._known.live_topologies() if one.quota.records_per_second}
        for name, record in limited.items():
            rate = record.quota.records_per_second / max(1, self._owners(record))
            bucket = self.buckets.setdefault(name, _Bucket(rate, self._clock()))
            bucket.take(0, self._clock())
            bucket.rate = rate
        for name in self.buckets.keys() - limited.keys():
            del self.buckets[name]

    def _owners(self, record: catalog.TopologyRecord) -> int:
        """How many worker processes own intervals of the topology."""
        maps = (self._known.maps.get(incarnation) for incarnation in incarnations_of(record))
        return len({one.owner.worker_id for chunk in maps if chunk is not None for one in chunk if one.owner.worker_id})

    def taken(self, topology: str, records: int) -> None:
        """Injected records of a topology have arrived."""
        if (bucket := self.buckets.get(topology)) is not None:
            bucket.take(records, self._clock())

    def wait(self, topology: str) -> float:
        """How many seconds it takes until more records of the topology's injectors are taken."""
        bucket = self.buckets.get(topology)
        return 0.0 if bucket is None else bucket.wait(self._clock())

    def waited(self, topology: str, seconds: float) -> None:
        """An injector has waited."""
        self._waited[topology] = self._waited.get(topology, 0.0) + seconds

    def collect(self) -> Iterator[Metric]:
        """All metrics at this moment."""
        waited = CounterMetricFamily(
            "millwheel_quota_wait_seconds",
            "Seconds for which connections of injectors waited because their topology's quota of records was used up",
            labels=["topology"],
        )
        for name, seconds in list(self._waited.items()):
            waited.add_metric([name], seconds)
        yield waited
