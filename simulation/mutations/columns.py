"""Mutations of windows by columns: a pane has one place, and counts once (sections 4.2, 4.6, 6.2, 7.1)."""

from __future__ import annotations

from typing import Final

from millwheel.sdk.context import Context
from millwheel.sdk.scope import route_of_all
from millwheel.snapshots import restoring
from millwheel.worker.interval import entry
from millwheel.worker.interval.commits import result_runs
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.interval.commits.sealing import Sealer
from millwheel.worker.interval.commits.weak_commits import WeakCommits
from millwheel.worker.interval.hooks.blocked_keys import BlockedKeys
from millwheel.worker.interval.hooks.firing import Firing
from millwheel.worker.interval.hooks.pane_firing import PaneFiring
from millwheel.worker.interval.hooks.pane_gate import PaneGate
from millwheel.worker.interval.hooks.pane_moving import PaneMover
from millwheel.worker.interval.outbox import batch_division
from millwheel.worker.interval.panes import changes
from millwheel.worker.interval.panes.table import PaneTable, WindowPanes
from millwheel.worker.interval.pump import IntervalPump
from millwheel.worker.process.building import Builder
from millwheel.worker.process.destinations import CatalogRouting
from simulation.mutations.base import rewriting

__all__: list[str] = []

_CORE: Final = "tests/worker/interval/test_panes.py::test_"
_RESULTS: Final = "tests/worker/interval/test_result_columns.py::test_"
_READS: Final = "tests/worker/interval/test_read_columns.py::test_"
_KEYED: Final = "tests/worker/interval/test_keyed_results.py::test_"
_SCRIPTS: Final = "tests/windows/test_by_columns.py::test_"
_FEW: Final = "a test shows it by itself, in seconds; seeds were not tried"

rewriting(
    "panes-in-two-places",
    "G1",
    "a pane in the state of its key takes no record in the table",
    PaneGate,
    " and not self._in_state(key, start)",
    "",
)

rewriting(
    "panes-not-closed",
    "G1",
    "an entry says which panes have left the table",
    changes,
    "window.keys[window.sealed :], window.closed_rows()",
    "window.keys[window.sealed :], rows[:0]",
)

rewriting(
    "later-records-added-first",
    "G15",
    "a record of a key is not added before an earlier one that waits for its hook",
    PaneGate,
    "(key := keys[place]) in ran or first.get(key, place) < place",
    "False",
    seeds=0,
    test="tests/worker/interval/test_panes_beside_hooks.py::test_no_record_is_added_before_one_that_needs_a_hook",
    why=_FEW,
)

rewriting(
    "records-added-behind-a-hook",
    "G15",
    "a record waits for the commit of an earlier hook of its key, which may be undone until then",
    PaneGate,
    "(key := keys[place]) in ran or first",
    "(key := keys[place]) in self._blocked.keys or first",
    seeds=0,
    test="tests/worker/interval/test_panes_beside_hooks.py::test_a_hook_that_is_undone_has_nothing_added_behind_it",
    why=_FEW,
)

rewriting(
    "panes-judged-by-rows-of-records",
    "G8",
    "a pane whose result can be made is not given up because its key's row was read for a record",
    BlockedKeys,
    "panes.mover.asked.get(key) == window.timer",
    "key in panes.mover.asked",
    seeds=0,
    test="tests/worker/interval/test_panes_beside_hooks.py::test_a_pane_is_judged_by_a_row_that_was_read_for_it",
    why=_FEW,
)

rewriting(
    "ends-of-windows-unheld",
    "G7",
    "the end of a window by columns holds the output watermark",
    IntervalPump.held,
    "panes.first_end if panes.windows else None",
    "None",
    seeds=0,
    test=_CORE + "a_due_pane_of_a_failing_record_comes_before_it",
    why=_FEW,
)

rewriting(
    "moves-not-undone",
    "G2",
    "a pane is in the table again when what the batch did for its key is undone",
    BlockedKeys,
    "undo_moves(self._panes, key, batch.moved.pop(key, ()))",
    "batch.moved.pop(key, ())",
    seeds=0,
    test=_CORE + "a_record_that_fails_leaves_its_pane_in_the_table",
    why=_FEW,
)

