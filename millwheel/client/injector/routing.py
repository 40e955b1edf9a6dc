"""The routing of one stream: its consumers, and the owners of their intervals (sections 4.2, 7.1). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1 import topology_pb2

__all__ = ["ConsumerRouting", "Route", "StreamRouting"]


@dataclass(frozen=True, slots=True)
class Route:
    """One interval of a consumer. ``address`` is the owner's; it is empty while no worker owns the interval.

    ``journal`` identifies ``keys``, because a split or a merge makes new journals. ``tenure`` changes with every change
    of the owner, even if the new owner is another incarnation of the same process. The new owner may lack the records
    that were sent to the old one. So the injector sends them again.
    """

    keys: KeyInterval
    journal: str
    address: str
    tenure: tuple[int, int] = (0, 0)


class ConsumerRouting:
    """One consumer, its key extractor, and the intervals that cover all its keys."""

    __slots__ = (
        "computation",
        "fields",
        "function",
        "incarnation",
        "log",
        "routes",
        "same",
        "same_of_rows",
        "starts",
        "topology",
    )

    def __init__(
        self,
        incarnation: IncarnationId,
        routes: Iterable[Route],
        *,
        topology: str = "",
        computation: str = "",
        fields: Sequence[str] = (),
        function: str = "",
        log: bool = False,
        same: bytes | None = None,
        rows_by_function: bool = False,
    ) -> None:
        """Raises ValueError unless ``routes`` cover every key exactly once (G11)."""
        self.incarnation = incarnation
        self.topology = topology
        self.computation = computation
        self.fields = tuple(fields)
        self.function = function
        self.log = log
        self.same = b"" if log else same
        """The key of all records in columns. None: they have several. A log has the empty key only."""
        self.same_of_rows = None if rows_by_function else self.same
        """The key of all records that are sent one by one. None: they have several, or what steps drop has others."""
        self.routes = sorted(routes, key=lambda route: route.keys.start)
        reached: bytes | None = b""
        for route in self.routes:
            if reached is None or route.keys.start != reached:
                raise ValueError(f"the intervals of {incarnation!r} do not cover every key once, at {route.keys}")
            reached = route.keys.end
        if reached is not None:
            raise ValueError(f"the intervals of {incarnation!r} leave out the keys from {reached!r} on")
        self.starts = [route.keys.start for route in self.routes[1:]]
        """The first key of each interval but the lowest one."""

    def by_journal(self) -> dict[str, Route]:
        """The intervals by journal."""
        return {route.journal: route for route in self.routes}


@dataclass(frozen=True, slots=True)
class StreamRouting:
    """The routing of a stream at ``revision``. ``allowed_skew`` is in microseconds; 0 means no throttle (8.4)."""

    revision: int
    consumers: Mapping[IncarnationId, ConsumerRouting]
    draining: bool = False
    allowed_skew: int = 0
    format: topology_pb2.ValueFormat.ValueType = topology_pb2.VALUE_FORMAT_MSGPACK
    record_type: str = ""
    schemas: Sequence[topology_pb2.RecordSchema] = ()
    """The types that topologies declare for the stream. Empty if any record may be valid."""
    id_stream: str = ""
    """The name within which users' ids are hashed. It belongs to ``consumers``: they know other hashes of no record."""
    id_slack: int = 0
    """How long users' ids are kept after the stream's low watermark has passed their records, in microseconds."""
    position_ranges: bool = False
    """Whether all receivers take deliveries with complete positions."""
    column_batches: bool = False
    """Whether all receivers understand records as columns. Each may still answer that it reads none."""

    @property
    def log_only(self) -> bool:
        """Whether no computation reads the stream, only logs."""
        return all(consumer.log for consumer in self.consumers.values())

    def addresses(self) -> set[str]:
        """The addresses of all owners."""
        found = {route.address for consumer in self.consumers.values() for route in consumer.routes}
        return found - {""}
