"""The low watermark authority: accepted owners, and the minimum over all their reports (sections 6.2, 7.2)."""

from __future__ import annotations

import asyncio
from typing import Any

from millwheel.authority.group import Group
from millwheel.authority.injected import InjectorGroup
from millwheel.authority.keyed import KeyedGroup
from millwheel.authority.minimum import SlotMinimum
from millwheel.authority.registry import Registry
from millwheel.authority.reporting import ReportingServicer
from millwheel.authority.writer import JournalWriter
from millwheel.client.watermark_streams import ReportStream
from millwheel.model.range_map import RangeMap
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.store.contract import Append
from millwheel.worker.owner import OwnerCore
from simulation.mutations.base import mutation, replace, rewrite, rewriting

__all__: list[str] = []


@mutation("G4", "an owner begins when the authority has accepted it")
def served_unaccepted() -> None:
    """An owner begins as soon as it has read its journal."""
    accept = "return [AcceptSequencer(config.incarnation, config.keys, config.sequencer)"
    rewrite(OwnerCore, accept + "]", f"{accept}, *self._on_accepted(Accepted({MIN_TIMESTAMP}))]")


@mutation(
    "G4",
    "the authority takes reports only of the owner that it accepted",
    seeds=20,
    test="tests/authority/test_intervals.py::test_a_zombies_report_is_refused_once_another_is_accepted",
    why="the coordinator notifies an owner of its successor, too: both report for moments only",
)
def hearsay_of_predecessors() -> None:
    """The authority also accepts reports of an older owner."""
    rewrite(Group, " or state.sequencer != report.sequencer", "")


@mutation(
    "G4",
    "the authority takes reports by columns only of the owner that it accepted",
    seeds=0,
    test="tests/authority/test_report_columns.py::test_a_zombie_among_many_is_refused_alone",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
def hearsay_by_columns() -> None:
    """The authority also accepts reports of an older owner if they come by columns."""
    rewrite(KeyedGroup.report_columns, " or state.sequencer != sequencer", "")


@mutation(
    "G4",
    "a report by columns is of exactly the accepted interval",
    seeds=0,
    test="tests/authority/test_report_columns.py::test_an_interval_that_was_cut_is_refused",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
def cut_intervals_by_columns() -> None:
    """The authority looks at the first key of an interval alone."""
    rewrite(KeyedGroup.report_columns, ' or (state.member.end or b"") != end', "")


@mutation(
    "G8",
    "reports go by columns only to an authority that has stated that it reads them",
    seeds=0,
    test="tests/authority/test_report_columns.py::test_an_older_authority_gets_no_columns",
    why="all authorities of a simulated cluster are of one version",
)
def columns_remembered() -> None:
    """A reporter remembers for its next call that the authority reads columns."""
    rewrite(ReportStream, "self._by_columns = False  # a stream", "# a stream")


@mutation(
    "G13",
    "a request of more reports than an authority takes at once is refused before they are read",
    seeds=0,
    test="tests/authority/test_report_columns.py::test_a_request_of_too_many_reports_is_refused",
    why="reporters send a tenth of it",
)
def reports_uncounted() -> None:
    """The authority reads a request of any number of reports."""
    rewrite(ReportingServicer, "check_count(request)", "pass")


@mutation(
    "G4",
    "the authority accepts no sequencer below one that holds the keys",
    seeds=15,
    test="tests/authority/test_intervals.py::test_an_acceptance_overlapping_a_larger_sequencer_is_refused",
    why="an older owner that asks so late is refused by the fence at its first append",
)
def older_owners_accepted() -> None:
    """The authority accepts every request, with any sequencer."""
    rewrite(KeyedGroup.accept, "if largest.sequencer >= sequencer:", "if False:")


@mutation("G7", "the authority lets out what is in its journal, and nothing else")
def published_unjournaled() -> None:
    """The authority answers acceptances and broadcasts values while their append is in flight."""
    last: dict[int, asyncio.Task[None]] = {}

    def make(append: Any) -> Any:
        async def behind(self: Any, before: Any, entry: Append) -> None:
            if before is not None:
                await before
            await append(self, entry)

        async def at_once(self: JournalWriter, entry: Append) -> None:
            last[id(self)] = asyncio.create_task(behind(self, last.get(id(self)), entry))

        return at_once

    replace(JournalWriter, "append", make)


@mutation("G7", "a computation's watermark is the minimum over all of its intervals")
def furthest_interval() -> None:
    """The authority broadcasts the largest value of all intervals."""
    furthest = "max(state.watermark for state in self._map.values())"
    rewrite(KeyedGroup.smallest, "least = self._minimum.least()", f"least = {furthest}")


rewriting(
    "raised-members-unread",
    "G8",
    "a group's minimum is read again after its smallest member rises",
    SlotMinimum,
    "before == smallest or ",
    "",
)

rewriting(
    "lowered-members-unread",
    "G7",
    "a group's minimum is read again after a member falls below it",
    SlotMinimum,
    " or watermark < smallest",
    "",
    seeds=0,
    test="tests/authority/test_minimum.py::test_the_minimum_is_that_of_all_members",
    why="a member seldom falls: it joins at the smallest value of the keys that it takes",
)

rewriting(
    "rows-of-blocks-unread",
    "G7",
    "the minimum of a large group is that of all of its blocks",
    SlotMinimum,
    "changed.add(block // _BLOCK)",
    "changed.add(0)",
    seeds=0,
    test="tests/authority/test_minimum.py::test_the_minimum_of_many_members_is_exact",
    why="simulated groups have one row of blocks",
)


rewriting(
    "shared-values-assigned",
    "G7",
    "the members of a base that is being written are those of one commit",
    RangeMap,
    "if self._are_values_shared:",
    "if False:",
    seeds=0,
    test="tests/model/test_range_map.py::test_a_list_of_values_stays_as_it_was",
    why="in a simulated run few intervals move while a base is written",
)


@mutation("G7", "a stream's watermark waits for every process that is expected")
def unexpected_injectors() -> None:
    """The minimum does not wait for processes that have not registered."""
    rewrite(InjectorGroup, "not self.expected <= self._states.keys()", "False")


@mutation(
    "G8",
    "a process that is idle leaves the minimum",
    seeds=0,
    test="tests/authority/test_injectors.py::test_an_idle_process_leaves_the_minimum",
    why="simulated sources are idle for seconds: what waits for them goes on when they do",
)
def idle_ones_counted() -> None:
    """The minimum waits for what a process had reached when it became idle."""
    rewrite(InjectorGroup, "self._minimum.set(state.slot, MAX_TIMESTAMP)", "pass")


@mutation("G7", "a shard's new owner starts from the base that its journal names")
def lost_bases() -> None:
    """A new owner ignores the base, and reads only the entries above it."""
    replace(Registry, "load", lambda _: lambda self, parts: None)
