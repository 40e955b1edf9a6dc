"""The library's operators: what their states keep, for how long, and in which order (4.2, 4.4, 4.6)."""

from __future__ import annotations

from typing import Any, Final

from millwheel.operators.cogroup import CoGroup
from millwheel.operators.count_windows import CountWindow
from millwheel.operators.groups import Deduplicate
from millwheel.operators.joins import IntervalJoin
from millwheel.operators.ordered import Ordered
from millwheel.operators.tables import Changes, TableJoin
from millwheel.operators.temporal_join import TemporalJoin
from millwheel.operators.throttle import Throttle
from millwheel.operators.timeouts import Timeout
from millwheel.operators.until import Until
from millwheel.operators.updating import ExpiringUpdate, Update
from millwheel.sdk.growing.expiring import ExpiringMapState
from simulation.mutations.base import rewriting

__all__: list[str] = []

_ENTRIES: Final = "tests/operators/test_entries.py::test_an_operator_is_its_naive_model"
_JOINS: Final = "tests/operators/test_joins.py::test_each_record_is_kept_for_its_own_partners"
_AS_OF: Final = "tests/operators/test_joins.py::test_a_join_as_of_a_time_takes_the_newest_value_up_to_it"
_LATE: Final = "tests/operators/test_late_groups.py"
_FULL: Final = "tests/operators/test_timeouts.py::test_a_full_window_leaves_no_timer"
_SILENCE: Final = "tests/operators/test_timeouts.py::test_a_silence_does_not_depend_on_arrival"
_AGAIN: Final = "tests/operators/test_until.py::test_records_pass_until_the_condition_and_again_later"
_TAKEN_BACK: Final = "tests/operators/test_changes.py::test_a_record_takes_back_the_one_before"
_ENDS: Final = "tests/sdk/growing/test_expiring.py::test_a_map_with_ends_is_like_a_dict_with_ends"
_REMOVED: Final = "tests/sdk/growing/test_expiring.py::test_a_removed_element_leaves_no_end"
_SEEDS: Final = 300


def _taken_out(name: str, mechanism: str, method: Any, old: str, new: str, entry: str, guarantee: str = "G1") -> None:
    """Register a mutation of an operator. ``entry``: the operator whose model shows it, or a test."""
    test = entry if "::" in entry else f"{_ENTRIES}[{entry}]"
    why = "one seed of 30 to 100 has this operator"
    rewriting(name, guarantee, mechanism, method, old, new, seeds=_SEEDS, test=test, why=why)


_taken_out(
    "joins-let-go-of-all",
    "a join drops only records that can find no more partners",
    IntervalJoin.process_timer,
    "len(times) if ended else bisect_left(times, timer.timestamp - span)",
    "len(times)",
    _JOINS,
)

_taken_out(
    "joins-keep-too-briefly",
    "a join keeps a record until its last partner may have come",
    IntervalJoin.process_timer,
    "timer.timestamp - span",
    "timer.timestamp - span + 400_000",
    _JOINS,
)

rewriting(
    "late-partners",
    "G14",
    "a join keeps records for partners that may be late",
    IntervalJoin.__init__,
    "self.left_span = after + allowed_lateness",
    "self.left_span = after",
    seeds=0,
    test="tests/operators/test_joins.py::test_a_record_that_is_allowed_late_finds_its_partners",
    why="no simulated join allows lateness, because its late records are diverted",
)

rewriting(
    "lost-partners-uncounted",
    "G14",
    "a late record of a join that has no effect is counted or diverted",
    IntervalJoin.process_record,
    "drop_record(ctx, record, self.too_late)",
    "pass",
    seeds=0,
    test="tests/operators/test_joins.py::test_a_late_record_without_an_effect_is_not_lost",
    why="the late records of simulated joins are diverted",
)

rewriting(
    "groups-not-kept",
    "G14",
    "the window of a group is kept for its late records",
    CoGroup,
    "purge_time(window, self.allowed_lateness)",
    "purge_time(window, self.allowed_lateness // 2)",
    seeds=0,
    test=f"{_LATE}::test_a_late_partner_releases_the_watermark",
    why="the late records of simulated groups have no known results",
)

rewriting(
    "groups-made-again",
    "G1",
    "a late record of a group produces nothing that its window has produced",
    CoGroup,
    "before[encoded] -= 1",
    "yield result",
    seeds=0,
    test=f"{_LATE}::test_a_group_produces_nothing_twice",
    why="the late records of simulated groups have no known results",
)

