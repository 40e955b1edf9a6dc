"""The low watermark authority: accepted owners, and the minimum over all their reports (sections 6.2, 7.2)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from millwheel.authority.injected import InjectorGroup
from millwheel.authority.keyed import KeyedGroup
from millwheel.authority.registry import Registry
from millwheel.authority.shares import Share
from millwheel.authority.writer import JournalWriter
from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.store.contract import Append
from millwheel.worker.messages import Accepted
from millwheel.worker.owner import OwnerCore
from simulation.mutations.base import mutation, replace

__all__: list[str] = []


@mutation("G4", "an owner begins when the authority has accepted it")
def served_unaccepted() -> None:
    """An owner begins as soon as it has read its journal."""

    def make(opened: Any) -> Any:
        def begun(self: Any, event: Any) -> list[Any]:
            return [*opened(self, event), *self._on_accepted(Accepted(MIN_TIMESTAMP))]

        return begun

    replace(OwnerCore, "_on_opened", make)


@mutation(
    "G4",
    "the authority takes reports only of the owner that it accepted",
    seeds=20,
    test="tests/authority/test_intervals.py::test_a_zombies_report_is_refused_once_another_is_accepted",
    why="the coordinator notifies an owner of its successor, too: both report for moments only",
)
def hearsay_of_predecessors() -> None:
    """The authority also accepts reports of an older owner."""

    def make(report: Any) -> Any:
        def accepted(self: KeyedGroup, message: WatermarkReport, now: int) -> Any:
            over = self._map.overlapping(message.member) if isinstance(message.member, KeyInterval) else []
            if over and message.sequencer < max(share.sequencer for _, share in over):
                share = over[0][1]
                message = msgspec.structs.replace(message, member=share.member, sequencer=share.sequencer)
                message.number = share.last_report
            return report(self, message, now)

        return accepted

    replace(KeyedGroup, "report", make)


@mutation(
    "G4",
    "the authority accepts no sequencer below one that holds the keys",
    seeds=15,
    test="tests/authority/test_intervals.py::test_an_acceptance_overlapping_a_larger_sequencer_is_refused",
    why="an older owner that asks so late is refused by the fence at its first append",
)
def older_owners_accepted() -> None:
    """The authority accepts every request, with any sequencer."""

    def accept(self: KeyedGroup, keys: KeyInterval, sequencer: int) -> Share[KeyInterval]:
        over = [share for _, share in self._map.overlapping(keys)]
        made = Share(keys, sequencer, min(share.watermark for share in over))
        self.moved.update(dict.fromkeys(self.put(made)))
        return made

    replace(KeyedGroup, "accept", lambda _: accept)


@mutation("G7", "the authority lets out what is in its journal, and nothing else")
def published_unjournaled() -> None:
    """The authority answers acceptances and broadcasts values while their append is in flight."""

    def make(append: Any) -> Any:
        async def behind(self: Any, before: Any, entry: Append) -> None:
            if before is not None:
                await before
            await append(self, entry)

        async def at_once(self: JournalWriter, entry: Append) -> None:
            self._last = asyncio.create_task(behind(self, getattr(self, "_last", None), entry))  # type: ignore[attr-defined]

        return at_once

    replace(JournalWriter, "append", make)


@mutation("G7", "a computation's watermark is the minimum over all of its intervals")
def furthest_interval() -> None:
    """The authority broadcasts the largest value of all intervals."""

    def smallest(self: KeyedGroup) -> int:
        return max(share.watermark for share in self._map.values())

    replace(KeyedGroup, "smallest", lambda _: smallest)


@mutation("G7", "a stream's watermark waits for every process that is expected")
def unexpected_injectors() -> None:
    """The minimum does not wait for processes that have not registered."""

    def make(count_missing: Any) -> Any:
        def without(self: InjectorGroup) -> None:
            expected, self.expected = self.expected, frozenset()
            try:
                count_missing(self)
            finally:
                self.expected = expected

        return without

    replace(InjectorGroup, "_count_missing", make)


@mutation(
    "G8",
    "a process that is idle leaves the minimum",
    seeds=0,
    test="tests/authority/test_injectors.py::test_an_idle_process_leaves_the_minimum",
    why="simulated sources are idle for seconds: what waits for them goes on when they do",
)
def idle_ones_counted() -> None:
    """The minimum waits for what a process had reached when it became idle."""

    def make(becomes_idle: Any) -> Any:
        def counted(self: InjectorGroup) -> None:
            self._working.add(self._working.min())
            becomes_idle(self)

        return counted

    replace(InjectorGroup, "_becomes_idle", make)


@mutation("G7", "a shard's new owner starts from the base that its journal names")
def lost_bases() -> None:
    """A new owner ignores the base, and reads only the entries above it."""
    replace(Registry, "load", lambda _: lambda self, parts: None)
