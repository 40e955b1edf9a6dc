"""Assembles a stream's routing from the master's partial messages. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control

__all__ = ["RoutingView"]


class _Intervals:
    """One consumer's intervals, ordered by their keys."""

    def __init__(self) -> None:
        self.records: list[catalog.IntervalRecord] = []
        self._starts: list[bytes] = []

    def replace(self, changed: Iterable[catalog.IntervalRecord]) -> None:
        """Insert each interval. It replaces all intervals that share a key with it."""
        for one in changed:
            start = one.keys.start
            end = one.keys.end if one.keys.HasField("end") else None
            first = bisect_right(self._starts, start)
            if first and self._reaches(first - 1, start):
                first -= 1
            last = len(self._starts) if end is None else max(first, bisect_left(self._starts, end))
            self.records[first:last] = [one]
            self._starts[first:last] = [start]

    def _reaches(self, index: int, key: bytes) -> bool:
        keys = self.records[index].keys
        return not keys.HasField("end") or keys.end > key


class RoutingView:
    """The routing that one watch has received so far."""

    def __init__(self) -> None:
        self._intervals: dict[str, _Intervals] = {}

    def take(self, message: control.WatchRoutingResponse) -> control.WatchRoutingResponse | None:
        """Apply a message. Returns the routing with all intervals, or None if the revision has more messages."""
        known, self._intervals = self._intervals, {}
        for route in message.consumers:
            intervals = known.get(route.incarnation) if route.only_changes else None
            intervals = _Intervals() if intervals is None else intervals
            intervals.replace(route.intervals.intervals)
            self._intervals[route.incarnation] = intervals
        if message.more:
            return None
        whole = control.WatchRoutingResponse()
        whole.CopyFrom(message)
        for route in whole.consumers:
            if route.only_changes:
                route.only_changes = False
                del route.intervals.intervals[:]
                route.intervals.intervals.extend(self._intervals[route.incarnation].records)
        return whole
