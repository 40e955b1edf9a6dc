"""What becomes of records whose consumer was removed: they are discarded, once it is certain (sections 4.1, 7.1; G1).

A production is routed by the catalog of the moment when it was made, by this process or by an earlier owner, which may
have seen more of the catalog than this process has by now. So a consumer that the catalog does not show is not taken
for one that is gone before the coordinator itself has said so.
"""

from __future__ import annotations

from typing import Final

from millwheel.coordination.contract import Coordinator
from millwheel.core.catalog import Catalog
from millwheel.worker.shell.follower import read_topologies

__all__ = ["Edges"]

_MOST_GONE: Final = 1_000
"""Edges that are known to be gone, at most: what is forgotten is asked for again."""

Edge = tuple[str, str]
"""(consumer's incarnation, stream)."""


class Edges:
    """Who consumes which streams, as the catalog last showed it; and who does no more, for certain."""

    def __init__(self, coordinator: Coordinator, catalog: Catalog) -> None:
        self._coordinator = coordinator
        self._catalog = catalog
        self._known: frozenset[Edge] = frozenset()
        self._gone: set[Edge] = set()

    def refresh(self) -> None:
        """The catalog has changed."""
        self._known = self._catalog.edges()
        self._gone -= self._known

    def has(self, consumer: str, stream: str) -> bool:
        """Whether records of ``stream`` are to be brought to ``consumer``."""
        return (consumer, stream) in self._known

    async def is_gone(self, consumer: str, stream: str) -> bool:
        """Whether ``consumer`` takes nothing of ``stream`` any more, by a linearizable read.

        DamagedValueError if a record cannot be read, so that it is not known.
        """
        edge = consumer, stream
        if edge not in self._gone:
            # What cannot be read may be what has the consumer. Of a consumer's life, its record alone tells.
            now = await read_topologies(self._coordinator)
            if edge in now.edges():
                return False
            if edge in self._known:
                return False
            if len(self._gone) >= _MOST_GONE:
                self._gone.clear()
            self._gone.add(edge)
        return True
