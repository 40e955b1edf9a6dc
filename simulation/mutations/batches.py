"""Mutations of hooks that get many records: a failing call leaves nothing, and loses nothing (sections 4.1, 4.2)."""

from __future__ import annotations

from typing import Final

from millwheel.worker.interval.hook_meter import HookTime
from millwheel.worker.interval.hooks.batch_running import BatchRunner
from millwheel.worker.interval.hooks.blocked_keys import BlockedKeys
from simulation.mutations.base import rewriting

__all__: list[str] = []

_TESTS: Final = "tests/worker/interval/test_batches.py::test_"
_FEW: Final = "a test shows it by itself, in seconds; seeds were not tried"

rewriting(
    "failing-batches-not-undone",
    "G1",
    "a call for many records that raises leaves no effect",
    BatchRunner,
    "self._runner.close(key)",
    "pass",
    seeds=0,
    test=_TESTS + "a_record_that_fails_is_given_up_alone",
    why=_FEW,
)

rewriting(
    "work-before-a-batch-kept",
    "G1",
    "what a key did before a call that raises is undone with it",
    BatchRunner,
    "self._outcomes.undo_together(of_key)",
    "fresh_too = gathered.fresh.update(of_key)",
    seeds=0,
    test=_TESTS + "work_before_a_failing_batch_is_undone_and_runs_again",
    why=_FEW,
)

rewriting(
    "work-before-a-batch-lost",
    "G1",
    "what is undone with a call for many records runs again",
    BlockedKeys,
    "before + items",
    "items",
    seeds=0,
    test=_TESTS + "work_before_a_failing_batch_is_undone_and_runs_again",
    why=_FEW,
)

rewriting(
    "batches-in-halves-of-records",
    "G1",
    "a record is judged when it fails with nothing of other keys",
    BatchRunner,
    "if len(keys) == 1:",
    "if len(keys) <= 3:",
    seeds=0,
    test=_TESTS + "a_record_that_fails_is_given_up_alone",
    why=_FEW,
)

rewriting(
    "late-records-before-a-batch",
    "G15",
    "a late record is diverted behind the earlier records of its key",
    BatchRunner,
    "if receipt.delivery.keys[index] in gathered.contexts:",
    "if False:",
    seeds=0,
    test=_TESTS + "a_late_record_is_diverted_behind_earlier_ones",
    why=_FEW,
)

rewriting(
    "rows-at-the-time-of-the-first",
    "G7",
    "what a record of a batch causes is not before this record",
    BatchRunner,
    "stamp = rows.keys[row], rows.timestamps[row]",
    "stamp = rows.keys[row], rows.timestamps[0]",
    seeds=0,
    test="tests/sdk/batches/test_batches.py::test_no_production_is_before_its_record",
    why=_FEW,
)

rewriting(
    "costly-calls-for-one-record",
    "G8",
    "a call gets more records where these take hardly longer",
    HookTime.many,
    "min(2 * self.least, most)",
    "1",
    seeds=0,
    test=_TESTS + "batches_grow_where_a_call_costs_more_than_its_records",
    why=_FEW,
)

rewriting(
    "costly-records-get-more-time",
    "G8",
    "a call gets no more records where each takes its time",
    HookTime.many,
    "seconds <= _HARDLY_LONGER * self.shortest",
    "True",
    seeds=0,
    test=_TESTS + "batches_grow_where_a_call_costs_more_than_its_records",
    why=_FEW,
)
