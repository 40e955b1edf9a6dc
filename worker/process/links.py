"""What a worker process does not reach or is kept from, in its load report and as metrics (section 7.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millwheel.model.catalog import Catalog
from millwheel.model.stalls import ProcessConditions
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.store.repetition import RetriedCalls
from millwheel.worker.process.peers import PeerConnection

__all__ = ["WorkerLinks"]

_MAX_LINKS: Final = 100
"""The most links to other workers in one load report."""


class WorkerLinks(Collector):
    """The links of one worker process to other workers and to the store."""

    def __init__(
        self,
        catalog: Catalog,
        peers: Mapping[str, PeerConnection],
        repeating: Callable[[], Sequence[RetriedCalls]],
        conditions: ProcessConditions,
    ) -> None:
        """
        Args:
            catalog: It has the names of workers.
            peers: The connections to other workers, by address.
            repeating: The calls to the store that are repeated, of each interval that has one.
            conditions: What the process observes of its machine and of the store.
        """
        self._catalog = catalog
        self._peers = peers
        self._repeating = repeating
        self._conditions = conditions

    def add_to(self, response: wire.GetWorkerLoadResponse) -> None:
        """Add the state of the links to a load report. Call it on the event loop."""
        response.stalled = self._conditions.stalled()
        # The longest ones. In a network in two halves, each of a thousand workers could name five hundred.
        broken = (link for link in self._links() if link[1])
        for worker, seconds in nlargest(_MAX_LINKS, broken, key=itemgetter(1)):
            response.broken_links.add(worker_id=worker, seconds=seconds)
        for node, seconds in sorted(self._conditions.node_outages().items()):
            if seconds:
                response.broken_links.add(store_node=node, seconds=seconds)
        repeating = self._repeating()
        response.repeating_journals = len(repeating)
        if repeating:
            oldest = min(repeating, key=lambda one: one.failing_since)
            response.repeating_seconds = asyncio.get_running_loop().time() - oldest.failing_since
            response.repeating_error = oldest.last_error

    def collect(self) -> Iterator[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        broken = GaugeMetricFamily(
            "millwheel_worker_link_broken_seconds",
            "For how long this worker has not reached another one; 0: it does",
            labels=["peer"],
        )
        for worker, seconds in sorted(self._links()):
            broken.add_metric([worker], seconds)
        yield broken

    def _links(self) -> Iterator[tuple[str, float]]:
        """Yield the registered workers with a connection, and for how many seconds each is not reached. 0: it is."""
        # A list, because the event loop's thread may change the catalog meanwhile.
        for name, record in list(self._catalog.workers.items()):
            if (peer := self._peers.get(record.endpoint.address)) is not None:
                yield name, peer.broken_seconds
