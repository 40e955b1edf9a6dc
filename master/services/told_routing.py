"""What one watcher of a routing has been told, and what is news to it: of large interval maps only the changes."""

from __future__ import annotations

from typing import Final

from millwheel.core.catalog import Catalog
from millwheel.core.interval_chunks import Chunk
from millwheel.rpc.v1 import control_pb2 as control

__all__ = ["ToldRouting"]

_MOST_CHUNKS: Final = 32
"""In one message: mostly half a megabyte, and six at the most."""


class ToldRouting:
    """What has been told so far. Pure."""

    def __init__(self) -> None:
        self._head: control.WatchRoutingResponse | None = None
        self._chunks: dict[str, dict[int, Chunk]] = {}

    def news(self, known: Catalog, head: control.WatchRoutingResponse) -> list[control.WatchRoutingResponse]:
        """The messages that bring a watcher up to date; ``head``: the routing as it stands now, without intervals.

        No messages where nothing has changed. Between two of them no interval may be sent to: keys may be missing.
        """
        changed = {one.incarnation: self._changed(known, one.incarnation) for one in head.consumers}
        if head == self._head and not any(changed.values()):
            return []
        self._head = head
        first = set(changed) - set(self._chunks)
        self._chunks = {name: _by_number(known, name) for name in changed}
        parts = [(name, chunk) for name, chunks in changed.items() for chunk in chunks]
        messages = []
        for begin in range(0, max(len(parts), 1), _MOST_CHUNKS):
            message = control.WatchRoutingResponse(revision=known.revision)
            message.MergeFrom(head)
            routes = {route.incarnation: route for route in message.consumers}
            for name, route in routes.items():
                route.only_changes = begin > 0 or name not in first
                table = known.tables.get(name)
                if table is not None:
                    route.intervals.computation, route.intervals.topology = table.origin
            for name, chunk in parts[begin : begin + _MOST_CHUNKS]:
                routes[name].intervals.intervals.extend(chunk.intervals)
            messages.append(message)
        for message in messages[:-1]:
            message.more = True
        return messages

    def _changed(self, known: Catalog, incarnation: str) -> list[Chunk]:
        """Chunks that hold what was not told. A catalog that was read anew has other chunks with the same contents."""
        told = self._chunks.get(incarnation, {})
        table = known.tables.get(incarnation)
        found = []
        for chunk in table.chunks if table is not None else ():
            before = told.get(chunk.number)
            if before is not chunk and (before is None or before.intervals != chunk.intervals):
                found.append(chunk)
        return found


def _by_number(known: Catalog, incarnation: str) -> dict[int, Chunk]:
    table = known.tables.get(incarnation)
    return {chunk.number: chunk for chunk in table.chunks} if table is not None else {}
