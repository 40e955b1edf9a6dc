"""Mutations of sinks that take their records by delivery: what their batches have (sections 4.1, 4.3)."""

from __future__ import annotations

from millwheel.connectors.collecting import ShardRecords, ShardValues
from millwheel.sdk import codecs, compiled
from millwheel.sdk.batches.records import RecordBatch
from millwheel.streams.steps import drops_only
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY = "one simulated topology of ten has connectors: the test shows it by itself, in seconds"
_DELIVERIES = "tests/connectors/test_sink_deliveries.py::test_"

rewriting(
    "deliveries-held-at-their-first",
    "G7",
    "the records of a delivery hold the watermark for their batch at the oldest of them",
    ShardValues,
    "oldest = min(times)",
    "oldest = times[0]",
    seeds=0,
    test=_DELIVERIES + "a_batch_is_held_at_the_oldest_of_a_delivery",
    why=_WHY,
)

rewriting(
    "batches-of-any-size",
    "G13",
    "the batches of a delivery are as large as those of single records",
    ShardRecords,
    "bisect_right(self._ends, self._ends[start] + room) - 1",
    "bisect_right(self._ends, self._ends[start] + room)",
    seeds=0,
    test=_DELIVERIES + "batches_are_those_of_single_records",
    why=_WHY,
)

rewriting(
    "damaged-values-in-batches",
    "G1",
    "a value is decoded before it is in a batch",
    RecordBatch,
    "values = self.values  # it raises",
    "values = self._values or []  # it raises",
    seeds=0,
    test=_DELIVERIES + "a_damaged_record_is_in_no_batch",
    why=_WHY,
)

rewriting(
    "encodings-of-another-reading",
    "G1",
    "a stream that is read in two ways has the values that each of them makes",
    compiled,
    " and len(readings) == 1\n",
    "\n",
    seeds=0,
    test=_DELIVERIES + "a_sink_gets_what_the_steps_make",
    why=_WHY,
)

rewriting(
    "defaults-made-with-each-write",
    "G1",
    "what a factory makes for a field that is missing is made once for a batch",
    codecs,
    "value_format is ValueFormat.MSGPACK and _is_repeatable(record_type)",
    "value_format is ValueFormat.MSGPACK",
    seeds=0,
    test=_DELIVERIES + "a_batch_that_comes_again_has_the_same_defaults",
    why=_WHY,
)

rewriting(
    "encodings-before-a-filter-changed-them",
    "G1",
    "the encoding of a value that a filter may change is made behind the filter",
    drops_only,
    " and not _may_change(step)",
    "",
    seeds=0,
    test=_DELIVERIES + "a_function_that_may_change_values_makes_others",
    why=_WHY,
)
