"""Updates: records, states and productions when the topology changes (sections 4.1, 4.4, 7.1)."""

from __future__ import annotations

from millwheel.master import record_compatibility, updating
from millwheel.master.topology_plans import TopologyPlanner
from millwheel.sdk import migration
from millwheel.streams import declaring
from millwheel.worker.process.destinations import CatalogRouting
from simulation.mutations.base import mutation, rewrite, rewriting

__all__: list[str] = []

_SEEDS = 300

rewriting(
    "removed_ones_dropped",
    "G1",
    "what a removed computation had produced is delivered",
    TopologyPlanner.update,
    "record.removed.add(spec=computation, incarnation=incarnation, switching=number)",
    "pass",
    seeds=20,
    test="tests/master/test_updating.py::test_a_removed_computation_delivers_and_leaves_the_watermark",
    why="a computation must be removed while its consumers are slow",
)


rewriting(
    "lambdas-all-alike",
    "G1",
    "an update notices another lambda as a key",
    updating,
    "was.code != now.code",
    "False",
    seeds=0,
    test="tests/streams/test_keys.py::test_an_update_notices_a_key_that_changes",
    why="the simulator's keys are functions with names",
)

rewriting(
    "spread-steps-ended",
    "G1",
    "no update ends spread= while the first phase has records",
    updating,
    ") is not (computation.implementation",
    ") < (computation.implementation",
    seeds=0,
    test="tests/windows/test_two_phase.py::test_no_update_begins_or_ends_to_spread_a_step",
    why="no simulated update changes spread=",
)


rewriting(
    "stream-types-by-name",
    "G1",
    "a stream's new type can read the records that were made before",
    record_compatibility.stream_difference,
    "_have_schemas(written, read)",
    "False",
    seeds=0,
    test="tests/testing/test_update.py::test_a_stream_keeps_a_type_that_reads_its_old_records",
    why="the simulator's updates change no type of a stream",
)

rewriting(
    "key-before-filter",
    "G1",
    "a filter runs before the key of a record is read",
    declaring,
    "not may_be_without_key(one.extractor, one.record_type)",
    "True",
    seeds=0,
    test="tests/streams/test_keys.py::test_no_key_is_read_from_a_record_that_a_filter_drops",
    why="the simulator's keys raise for no record",
)


@mutation(
    "G1",
    "migrate is given the version that a state was stored by",
    seeds=20,
    test="tests/sdk/test_migration.py::test_a_state_of_an_earlier_version_is_migrated_when_read",
    why="states must be read that two updates have passed by",
)
def migrated_as_the_first() -> None:
    """Every stored state is reported to be of version 1."""
    rewrite(migration.versioned, "state = migrate(found)", "state = migrate(StoredState(1, found.data))")


@mutation("G1", "productions are routed by the present version of the topology", seeds=_SEEDS)
def routed_as_at_first() -> None:
    """A worker resolves a stream's consumers once, and uses them for every later owner."""
    resolve = "self._catalog.consumers(stream)"
    known = 'vars(self).setdefault("first_consumers", {})'
    rewrite(
        CatalogRouting,
        f"consumers = {resolve}\n    extractors",
        f"consumers = {known}.setdefault(stream, {resolve})\n    extractors",
    )
