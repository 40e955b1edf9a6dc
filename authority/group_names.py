"""What people call the groups of low watermarks: the labels of their metrics. A group's id means nothing to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from millwheel.coordination.contract import Coordinator, CoordinatorError
from millwheel.model.catalog_keys import chunks_prefix
from millwheel.model.incarnation import INJECTOR_PREFIX, GroupId, IncarnationId, is_injector, name_of_incarnation
from millwheel.model.stream_names import is_full, owner_of
from millwheel.rpc.v1.catalog_pb2 import IntervalMapRecord

__all__ = ["GroupLabels", "GroupTopologies", "labels_of"]

log = logging.getLogger("millwheel.authority")

_POLL_SECONDS: Final = 1.0
_MAX_READS: Final = 100
"""The most interval maps that are read in a row. A restarted process learns thousands of names within a minute."""
_LOG_SUFFIX: Final = ".log"


class GroupLabels(NamedTuple):
    """``kind`` is ``source`` for the injectors of a stream, ``log``, or ``computation``. The rest may be empty."""

    kind: str
    topology: str
    computation: str
    stream: str


def labels_of(group: GroupId, topology: str) -> GroupLabels | None:
    """Return the labels of a group. None: it is a computation, and its ``topology`` is not known (empty).

    A computation's id has its name alone, and another topology may have a computation of that name.
    """
    if is_injector(group):
        stream = group.removeprefix(INJECTOR_PREFIX)
        return GroupLabels("source", owner_of(stream), "", stream)
    name = name_of_incarnation(group)
    if is_full(name):
        stream = name.removesuffix(_LOG_SUFFIX)
        return GroupLabels("log", owner_of(stream), "", stream)
    return GroupLabels("computation", topology, name, "") if topology else None


class GroupTopologies:
    """The topologies of the computations whose watermarks this process keeps, as their interval maps state them.

    Each map is read once. It was written before the first owner of its intervals was accepted here, and an id never
    gets another name. Memory is bounded by the groups that are served.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._topologies: dict[GroupId, str] = {}

    def labels(self, group: GroupId) -> GroupLabels | None:
        """Return the labels of a group, None while they are not known. Any thread may ask."""
        return labels_of(group, self._topologies.get(group, ""))

    async def run(self, groups: Callable[[], Collection[GroupId]]) -> None:
        """Learn the names of ``groups()`` until cancelled. Watermarks do not wait for this."""
        while True:
            try:
                await self.learn(groups())
            except CoordinatorError as error:
                log.debug("the names of groups cannot be read now: %s", error)
            await asyncio.sleep(_POLL_SECONDS)

    async def learn(self, groups: Collection[GroupId]) -> None:
        """Read the names of new groups, and forget those of others.

        Raises CoordinatorError: what was learned stays.
        """
        for gone in self._topologies.keys() - set(groups):
            del self._topologies[gone]
        unknown = [group for group in groups if group not in self._topologies and self.labels(group) is None]
        for group in unknown[:_MAX_READS]:
            self._topologies[group] = await self._topology(IncarnationId(group))

    async def _topology(self, incarnation: IncarnationId) -> str:
        """Return the topology that the interval map states. Empty: there is no map that can be read."""
        for entry in (await self._coordinator.list(chunks_prefix(incarnation))).entries:
            try:
                if not entry.damage and (found := IntervalMapRecord.FromString(entry.value).topology):
                    return found
            except DecodeError:
                continue
        return ""
