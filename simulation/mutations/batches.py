"""Mutations of hooks that get many records: a failing call leaves nothing, and loses nothing (sections 4.1, 4.2)."""

from __future__ import annotations

from typing import Final

from millwheel.sdk.batches.context import BatchContext
from millwheel.worker.interval.call_time import CallTime, CallTrial
from millwheel.worker.interval.hooks.batch_running import BatchRunner
from millwheel.worker.interval.hooks.blocked_keys import BlockedKeys
from millwheel.worker.interval.hooks.runner import Runner
from simulation.mutations.base import rewriting

__all__: list[str] = []

_TESTS: Final = "tests/worker/interval/test_batches.py::test_"
_SIZES: Final = "tests/worker/interval/test_batch_sizes.py::test_"
_READS: Final = "tests/worker/interval/test_read_time.py::test_"
_SDK: Final = "tests/sdk/batches/test_batches.py::test_"
_FEW: Final = "a test shows it by itself, in seconds; seeds were not tried"

rewriting(
    "failing-batches-not-undone",
    "G1",
    "a call for many records that raises leaves no effect",
    BlockedKeys,
    "for key in keys:",
    "for key in ():",
    seeds=0,
    test=_TESTS + "a_record_that_fails_is_given_up_alone",
    why=_FEW,
)

rewriting(
    "work-before-a-batch-lost",
    "G1",
    "what is undone with a call for many records runs again",
    BlockedKeys,
    "again = [*self._take_consumed(keys), *records]",
    "again = [*self._take_consumed(keys)][:0] + [*records]",
    seeds=0,
    test=_TESTS + "work_before_a_failing_batch_is_undone_and_runs_again",
    why=_FEW,
)

rewriting(
    "several-records-judged",
    "G1",
    "a record is judged when it fails with nothing of other keys",
    BatchRunner,
    "if len(gathered.rows.keys) > 1:",
    "if len(gathered.rows.keys) > 3:",
    seeds=0,
    test=_TESTS + "a_record_that_fails_is_given_up_alone",
    why=_FEW,
)

rewriting(
    "calls-in-trial-share-a-commit",
    "G8",
    "after a call that failed, each one gets a commit of its own",
    Runner,
    "self._limit = min(self._limit, batch.records)",
    "pass",
    seeds=0,
    test=_SDK + "no_production_is_before_its_record",
    why=_FEW,
)

rewriting(
    "commits-without-bound-by-a-batch",
    "G13",
    "a call that fills a commit many times is undone",
    BatchRunner,
    "if scope.produced_bytes > _OVERFULL * self._setup.settings.batch_bytes:",
    "if False:",
    seeds=0,
    test=_SIZES + "a_commit_of_a_batch_is_bounded_in_bytes",
    why=_FEW,
)

rewriting(
    "productions-in-the-order-of-calls",
    "G15",
    "what a key produces in a batch has the order of its rows",
    BatchContext,
    "made[before:] = sorted(made[before:], key=_CAUSE_ID)",
    "pass",
    seeds=0,
    test=_SDK + "what_a_key_produces_has_the_order_of_its_rows",
    why=_FEW,
)

rewriting(
    "clock-moves-rows",
    "G7",
    "a row's context stays as it is",
    BatchContext,
    "self._first.now",
    "self.at(0).now",
    seeds=0,
    test=_SDK + "a_context_of_a_row_stays_as_it_is",
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
    "whole-deliveries-past-blocked-keys",
    "G15",
    "a delivery whose keys may be blocked is gathered record by record",
    BatchRunner,
    "if self._blocked.keys or self._clocks.bounded or",
    "if self._clocks.bounded or",
    seeds=0,
    test=_TESTS + "a_delivery_waits_behind_blocked_keys",
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
    test=_SDK + "no_production_is_before_its_record",
    why=_FEW,
)

rewriting(
    "calls-in-trial-for-good",
    "G8",
    "deliveries share a commit again when what a failed call has undone has run",
    CallTrial,
    "if self._left <= 0:",
    "if False:",
    seeds=0,
    test=_SIZES + "deliveries_share_a_commit_again_after_a_failure",
    why=_FEW,
)

rewriting(
    "costly-calls-for-few-records",
    "G8",
    "a model that takes long by itself gets some records all the same",
    CallTime,
    "fewest = _USUAL if seconds <= _LONG else _FEWEST",
    "fewest = _FEWEST",
    seeds=0,
    test=_SIZES + "batches_grow_where_a_call_costs_more_than_its_records",
    why=_FEW,
)

rewriting(
    "long-calls-again",
    "G8",
    "a call that takes too long makes the next ones small",
    CallTime,
    "if seconds > limit:",
    "if False:",
    seeds=0,
    test=_SIZES + "costly_records_behind_cheap_ones_take_long_once",
    why=_FEW,
)

rewriting(
    "reads-without-their-time",
    "G8",
    "a call is read until its time is over: functions before its hook may take long",
    BatchRunner,
    "if len(passed) >= most or clock() > ends:",
    "if len(passed) >= most:",
    seeds=0,
    test=_READS + "slow_functions_behind_what_was_dropped_end_their_step",
    why=_FEW,
)

rewriting(
    "failed-readings-pass",
    "G1",
    "what is read for a call ends before a record that cannot be read",
    BatchRunner,
    "return indexes[:place], passed",
    "return indexes[: place + 1], passed",
    seeds=0,
    test=_READS + "calls_grow_between_records_that_cannot_be_read",
    why=_FEW,
)

rewriting(
    "reads-bounded-as-calls",
    "G8",
    "what passes a filter bounds a call, and not what is read for it",
    BatchRunner,
    "part = run[start : start + self._program.computation.max_records]",
    "part = run[start : start + self._most(budget - scope.produced_bytes)]",
    seeds=0,
    test=_READS + "calls_grow_behind_a_filter",
    why=_FEW,
)

rewriting(
    "whole-reads-to-the-hook",
    "G8",
    "what suddenly passes a filter comes by calls that grow",
    BatchRunner,
    "part, self._most(budget - scope.produced_bytes))",
    "part, len(part))",
    seeds=0,
    test=_READS + "what_suddenly_passes_a_filter_comes_by_calls_that_grow",
    why=_FEW,
)

rewriting(
    "records-read-for-each-call",
    "G8",
    "what a call does not take is not read for it",
    BatchRunner,
    "if len(passed) >= most or clock() > ends:",
    "if clock() > ends:",
    seeds=0,
    test=_READS + "what_a_call_does_not_take_is_not_read_for_it",
    why=_FEW,
)

rewriting(
    "slow-readings-without-end",
    "G8",
    "records that are read one by one end a step when they have taken the time of a call",
    BatchRunner,
    "elif reads and clock() > self._ends:",
    "elif False:",
    seeds=0,
    test=_READS + "slow_functions_of_keys_without_rows_end_their_step",
    why=_FEW,
)

rewriting(
    "calls-of-one-step-without-end",
    "G8",
    "a step ends when calls for many records took the time of a batch",
    Runner.out_of_time,
    "self._setup.meter.clock() > self._out_of_time_at",
    "False",
    seeds=0,
    test=_SIZES + "many_calls_of_one_delivery_share_its_steps",
    why=_FEW,
)

rewriting(
    "large-productions-not-forgotten",
    "G13",
    "a large production is forgotten after some calls, so calls get many records again",
    BatchRunner,
    "self._row_bytes * _FORGOTTEN",
    "self._row_bytes",
    seeds=0,
    test=_SIZES + "one_large_production_is_forgotten",
    why=_FEW,
)
