"""Names of groups for people: ``topology/computation`` or ``source stream``, instead of incarnation ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millwheel.model.incarnation import INJECTOR_PREFIX
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["GroupNames"]


@dataclass(frozen=True, slots=True)
class GroupNames:
    """The names of computations by incarnation id, for all topologies."""

    computations: dict[str, tuple[str, str]]
    """Topology and computation name by incarnation id."""

    @classmethod
    def from_records(cls, records: Iterable[catalog.TopologyRecord]) -> GroupNames:
        """Build the names from the result of ``list_topologies``."""
        return cls(
            {
                incarnation: (record.spec.name, name)
                for record in records
                for name, incarnation in record.incarnations.items()
            }
        )

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
