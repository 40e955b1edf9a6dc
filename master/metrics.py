"""The master's Prometheus metrics: leadership, changes of intervals, those that do not run, keys too hot to split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millwheel.master.replica import MasterReplica
from millwheel.master.unfed import unfed_streams
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import ACTIVE_STATES, Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["MasterCollector"]

T = TypeVar("T")

_NO_OWNER: Final = "no_owner"
_NOT_LOADED: Final = "not_loaded"
_LOOKS: Final = 3
"""A look takes milliseconds, and changes come seldom. So the second one finds what the first one could not."""


class MasterCollector(Collector):
    """Reads a replica at each scrape, in the scraper's thread. Figures of computations come only from the leader."""

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
        names = {} if known is None else _names_of(known)
        numbers = Counter(names[one.incarnation] for one in replica.hot_keys if one.incarnation in names)
        for name, number in sorted(numbers.items()):
            hot.add_metric(name, number)
        yield hot
        left = GaugeMetricFamily(
            "millwheel_master_left_workers",
            "1 for each worker that was stopped in order and is not back; the label process is its name and address",
            labels=["process"],
        )
        for worker, address in replica.left_workers.items():
            left.add_metric([f"worker {worker} at {address}"], 1)
        yield left
        if known is not None:
            yield self._stranded(known, names)
            yield from _of_catalog(known)

    def _stranded(self, known: Catalog, names: Mapping[IncarnationId, tuple[str, str]]) -> Metric:
        family = GaugeMetricFamily(
            "millwheel_master_stranded_intervals",
            "Intervals that no worker has (no_owner), or whose worker cannot run them (not_loaded)",
            labels=["topology", "computation", "reason"],
        )
        for incarnation, name in names.items():
            if (reasons := _found(partial(self._stranded_of, known, incarnation))) is not None:
                for reason in (_NO_OWNER, _NOT_LOADED):
                    family.add_metric([*name, reason], reasons[reason])
        return family

    def _stranded_of(self, known: Catalog, incarnation: IncarnationId) -> Counter[str]:
        return Counter(self._why_stranded(known, one) for one in known.maps.get(incarnation) or ())

    def _why_stranded(self, known: Catalog, interval: catalog.IntervalRecord) -> str:
        """Why an interval does not run. Empty: it runs."""
        if not known.lives(interval.owner.worker_id, interval.owner_revision):
            return _NO_OWNER
        load = self._replica.book.load_of(interval)
        return _NOT_LOADED if load is not None and load.absence else ""


def _names_of(known: Catalog) -> dict[IncarnationId, tuple[str, str]]:
    """The names of running computations. The catalog's index is left alone: it belongs to the event loop's thread."""
    return {
        IncarnationId(record.incarnations[one.name]): (name, one.name)
        for name, record in sorted(known.topologies.items())
        if record.state in ACTIVE_STATES
        for one in record.spec.computations
    }


def _found(look: Callable[[], T]) -> T | None:
    """What a look at the catalog finds. None: the event loop's thread has changed the catalog during each look.

    It looks again, since an alert ends if one scrape has no sample of it.
    """
    for _ in range(_LOOKS):
        with suppress(RuntimeError):
            return look()
    return None


def _of_catalog(known: Catalog) -> Iterator[Metric]:
    """Yield what the leading master sees in the catalog: damage, and streams that nothing feeds."""
    yield GaugeMetricFamily(
        "millwheel_master_damaged_values",
        "Values of the coordinator that cannot be read, except leased ones; `millwheel cluster health` names them",
        value=sum(not key.startswith(keys.LEASED) for key in list(known.damaged)),
    )
    unfed = GaugeMetricFamily(
        "millwheel_master_unfed_streams",
        "1 for each stream that holds back records of others, because an injector process of it never came",
        labels=["stream"],
    )
    for one in _found(lambda: unfed_streams(known, wall_now())) or ():
        unfed.add_metric([one.name], 1)
    yield unfed
