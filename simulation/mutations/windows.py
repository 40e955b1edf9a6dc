"""The library's windows: what users rely on (sections 4.6, 8.4)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from millwheel.sdk.records import Timer
from millwheel.windows import assigners
from millwheel.windows.assigners import Window
from millwheel.windows.sessions import SessionAggregate
from millwheel.windows.spread_sessions import SessionParts
from millwheel.worker.interval.commits.sealing import Sealer
from simulation.mutations.base import mutation, replace, rewrite, rewriting

__all__: list[str] = []

_TWO_PHASE: Final[Any] = import_module("millwheel.windows.two_phase")
"""The module. A function of its package has the same name."""


@mutation("G1", "every window that a timestamp is in gets its record")
def windows_missed() -> None:
    """A record is put only into the last of its sliding windows."""
    rewrite(assigners, "range(first, last + 1, self.every)", "(last,)")


@mutation("G1", "sessions that a record joins become one")
def sessions_apart() -> None:
    """A record that joins sessions opens a separate session, and replaces the one that begins at the same time."""

    def make(process: Any) -> Any:
        def apart(self: Any, ctx: Any, record: Any) -> None:
            before, ctx.state = [*ctx.state], [one for one in ctx.state if one[0] == record.timestamp]
            process(self, ctx, record)
            others = [one for one in before if one[0] != record.timestamp]
            ctx.state = sorted([*others, *ctx.state], key=lambda one: one[0])

        return apart

    replace(SessionAggregate, "process_record", make)


rewriting(
    "session-revision",
    "G14",
    "the result of joined sessions has a larger revision than theirs",
    SessionAggregate,
    "max([one[3] for one in joined])",
    "min([one[3] for one in joined])",
    seeds=0,
    test="tests/windows/test_sessions.py::test_a_late_record_joins_two_sessions_with_results",
    why="late records of simulated sessions are diverted",
)
rewriting(
    "session-purged",
    "G14",
    "a session that goes on is not deleted by the timer of its former end",
    SessionAggregate,
    "ctx.cancel_timer(PURGE + str(begin))",
    "pass",
    seeds=0,
    test="tests/windows/test_sessions.py::test_a_session_that_goes_on_is_kept_until_its_new_end",
    why="late records of simulated sessions are diverted",
)
rewriting(
    "sessions-swallowed",
    "G14",
    "no session contains one that is not kept any more",
    SessionAggregate,
    "(not joined or start < joined[0][0])",
    "not joined",
    seeds=0,
    test="tests/windows/test_sessions.py::test_no_session_contains_one_that_is_not_kept",
    why="late records of simulated sessions are diverted",
)


@mutation("G1", "the second phase waits for the partial results of all shards")
def partials_unwaited() -> None:
    """A merged result is produced at once, by a timer that is due when it is set."""

    def make(process: Any) -> Any:
        def at_once(self: Any, ctx: Any, record: Any) -> None:
            process(self, ctx, record)
            window = Window(record.value.start, record.value.end)
            ctx.cancel_timer(window.tag)
            self.process_timer(ctx, Timer(window.tag, record.value.end))

        return at_once

    replace(_TWO_PHASE.MergePartials, "process_record", make)


rewriting(
    "parts-kept",
    "G1",
    "the first phase forgets what the second phase has",
    _TWO_PHASE.PartialAggregate,
    "ctx.state.pop(window, None)\n    if pane.early_at:",
    "if pane.early_at:",
    seeds=0,
    test="tests/windows/test_two_phase.py::test_a_part_is_merged_once",
    why="one seed of a hundred has early results of what is spread",
)


rewriting(
    "parts-of-sessions-unheld",
    "G7",
    "a part of a session that goes on holds the watermark at its beginning",
    SessionParts,
    "return Timestamp(max(window.start, min(first, ctx.watermark)))",
    "return Timestamp(window.end - 1)",
    seeds=0,
    test="tests/windows/test_spread_sessions.py::test_a_session_waits_for_a_part_that_goes_on",
    why="one seed of a hundred has sessions that are spread",
)
rewriting(
    "parts-of-sessions-held-at-their-first",
    "G7",
    "a part of a session holds the watermark before each record to come that is not late",
    SessionParts,
    "return Timestamp(max(window.start, min(first, ctx.watermark)))",
    "return Timestamp(window.start)",
    seeds=0,
    test="tests/windows/test_spread_sessions.py::test_a_part_holds_before_all_records_that_are_to_come",
    why="one seed of a hundred has sessions that are spread",
)
rewriting(
    "late-parts-kept-back",
    "G14",
    "a part that comes after a window's end corrects the result",
    _TWO_PHASE.MergePartials.process_record,
    "self.early is not None or record.late",
    "self.early is not None",
    seeds=0,
    test="tests/windows/test_two_phase.py::test_a_late_part_corrects_the_result",
    why="late records of simulated windows are diverted",
)
rewriting(
    "drops-uncounted",
    "G14",
    "late records that a window drops are counted",
    Sealer.apply,
    "dropped += context._dropped",
    "pass",
    seeds=0,
    test="tests/windows/test_late.py::test_what_windows_drop_is_counted_with_the_commit",
    why="no checker looks at this count",
)