rewriting(
    "moves-unheld",
    "G7",
    "a pane that moves holds the output watermark until it is stored",
    PaneMover.move,
    "batch.hold = self._holds.covering(batch.hold, window.end)",
    "pass",
    seeds=0,
    test=_CORE + "a_moved_pane_of_a_record_holds_the_watermark",
    why=_FEW,
)

rewriting(
    "closing-panes-not-in-bases",
    "G12",
    "a base has the panes that only a batch behind it closes",
    WindowPanes.settled,
    "rows.update((self.keys[row], row) for row in self.closed_rows().tolist() if row < self.sealed)",
    "pass",
    seeds=0,
    test=_CORE + "a_base_has_panes_that_leave_out_of_their_order",
    why=_FEW,
)

rewriting(
    "new-panes-in-bases",
    "G12",
    "a base has no pane that only a batch behind it makes",
    WindowPanes.settled,
    "{key: row for key, row in self.listed().items() if row < self.sealed}",
    "dict(self.listed())",
    seeds=0,
    test=_CORE + "a_base_has_no_new_pane_of_a_window_out_of_order",
    why=_FEW,
)

rewriting(
    "rows-of-a-child-by-parents",
    "G12",
    "a child numbers the rows of its windows by their keys",
    PaneTable.take_in,
    "sorted((key, at) for at, parent in enumerate(parents) for key in parent.rows if key in keys)",
    "[(key, at) for at, parent in enumerate(parents) for key in parent.rows if key in keys]",
    seeds=0,
    test=_CORE + "owners_of_a_merged_interval_number_rows_alike",
    why=_FEW,
)

rewriting(
    "panes-of-siblings",
    "G12",
    "a child takes over the panes of its own keys",
    PaneTable.take_in,
    " if key in keys)",
    ")",
    seeds=0,
    test=_CORE + "a_child_takes_over_the_panes_of_its_keys",
    why=_FEW,
)

rewriting(
    "results-of-blocked-keys",
    "G5",
    "the result of a window waits while its key is blocked",
    PaneFiring,
    "if key in self._blocked.keys:",
    "if False:",
    seeds=0,
    test=_CORE + "a_failing_timer_is_not_overtaken_by_a_pane",
    why=_FEW,
)

rewriting(
    "records-before-due-panes",
    "G5",
    "a due pane of a blocked key comes before the key's record or timer runs again",
    BlockedKeys,
    "(item is not None or window.timer == blocked.failing)",
    "item is None and window.timer == blocked.failing",
    seeds=0,
    test=_CORE + "a_due_pane_of_a_failing_record_comes_before_it",
    why=_FEW,
)

rewriting(
    "panes-not-ahead",
    "G5",
    "panes of a merged parent that were due are due before the child's watermark reaches them",
    Firing,
    "self._pane_table.of_key(key, upto) if domain is TimeDomain.EVENT_TIME else ()",
    "()",
    seeds=0,
    test=_CORE + "due_panes_come_in_order_after_a_merge",
    why=_FEW,
)

rewriting(
    "results-tried-at-each-event",
    "G8",
    "results of blocked keys are not tried again before a key is unblocked",
    PaneFiring.due,
    " if window.passed != unblocked",
    "",
    seeds=0,
    test=_CORE + "an_event_passes_over_windows_of_blocked_keys",
    why=_FEW,
)

rewriting(
    "failed-panes-forgotten",
    "G8",
    "a pane that cannot move is tried again at delays that grow, and given up as the failure policy says",
    BlockedKeys,
    "(item is not None or window.timer == blocked.failing)",
    "item is not None",
    seeds=0,
    test="tests/worker/interval/test_panes_beside_hooks.py::test_a_damaged_row_is_read_again_after_delays_that_grow",
    why=_FEW,
)

