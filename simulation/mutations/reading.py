"""Streams and states that are read as tables (sections 4.3 and 4.4)."""

from __future__ import annotations

from millwheel.client.kept_log import KeptLog
from millwheel.worker.process.state_service import StateService
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY = "the simulator reads no tables"

rewriting(
    "gaps-passed-over",
    "G1",
    "a reader of offsets compares the first one of each response with the one that it asked for",
    KeptLog.read,
    "if response.first_offset > position:",
    "if False:",
    seeds=0,
    test="tests/system/test_tables.py::test_records_that_are_gone_are_an_error",
    why=_WHY,
)

rewriting(
    "offsets-of-any-log",
    "G1",
    "a reader of offsets reads on in the log that it began with",
    KeptLog,
    'if self.incarnation not in ("", found.incarnation):',
    "if False:",
    seeds=0,
    test="tests/system/test_tables.py::test_another_log_of_a_stream_is_not_read_on",
    why=_WHY,
)

rewriting(
    "timers-listed-ahead-of-commits",
    "G2",
    "a page of states shows timers after their commit",
    StateService,
    "states, core.state.journal.sealed)",
    "states)",
    seeds=0,
    test="tests/worker/test_state_pages.py::test_a_page_waits_for_the_commit_of_a_timer",
    why=_WHY,
)
