"""Removed consumers: their records are discarded once the removal is certain (sections 4.1, 7.1; G1).

A production is routed by the catalog at the time of its creation, by this process or an earlier owner. That owner may
have had a newer catalog than this process has now. So a consumer missing from the catalog counts as removed only after
the coordinator confirms it.
"""

from __future__ import annotations

from typing import Final

from millwheel.coordination.contract import Coordinator
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.worker.process.follower import read_topologies

__all__ = ["RemovedConsumers"]

MAX_GONE: Final = 1_000
"""Maximum number of known removals. A forgotten one is looked up again."""

Edge = tuple[str, str]
"""(consumer's incarnation, stream)."""


class RemovedConsumers:
    """The consumers of each stream in the last catalog, and the consumers that are certainly removed."""

    def __init__(self, coordinator: Coordinator, catalog: Catalog) -> None:
        self._coordinator = coordinator
        self._catalog = catalog
        self.known: frozenset[Edge] = frozenset()
        """Records of a stream must be sent to these consumers."""
        self._gone: set[Edge] = set()

    def refresh(self) -> None:
        """The catalog has changed."""
        self.known = self._catalog.edges()
        self._gone -= self.known

    async def is_gone(self, consumer: IncarnationId, stream: str) -> bool:
        """Whether ``consumer`` no longer consumes ``stream``, by a linearizable read.

        Raises:
            DamagedValueError: A record cannot be read, so the answer is unknown.
        """
        edge = consumer, stream
        if edge not in self._gone:
            # Read the records themselves: only a record shows whether its consumer exists. An unreadable one may
            # contain the consumer, so it raises.
            now = await read_topologies(self._coordinator)
            if edge in now.edges():
                return False
            if edge in self.known:
                return False
            if len(self._gone) >= MAX_GONE:
                self._gone.clear()
            self._gone.add(edge)
        return True
