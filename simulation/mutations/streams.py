"""Streams have owners: who may write a stream, and what a short name means (section 4.2)."""

from __future__ import annotations

from millwheel.client.injector import Injector
from millwheel.master import validation
from millwheel.master.stream_resolution import resolve_stream
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY = "the simulator's topologies are correct, and its short names are unique"

rewriting(
    "first-of-the-candidates",
    "G1",
    "a short name that several topologies have is refused",
    resolve_stream,
    "if len(found) > 1:",
    "if False:",
    seeds=0,
    test="tests/master/test_stream_resolution.py::test_an_ambiguous_short_name_is_refused_with_candidates",
    why=_WHY,
)

rewriting(
    "strangers-write",
    "G1",
    "only its own topology's computations write a stream",
    validation,
    "if owner_of(output) != spec.name:",
    "if False:",
    seeds=0,
    test="tests/master/test_submit.py::test_only_its_own_topology_declares_and_writes_a_stream",
    why=_WHY,
)

rewriting(
    "strangers-declare",
    "G1",
    "only its own topology declares a source",
    validation,
    "elif not own and not stream.external:",
    "elif False:",
    seeds=0,
    test="tests/master/test_submit.py::test_only_its_own_topology_declares_and_writes_a_stream",
    why=_WHY,
)

rewriting(
    "injected-under-short-names",
    "G1",
    "the ids of records do not depend on whether an injector names its stream in short or in full",
    Injector.open,
    "if stream != self.stream:",
    "if False:",
    seeds=0,
    test="tests/injectors/test_with_server.py::test_an_injector_knows_its_stream_by_the_full_name",
    why="masters, authority and workers refuse short names, so no record would be lost in a run",
)
