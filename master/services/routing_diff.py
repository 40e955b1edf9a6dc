"""The routing that one watcher has received, and its updates: large interval maps are sent as changes only."""

from __future__ import annotations

from typing import Final

from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_chunks import IntervalChunk
from millwheel.rpc.v1 import control_pb2 as control

__all__ = ["RoutingDiff"]

_MAX_CHUNKS_PER_MESSAGE: Final = 32
"""The maximum number of chunks in one message: mostly half a megabyte, and six megabytes at the most."""


class RoutingDiff:
    """The routing sent so far. Pure."""

    def __init__(self) -> None:
        self._head: control.WatchRoutingResponse | None = None
        self._chunks: dict[str, dict[int, IntervalChunk]] = {}

    def news(self, known: Catalog, head: control.WatchRoutingResponse) -> list[control.WatchRoutingResponse]:
        """Return the messages that update a watcher. ``head``: the present routing, without intervals.

        Returns no messages if nothing has changed. While ``more`` announces another message, keys may be missing. The
        watcher must not send to any interval until the last message.
        """
        changed = {one.incarnation: self._changed(known, one.incarnation) for one in head.consumers}
        if head == self._head and not any(changed.values()):
            return []
        self._head = head
        first = set(changed) - set(self._chunks)
        self._chunks = {name: _by_number(known, name) for name in changed}
        parts = [(name, chunk) for name, chunks in changed.items() for chunk in chunks]
        messages = []
        for begin in range(0, max(len(parts), 1), _MAX_CHUNKS_PER_MESSAGE):
            message = control.WatchRoutingResponse(revision=known.revision)
            message.MergeFrom(head)
            routes = {route.incarnation: route for route in message.consumers}
            for name, route in routes.items():
                route.only_changes = begin > 0 or name not in first
                interval_map = known.maps.get(name)
                if interval_map is not None:
                    route.intervals.computation, route.intervals.topology = interval_map.origin
            for name, chunk in parts[begin : begin + _MAX_CHUNKS_PER_MESSAGE]:
                routes[name].intervals.intervals.extend(chunk.intervals)
            messages.append(message)
        for message in messages[:-1]:
            message.more = True
        return messages

    def _changed(self, known: Catalog, incarnation: IncarnationId) -> list[IntervalChunk]:
        """Return the chunks with unsent contents.

        A catalog that was read again has new chunk objects, whose contents may be the same.
        """
        sent = self._chunks.get(incarnation, {})
        interval_map = known.maps.get(incarnation)
        found = []
        for chunk in interval_map.chunks if interval_map is not None else ():
            before = sent.get(chunk.number)
            if before is not chunk and (before is None or before.intervals != chunk.intervals):
                found.append(chunk)
        return found


def _by_number(known: Catalog, incarnation: IncarnationId) -> dict[int, IntervalChunk]:
    interval_map = known.maps.get(incarnation)
    return {chunk.number: chunk for chunk in interval_map.chunks} if interval_map is not None else {}
