"""Topologies that are submitted again under their names: state of former incarnations is void (sections 4.1, 7.1)."""

from __future__ import annotations

from millwheel.client.subscription.log_link import LogLink
from millwheel.master.log_plans import LogPlanner
from millwheel.master.topology_plans import TopologyPlanner
from millwheel.worker.process.hosts import Hosts
from simulation.mutations.base import mutation, rewrite, rewriting

__all__: list[str] = []


@mutation(
    "G7",
    "a stream that comes back has none of its former injectors",
    seeds=10,
    test="tests/master/test_endings.py::test_a_stream_returns_once_its_old_injectors_are_forgotten",
    why="an injector that has finished must be waited for again before its former end is published",
)
def injectors_outlive_their_stream() -> None:
    """An injector that finished in a former incarnation of its stream counts as finished in the next one."""
    rewrite(TopologyPlanner, "for place in sorted(self._known.injectors) if place[0] in back", "for place in ()")


@mutation(
    "G7",
    "a stream that comes back has none of its former log",
    seeds=0,
    test="tests/master/test_endings.py::test_a_returning_stream_has_a_new_log_beside_the_old_one",
    why="a topology must come back while the authority is away: one seed of several hundred does that",
)
def logs_outlive_their_stream() -> None:
    """A stream that comes back continues the log of its former incarnation, if that log still exists."""
    rewrite(LogPlanner, "sorted(brought & self._known.logs.keys() - self._known.streams().keys())", "()")


rewriting(
    "former-log-found",
    "G7",
    "a worker takes no former log of a stream for the one that is asked for",
    Hosts.find_log,
    ' if incarnation in ("", one.owned.incarnation)',
    "",
    seeds=0,
    test="tests/worker/test_finding_logs.py::test_a_returned_stream_does_not_find_its_former_log",
    why="of the seeds from 1 to 6000 one shows it, 3925",
)

rewriting(
    "any-log-read",
    "G7",
    "a subscriber names the log that it means",
    LogLink,
    "request.start.stream, request.start.incarnation = self._stream, place.incarnation",
    "request.start.stream = self._stream",
    seeds=0,
    test="tests/worker/log/test_log_service.py::test_a_former_log_of_a_stream_is_not_shown_for_the_new_one",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
