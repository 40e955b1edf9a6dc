"""Names of groups for people: ``topology/computation`` or ``source stream``, instead of incarnation ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millwheel.model.connector_parts import connector_parts
from millwheel.model.incarnation import INJECTOR_PREFIX
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as cluster

__all__ = ["GroupNames"]


@dataclass(frozen=True, slots=True)
class GroupNames:
    """The names of computations by incarnation id, for all topologies."""

    computations: dict[str, tuple[str, str]]
    """Topology and computation name by incarnation id."""
    parts: Mapping[str, cluster.ConnectorPart.ValueType] = field(default_factory=dict)
    """By incarnation id: which part of a source or a sink it is, if it is one."""

    @classmethod
    def from_records(cls, records: Iterable[catalog.TopologyRecord]) -> GroupNames:
        """Build the names from the result of ``list_topologies``."""
        names: dict[str, tuple[str, str]] = {}
        parts: dict[str, cluster.ConnectorPart.ValueType] = {}
        for record in records:
            names |= {incarnation: (record.spec.name, name) for name, incarnation in record.incarnations.items()}
            parts |= {record.incarnations[name]: part for name, part in connector_parts(record.spec).items()}
        return cls(names, parts)

    def in_words(self, subject: str) -> str:
        """Return ``subject`` with each incarnation id replaced by ``topology/computation``."""
        for incarnation, place in self.computations.items():
            subject = subject.replace(repr(incarnation), "/".join(place))
        return subject

    def show(self, group: str) -> str:
        """Return the group's name for people: ``topology/computation``, or ``source stream``."""
        if group.startswith(INJECTOR_PREFIX):
            return f"source {group.removeprefix(INJECTOR_PREFIX)}"
        return "/".join(self.computations.get(group, ("", group))).removeprefix("/")
