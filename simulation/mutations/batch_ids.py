"""Mutations of the ids of batches in bases: they are written once, and named until the batch is completed (6.1.1)."""

from __future__ import annotations

from typing import Final

from millwheel.worker.dedup.batches import BatchQuery, BatchSource
from millwheel.worker.journal_base import JournalBase
from simulation.mutations.base import rewriting

__all__: list[str] = []

_TESTS: Final = "tests/worker/dedup/test_batch_parts.py::test_"
_ALONE: Final = "a test shows it by itself, in seconds; seeds were not tried"

rewriting(
    "written-batch-ids-not-named",
    "G1",
    "a base names the ids of batches that an earlier base has written",
    JournalBase,
    "{*parts, *kept, *segments, *batch_parts}",
    "{*parts, *kept, *segments}",
)

rewriting(
    "batch-parts-of-one-number",
    "G1",
    "each part with ids of a batch has a number of its own in a base",
    JournalBase,
    'one.part = PartId(f"{DEDUP_PART}/{number}"',
    'one.part = PartId(f"{DEDUP_PART}/{FIRST_BATCH_PART}"',
    seeds=0,
    test=_TESTS + "a_base_names_the_ids_that_an_earlier_one_has_written",
    why=_ALONE,
)

rewriting(
    "restored-batch-ids-not-named",
    "G1",
    "a successor names the ids of batches that its predecessor has written",
    BatchQuery,
    "source.stored.append(BatchPart(stored))",
    "pass",
    seeds=0,
    test=_TESTS + "a_successor_names_the_parts_of_its_predecessor",
    why="24 seeds were tried and showed nothing; the test shows it in seconds",
)

rewriting(
    "inherited-batch-ids-sorted",
    "G13",
    "a child takes its parents' ids of a batch over without a sort",
    BatchQuery,
    "sorted(source.seen) if source.stored else source.unstored",
    "sorted(source.seen)",
    seeds=0,
    test=_TESTS + "a_child_has_the_ids_in_the_order_of_its_parents",
    why=_ALONE,
)

rewriting(
    "parts-of-completed-batches-kept",
    "G13",
    "the parts with ids of a batch are deleted when the batch is completed",
    BatchSource,
    "self.stored.clear()",
    "pass",
    seeds=0,
    test=_TESTS + "the_parts_of_a_completed_batch_are_deleted",
    why=_ALONE,
)
