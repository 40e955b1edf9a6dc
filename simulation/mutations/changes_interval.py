"""Mutations of comparisons, extrema and conditions in an interval's core (sections 4.4 to 4.6, 6.1, 6.2)."""

from __future__ import annotations

from millwheel.model.outbound import UnackedBatches
from millwheel.sdk import error_texts
from millwheel.worker.admission import DeliveryAdmission
from millwheel.worker.interval import key_bounds
from millwheel.worker.interval.blocked_key_table import BlockedKeyTable
from millwheel.worker.interval.commits.checkpoint import StateRows
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.interval.commits.weak_commits import WeakCommits
from millwheel.worker.interval.core import IntervalCore
from millwheel.worker.interval.hooks.blocked_keys import BlockedKeys
from millwheel.worker.interval.hooks.firing import Firing
from millwheel.worker.interval.hooks.runner import HookBatch, Runner
from millwheel.worker.interval.hooks.scheduler import KeyScheduler
from millwheel.worker.interval.intake import IntervalIntake
from millwheel.worker.interval.key_bounds import KeyWatermarkBounds
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.interval.pump import IntervalPump
from millwheel.worker.interval.timers import IntervalTimers
from simulation.mutations.base import rewriting

__all__: list[str] = []

rewriting(
    "output-lowered-at-opening",
    "G7",
    "an owner reports no less than was broadcast before",
    IntervalCore,
    "self.state.output.rise(watermark)",
    "None",
    seeds=0,
    test="tests/worker/interval/test_weak_line.py::test_an_owner_reports_no_less_than_was_broadcast_before_it",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "entries-of-any-size",
    "G13",
    "a batch joins a waiting weak commit only where one entry holds both",
    WeakCommits.join,
    "sealed.size + size > MAX_ENTRY_BYTES",
    "sealed.size + size < 0",
    seeds=0,
    test="tests/worker/interval/test_weak_line.py::test_what_does_not_fit_the_open_commit_waits_for_the_queue",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "holds-passed-over",
    "G7",
    "a weak commit that only sets holds is journaled",
    WeakCommits.keeps_nothing,
    "entry.holds or ",
    "",
    seeds=0,
    test="tests/worker/interval/test_weak_line.py::test_a_hold_that_is_all_of_a_weak_commit_survives_its_owner",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "cleared-passed-over",
    "G6",
    "a weak commit that only clears timers is journaled",
    WeakCommits.keeps_nothing,
    " or entry.timers_cleared",
    "",
    seeds=0,
    test="tests/worker/interval/test_weak_line.py::test_a_firing_that_is_all_of_a_weak_commit_is_not_repeated",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "watermarks-skip-set-back-timers",
    "G6",
    "a timer without a deadline runs the passes, though the clock was set back",
    IntervalPump,
    " or processing != self._timer_due_at",
    "",
    seeds=0,
    test="tests/worker/interval/test_skipped_passes.py::test_a_timer_that_waited_for_room_survives_a_clock_set_back",
    why="seeds were not tried: the outbox is full, and the clock is set back by more than ten seconds",
)

rewriting(
    "captured-unstill",
    "G12",
    "a base is captured only while no sealed commit waits",
    CommitPipeline.appended,
    "if not self.weak_commits.queue and",
    "if",
    seeds=0,
    test="tests/worker/interval/test_weak_line.py::test_rows_are_captured_when_nothing_is_queued_or_in_flight",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "progress-of-commits-alone",
    "G8",
    "records that are done hold no watermark beside one that fails after their commit",
    IntervalPump,
    "out += (progress := commits.report_progress())",
    "progress = False",
    seeds=0,
    test="tests/worker/interval/test_keys_that_wait.py::test_progress_is_reported_if_the_last_record_fails_later",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "tokens-used-again",
    "G15",
    "each attempt of a batch has a token of its own",
    Outbox.take_ready,
    "batch.used or batch.token <= last",
    "batch.token <= last",
    seeds=20,
    test="tests/worker/interval/test_productions.py::test_records_resent_after_a_refusal_have_their_own_numbers",
    why="a late answer must come to an attempt that was refused for want of room",
)

