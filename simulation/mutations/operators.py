"""The library's operators: what their states keep, for how long, and in which order (4.2, 4.4, 4.6)."""

from __future__ import annotations

from typing import Any, Final

from millwheel.operators.count_windows import CountWindow
from millwheel.operators.groups import Deduplicate
from millwheel.operators.joins import IntervalJoin, TemporalJoin
from millwheel.operators.ordered import Ordered
from millwheel.operators.timeouts import Timeout
from millwheel.operators.updating import Update
from simulation.mutations.base import rewriting

__all__: list[str] = []

_ENTRIES: Final = "tests/operators/test_entries.py::test_an_operator_is_its_naive_model"
_JOINS: Final = "tests/operators/test_joins.py::test_an_interval_join_is_a_loop_over_all_pairs"
_AS_OF: Final = "tests/operators/test_joins.py::test_a_join_as_of_a_time_takes_the_newest_value_up_to_it"
_FULL: Final = "tests/operators/test_timeouts.py::test_a_full_window_leaves_no_timer"
_SILENCE: Final = "tests/operators/test_timeouts.py::test_a_silence_does_not_depend_on_arrival"
_SEEDS: Final = 300


def _taken_out(name: str, mechanism: str, method: Any, old: str, new: str, entry: str, guarantee: str = "G1") -> None:
    """Register a mutation of an operator. ``entry``: the operator whose model shows it, or a test."""
    test = entry if "::" in entry else f"{_ENTRIES}[{entry}]"
    why = "one seed of fifty has this operator"
    rewriting(name, guarantee, mechanism, method, old, new, seeds=_SEEDS, test=test, why=why)


_taken_out(
    "joins-let-go-of-all",
    "a join drops only records that can find no more partners",
    IntervalJoin.process_timer,
    "len(kept) if ended else bisect_left(kept, (timer.timestamp - span,))",
    "len(kept)",
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