rewriting(
    "pairs-made-again",
    "G1",
    "a window that is kept has made its pairs, and a late record makes its own alone",
    CoGroup.process_timer,
    "groups.produced = True",
    "pass",
    seeds=0,
    test=f"{_LATE}::test_a_late_partner_releases_the_watermark",
    why="the late records of simulated joins have no known results",
)

rewriting(
    "late-partners-unheld",
    "G7",
    "records that may find a late partner hold the watermark for their results",
    CoGroup,
    "result_time(window) if self._has_last(groups) else None",
    "None",
    seeds=0,
    test=f"{_LATE}::test_what_may_find_a_late_partner_holds_the_watermark",
    why="seeds show it seldom",
)

_taken_out(
    "values-dropped-for-waiting-records",
    "a join as of a time keeps the values that hold for records that wait",
    TemporalJoin,
    "min([ctx.watermark, *(time for time, _ in versions.left[:1])])",
    "ctx.watermark",
    _AS_OF,
)

_taken_out(
    "timeouts-not-cancelled",
    "a record that connects two stretches cancels the time-outs of both",
    Timeout.process_record,
    "ctx.cancel_timer(str(one[0]))",
    "pass",
    _SILENCE,
)

_taken_out(
    "ties-by-arrival",
    "ordered records of one timestamp come in an order that does not depend on arrival",
    Ordered,
    "low = bisect_right(waiting, self._rank(new), low, high, key=self._rank)",
    "low = high",
    "ordered update",
)

_taken_out(
    "forgotten-too-soon",
    "a record is remembered for the complete time of deduplicate",
    Deduplicate.process_record,
    "record.timestamp + self.within",
    "record.timestamp + self.within // 2",
    "ordered deduplicate",
)

_taken_out(
    "one-initial-state",
    "each key gets a copy of the initial state of its own",
    Update.process_record,
    "deepcopy(self.initial)",
    "self.initial",
    "update",
)

_taken_out(
    "full-windows-keep-their-timers",
    "a window that is full cancels the timer of its time",
    CountWindow.process_record,
    "ctx.cancel_timer()",
    "pass",
    _FULL,
    "G8",
)

_taken_out(
    "throttles-let-one-too-many-pass",
    "a record passes a throttle only if there is room in every time around it",
    Throttle,
    "range(first, last + 1)",
    "range(first, last)",
    "ordered throttle",
)

_taken_out(
    "excess-lost",
    "a record that does not pass a throttle is in the stream of the excess",
    Throttle.process_record,
    "if self.excess is not None:",
    "if False:",
    "throttle",
)

_taken_out(
    "tables-kept-for-ever",
    "a table lets go of a record when its time is over",
    TableJoin.process_timer,
    "mine.clear()",
    "pass",
    "join tables",
    "G13",
)

_taken_out(
    "retractions-lost",
    "a record takes back the one of its key before it",
    Changes.process_record,
    "ctx.produce(self.output, Change(former, -1))",
    "pass",
    "changes",
)

_taken_out(
    "older-records-shorten-the-time",
    "a record that is older than others of its key does not shorten the time for which the key is known",
    Changes.process_record,
    "at = max(at, newest)",
    "pass",
    _TAKEN_BACK,
    "G13",
)

_taken_out(
    "ended-keys-begin-too-soon",
    "a key that has ended begins again only when its time is over",
    Until,
    "at + self.keep",
    "at + self.keep // 2",
    _AGAIN,
)

_taken_out(
    "ended-keys-never-begin",
    "a key that has ended begins again when its time is over",
    Until.process_timer,
    "del ctx.state",
    "pass",
    "ordered until",
    "G13",
)

_taken_out(
    "states-outlive-their-time",
    "a state that is kept for a time is forgotten after it",
    ExpiringUpdate.process_timer,
    "del ctx.state",
    "pass",
    "clock expiring update",
    "G13",
)

_taken_out(
    "replaced-ends-leak",
    "an element of an expiring map has one end, which a later one replaces",
    ExpiringMapState.put,
    "self._tree.delete(_END + before + encoded)",
    "pass",
    _ENDS,
    "G2",
)

_taken_out(
    "ends-of-removed-elements-leak",
    "an element that is removed from an expiring map leaves no end",
    ExpiringMapState.__delitem__,
    "self._tree.delete(_END + found[:_TIME_BYTES] + encoded)",
    "pass",
    _REMOVED,
    "G2",
)