rewriting(
    "late-answers-restore",
    "G1",
    "what was ACKed once stays ACKed, also if a later answer leaves it out",
    UnackedBatches.acknowledge,
    "waiting.intersection(left)",
    "set(left)",
    seeds=0,
    test="tests/worker/interval/test_productions.py::test_a_mark_never_passes_unacked_records_in_any_grouping",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "flush-taken-for-newest",
    "G12",
    "an acknowledged flush speaks for the commit that it was captured at",
    StateRows.settle,
    "max(self.upto, self._covers)",
    "self._journal.committed",
    seeds=0,
    test="tests/worker/interval/test_rows.py::test_rows_changed_during_a_write_are_next_if_a_base_waits",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "slice-taken-for-all",
    "G12",
    "a slice of rows does not speak for those that follow",
    StateRows.capture,
    "    if self.left:\n        return []\n    rows",
    "    rows",
    seeds=0,
    test="tests/worker/interval/test_rows.py::test_slices_of_rows_count_once_the_last_is_written",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "results-dropped",
    "G1",
    "a hook that returned something has not done its work",
    Runner,
    "self._take_odd(context, RecordItem(receipt, index), outcome, failure)",
    "self._take_odd(context, RecordItem(receipt, index), outcome, failure) if failure else consume(index)",
    seeds=0,
    test="tests/worker/interval/test_hook_errors.py"
    "::test_a_hook_that_returns_a_value_fails_and_nothing_is_acked[record-coroutine]",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "key_bounds-one-key-further",
    "G14",
    "a watermark bound of a merged range ends before the range's end",
    KeyWatermarkBounds.bound_of,
    "key < end",
    "key <= end",
    seeds=0,
    test="tests/worker/interval/test_key_watermark_bounds.py::test_a_keys_bound_is_the_largest_of_its_ranges",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "key_bounds-cut-short",
    "G14",
    "neighbouring watermark bounds are joined up to the larger end",
    key_bounds,
    "max(last, end)",
    "min(last, end)",
    seeds=0,
    test="tests/worker/interval/test_key_watermark_bounds.py::test_bounds_do_not_grow_with_splits_and_merges",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "unparked-in-reverse",
    "G15",
    "records that waited return to the queue in their order",
    IntervalIntake.requeue,
    "for queued, _ in reversed(pieces)",
    "for queued, _ in pieces",
    seeds=0,
    test="tests/worker/interval/test_keys_that_wait.py::test_records_behind_a_failed_one_wait_also_during_its_retry",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "put-back-in-reverse",
    "G15",
    "records of an undone batch keep their order",
    BlockedKeyTable.put_back,
    "reversed(items)",
    "items",
    seeds=0,
    test="tests/worker/interval/test_undone.py::test_records_undone_beside_a_failure_rerun_without_an_event",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "timers-past-their-time",
    "G6",
    "a timer at exactly the watermark is due",
    Firing,
    "first <= upto and",
    "first < upto and",
    seeds=0,
    test="tests/worker/interval/test_holds.py::test_timers_at_the_end_of_time_fire_when_the_sources_finish",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "batch-timers-overtaken",
    "G5",
    "a timer waits for an earlier one that a hook of the same batch has set",
    Firing.may_fire,
    "name == tag or (setting is not None and setting.at < at)",
    "name == tag",
    seeds=0,
    test="tests/worker/interval/test_order.py::test_a_key_whose_timers_wait_for_a_commit_keeps_its_records",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "late-at-the-watermark",
    "G14",
    "a record at exactly the watermark is not late",
    Runner,
    "late = stamp < (",
    "late = stamp <= (",
    seeds=0,
    test="tests/worker/interval/test_scenarios.py::test_late_records_are_flagged_or_dropped_or_diverted",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "far-limit-ignored",
    "G5",
    "no timer fires past the first one that is in the store",
    IntervalTimers.due_until,
    "limit = min(first, limit)",
    "limit = max(first, limit)",
    seeds=0,
    test="tests/worker/interval/test_far_reading.py::test_a_due_stored_timer_holds_the_watermark_until_it_fires",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "one-delivery-an-event",
    "G8",
    "a delivery of which nothing could be run does not use up its event",
    Runner.run_queue,
    "if event_follows and not ahead_allowed",
    "if not ahead_allowed",
    seeds=0,
    test="tests/worker/interval/test_keys_that_wait.py::test_many_deliveries_of_a_blocked_key_take_no_event_each",
    why="other events come all the time in a simulated run: each goes on by one delivery",
)