rewriting(
    "given-up-panes-stay",
    "G8",
    "a pane that is given up leaves the table with its dead letter, so the records behind it run",
    BlockedKeys,
    "self.firing.panes.give_up(window, key)",
    "pass",
    seeds=0,
    test="tests/worker/interval/test_panes_beside_hooks.py::test_the_policy_decides_on_a_pane_whose_state_is_damaged",
    why=_FEW,
)

rewriting(
    "moves-that-cannot-be-sealed",
    "G8",
    "a move that cannot be sealed waits for a later try",
    BlockedKeys.failed,
    "item is None and moved and not (timers or records)",
    "False",
    seeds=0,
    test=_CORE + "a_move_that_cannot_be_sealed_waits_for_a_later_try",
    why=_FEW,
)

rewriting(
    "all-states-asked-for",
    "G13",
    "an update asks for so many states at a time as fit into a batch",
    PaneFiring.produce,
    " and not self.mover.asks_much",
    "",
    seeds=0,
    test=_CORE + "an_update_to_hooks_moves_panes_on_demand_and_bounded",
    why=_FEW,
)

rewriting(
    "moves-in-weak-commits",
    "G10",
    "a batch with moved panes joins no weak commit",
    WeakCommits.may_join,
    " or batch.moved",
    "",
    seeds=0,
    test=_CORE + "a_moved_pane_joins_no_weak_commit",
    why=_FEW,
)

rewriting(
    "other-forms-passed-over",
    "G1",
    "panes in columns of another form move before a record of their key runs",
    PaneTable.others,
    "if one.form != self.form and one.count",
    "if False",
    seeds=0,
    test=_SCRIPTS + "columns_and_hooks_agree_in_these_cases",
    why=_FEW,
)

rewriting(
    "sums-that-wrap-around",
    "G1",
    "sums that may leave the machine's integers are left to hooks",
    PaneGate,
    "if reach + growth > _MAX_REACH:",
    "if False:",
    seeds=0,
    test=_SCRIPTS + "columns_and_hooks_agree_in_these_cases",
    why=_FEW,
)

rewriting(
    "panes-without-a-limit",
    "G13",
    "at the limit of memory further panes are states",
    PaneGate.may_begin,
    "and panes.bytes < settings.columns_bytes",
    "",
    seeds=0,
    test=_CORE + "at_the_limit_of_memory_new_panes_are_states",
    why=_FEW,
)

rewriting(
    "windows-without-a-limit",
    "G13",
    "many windows of few keys are left to hooks",
    PaneGate.divide,
    "room = MAX_WINDOWS - len(self._panes.windows)",
    "room = 1 << 60",
    seeds=0,
    test=_CORE + "many_windows_of_few_keys_are_left_to_hooks",
    why=_FEW,
)

rewriting(
    "columns-before-their-format",
    "G12",
    "columns are written from the cluster's format 3 on",
    Builder,
    "if settings.columns_from and self._catalog.format < COLUMNS:",
    "if False:",
    seeds=0,
    test="tests/worker/test_building.py::test_columns_wait_for_their_format_and_the_log_says_so",
    why=_FEW,
)

rewriting(
    "columns-restored-to-older-clusters",
    "G12",
    "a cluster of an older format gets no newer entries from a snapshot",
    restoring.refuse_older_cluster,
    "if taken > max(known.format, COLUMNS - 1):",
    "if False:",
    seeds=0,
    test="tests/snapshots/test_changed_topology.py::test_an_older_cluster_gets_no_newer_entries",
    why=_FEW,
)

rewriting(
    "runs-before-their-format",
    "G12",
    "results are stored as columns from the cluster's format 4 on",
    Builder,
    "self._catalog.format >= RESULT_COLUMNS",
    "True",
    seeds=0,
    test="tests/worker/test_building.py::test_results_are_stored_as_columns_from_their_format_on",
    why=_FEW,
)

rewriting(
    "runs-not-taken-over",
    "G12",
    "a takeover sends the results that an entry has as columns",
    entry,
    "productions=rows + entry.productions",
    "productions=entry.productions",
    seeds=0,
    test=_RESULTS + "results_are_one_run_and_one_delivery",
    why=_FEW,
)