rewriting(
    "timers-into-a-full-outbox",
    "G13",
    "while the outbox is full, timers that do not hold the watermark wait for its ACKs",
    Firing.run_all_due,
    "if outbox_full and",
    "if False and",
    seeds=0,
    test="tests/worker/interval/test_full_outbox.py::test_timers_due_together_produce_only_what_the_outbox_takes",
    why="the simulator does not weigh outboxes",
)

rewriting(
    "holding-timers-wait",
    "G8",
    "a timer that holds the watermark fires into a full outbox",
    Firing.run_all_due,
    "min(upto, pending - 1)",
    "-(1 << 62)",
    seeds=0,
    test="tests/worker/interval/test_full_outbox.py::test_a_timer_holding_the_watermark_fires_with_a_full_outbox",
    why="a consumer must be full for good, and its outboxes too",
)

rewriting(
    "records-before-waiting-timers",
    "G5",
    "a record that holds the watermark runs behind the due timers of its key, though timers wait",
    KeyScheduler.run,
    "self._firing.run_due_of if outbox_full else None",
    "None",
    seeds=0,
    test="tests/worker/interval/test_full_outbox.py::test_a_record_that_holds_the_watermark_runs_after_due_timers",
    why="the outbox must be full when a late record of a key with a due timer comes",
)

rewriting(
    "holds-wait-for-acks",
    "G8",
    "a timer that may end a hold below all productions fires into a full outbox",
    Firing.run_all_due,
    "waits = pending <= self._holds.min_stated()",
    "waits = True",
    seeds=0,
    test="tests/worker/interval/test_full_outbox.py::test_a_timer_holding_below_all_productions_fires_when_full",
    why="a consumer must be full for good, and a hold of its own be below what is produced",
)

rewriting(
    "passing-holds-counted",
    "G13",
    "holds that no hook can end have no timer fire into a full outbox",
    Firing.run_all_due,
    "self._holds.min_stated()",
    "self._holds.min()",
    seeds=0,
    test="tests/worker/interval/test_full_outbox.py::test_a_failing_timer_lets_no_other_fire_into_a_full_outbox",
    why="the simulator does not weigh outboxes",
)

rewriting(
    "watermarks-skip-blocked-keys",
    "G8",
    "a watermark runs all passes while a key is blocked, because its retry may be due",
    IntervalPump,
    "state.blocked.keys or ",
    "",
    seeds=0,
    test="tests/worker/interval/test_skipped_passes.py::test_a_watermark_brings_on_what_waits_for_it",
    why="the Tick at the retry's time comes soon in a simulated run",
)

rewriting(
    "watermarks-skip-due-timers",
    "G8",
    "a watermark that has reached a timer runs all passes",
    IntervalPump,
    "event <= clocks.watermark",
    "event < clocks.watermark - 1_000",
    seeds=100,
    test="tests/worker/interval/test_skipped_passes.py::test_a_watermark_brings_on_what_waits_for_it",
    why="another event may come before the next check",
)

rewriting(
    "batches-left-after-an-append",
    "G8",
    "a batch that ran while an append was in flight is committed when that ends",
    IntervalPump,
    "if batch or batch.hold is not None or",
    "if batch.hold is not None or",
    seeds=20,
    test="tests/worker/interval/test_skipped_passes.py::test_a_batch_behind_an_append_is_committed_after_it",
    why="in most simulated runs other records come at once",
)

rewriting(
    "duplicates-counted-later",
    "G1",
    "duplicates that come while an append is in flight are counted when that ends",
    IntervalPump,
    " or self._state.ids.duplicates:",
    ":",
    seeds=0,
    test="tests/worker/interval/test_skipped_passes.py::test_duplicates_behind_an_append_are_counted_after_it",
    why="the simulator compares what is counted of records, and not the number of duplicates",
)

rewriting(
    "acks-of-stragglers-wait",
    "G8",
    "an ACK of a stored weak production is journaled at once if no append is in flight",
    IntervalPump,
    "not self._commits.weak_commits.acked and ",
    "",
    seeds=100,
    test="tests/worker/interval/test_skipped_passes.py::test_an_ack_of_a_straggler_is_journaled_at_once",
    why="the next commit comes soon in a simulated run",
)

rewriting(
    "over-without-the-watermark",
    "G8",
    "the input watermark goes on when a weak commit is over that keeps nothing",
    IntervalPump,
    "if settled or (",
    "if (",
    seeds=0,
    test="tests/worker/interval/test_weak_line.py::test_the_watermark_moves_after_a_commit_that_stores_nothing",
    why="other events come all the time in a simulated run",
)

rewriting(
    "committed-ones-reported-late",
    "G8",
    "a sender learns at once which records of a delivery were committed before",
    DeliveryAdmission,
    "if left and committed:",
    "if left and committed < 0:",
    seeds=0,
    test="tests/worker/interval/test_ordered_arrivals.py::test_a_sender_is_notified_at_once_of_an_earlier_commit",
    why="a consumer must be full for good, and a former owner have committed half of a delivery",
)

rewriting(
    "letters-key-raises-through",
    "G8",
    "a dead letter that has no key at its consumer blocks its key alone",
    BlockedKeys,
    "except UnkeyedLetterError as refused:",
    "except ZeroDivisionError as refused:",
    seeds=0,
    test="tests/worker/interval/test_failing_keys.py::test_a_dead_letter_without_a_consumers_key_blocks_its_key",
    why="the topologies of simulated runs are keyed by fields that every record has",
)

rewriting(
    "given-up-and-kept",
    "G1",
    "what waited for a timer that is given up is forgotten",
    BlockedKeys,
    "if is_cached:",
    "if False:",
    seeds=0,
    test="tests/operators/test_lost_timers.py::test_what_was_given_up_is_forgotten",
    why="no operator of the simulated runs has a timer that is given up",
)

rewriting(
    "given-up-for-anothers-key",
    "G1",
    "work is not given up for another topology's key function",
    BlockedKeys,
    "others_key_problem(error)",
    '""',
    seeds=0,
    test="tests/worker/interval/test_failing_keys.py::test_another_topologys_key_function_gives_up_no_work",
    why="the topologies of simulated runs are keyed by fields that every record has",
)

rewriting(
    "wordless-errors-raise-through",
    "G8",
    "an error whose text cannot be had is a failure like any other",
    error_texts.bare_message,
    "except BaseException as raised:",
    "except ZeroDivisionError as raised:",
    seeds=0,
    test="tests/worker/interval/test_hook_errors.py::test_an_error_without_text_is_a_failure_like_any_other",
    why="hooks of simulated runs raise errors that have a text",
)

rewriting(
    "failed-hooks-keep-their-cell",
    "G1",
    "an asynchronous hook that failed and goes on leaves no trace",
    BlockedKeys,
    "context._cell = StateCell(context._cell.encoded)",
    "pass",
    seeds=0,
    test="tests/testing/test_failures.py::test_a_hook_that_has_timed_out_and_goes_on_leaves_no_trace",
    why="hooks of simulated runs end when they fail",
)

rewriting(
    "empty-lists-stay",
    "G13",
    "a batch drops the list of a delivery of which nothing has run",
    HookBatch.consumed_of,
    "if not indexes:",
    "if False:",
    seeds=0,
    test="tests/worker/interval/test_bounds.py::test_hooks_that_all_fail_leave_nothing_behind",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "failures-of-any-number",
    "G8",
    "a step ends when so many hooks have failed in it",
    Runner.exhausted,
    "self.failures >= MAX_FAILED_HOOKS",
    "False",
    seeds=0,
    test="tests/worker/interval/test_bounds.py::test_many_failing_keys_are_tried_in_several_steps",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "interrupted-steps-not-continued",
    "G8",
    "what an interrupted step has left runs at once, without another event",
    KeyScheduler.next_retry,
    "if self._interrupted:",
    "if False:",
    seeds=0,
    test="tests/worker/interval/test_bounds.py::test_a_queue_of_failing_records_takes_several_steps",
    why="seeds were not tried: the test shows it by itself, in seconds",
)