rewriting(
    "runs-without-positions",
    "G1",
    "what a commit produces behind its results has other positions",
    Sealer.apply,
    "made += sum(len(run.values) for run in runs)",
    "pass",
    seeds=0,
    test=_RESULTS + "what_comes_behind_a_run_has_positions_of_its_own",
    why=_FEW,
)

rewriting(
    "gaps-of-productions-as-ranges",
    "G1",
    "productions are stated as complete only if nothing between their positions is due to their receiver",
    CommitPipeline,
    " and outbound.complete",
    "",
)

rewriting(
    "gapped-ranges-while-a-mark-stands",
    "G13",
    "positions with gaps are stated as complete only while the mark moves, because they keep merged receivers apart",
    CommitPipeline,
    "gaps=mark >= old",
    "gaps=True",
    seeds=0,
    test=_READS + "reads_have_no_gapped_ranges_while_a_mark_stands_still",
    why=_FEW,
)

rewriting(
    "reads-beside-results-dropped",
    "G1",
    "a read is in the runs of its commit or in its rows, also beside results of panes",
    Sealer.apply,
    "rows_behind(context, reads_in_runs)",
    "rows_behind(context, bool(runs))",
    seeds=0,
    test=_READS + "a_read_beside_results_of_panes_is_stored_as_rows",
    why=_FEW,
)

rewriting(
    "reads-undivided",
    "G8",
    "what was read at once is divided by the intervals that own its keys",
    batch_division,
    "if journal and locate(max(keys)) == journal:",
    "if journal:",
    seeds=0,
    test=_READS + "runs_reach_the_intervals_that_their_rows_reach",
    why=_FEW,
)

rewriting(
    "reads-that-replace-one-another",
    "G1",
    "a key produces at once only what is the first of its commit: what it has produced stays, and comes before",
    Context,
    "binding.route_all is None or self._read is not None or self._productions is not None",
    "binding.route_all is None",
    seeds=0,
    test=_READS + "a_second_read_of_a_commit_comes_behind_the_first",
    why=_FEW,
)

rewriting(
    "reads-for-former-consumers",
    "G1",
    "what is read at once goes to the consumers that the stream has now",
    CatalogRouting,
    "binding.route, binding.route_all = routes[stream]",
    "binding.route, _ = routes[stream]",
    seeds=0,
    test="tests/worker/test_others_keys.py::test_many_values_have_the_targets_that_each_has_now",
    why=_FEW,
)

rewriting(
    "weak-reads-as-runs",
    "G10",
    "weak productions of a source have ids of their own",
    Sealer,
    " and program.options.strong",
    "",
    seeds=0,
    test=_READS + "weak_reads_have_ids_of_their_own",
    why=_FEW,
)

rewriting(
    "keyed-results-under-one-key",
    "G1",
    "each result of a run has its own key at a consumer",
    result_runs,
    "keys[0] == keys[-1] and keys.count(keys[0]) == len(keys)",
    "keys[0] == keys[-1]",
    seeds=0,
    test=_KEYED + "keyed_results_reach_the_intervals_of_their_rows",
    why=_FEW,
)

rewriting(
    "keyed-results-under-their-producers",
    "G1",
    "a result of a run comes under its key at the consumer, which is not the key of its window",
    result_runs,
    "return keys if isinstance(keys, list) else [keys]",
    "return list(made.keys) if isinstance(keys, list) else [keys]",
)

rewriting(
    "results-for-former-consumers",
    "G1",
    "a run ends before the first result that has other consumers",
    result_runs,
    "taken and _form(made) != _form(taken[0])",
    "taken and made.stream != taken[0].stream",
    seeds=0,
    test=_KEYED + "results_for_a_new_consumer_are_no_part_of_the_run",
    why=_FEW,
)

rewriting(
    "keyed-results-of-a-function-that-stops",
    "G1",
    "if the function of a consumer's keys raises for one result, all are made one by one, and that one fails alone",
    route_of_all,
    "if any(len(keys) != len(values) for _, keys in found):",
    "if False:",
    seeds=0,
    test=_RESULTS + "a_result_that_stops_an_iteration_loses_none",
    why=_FEW,
)
