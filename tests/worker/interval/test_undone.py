"""Work that a failing hook undoes runs again without another event (G8; 4.1)."""

from __future__ import annotations

import pytest

import millwheel as mw
from millwheel.worker.messages import AppendEntry
from tests.worker.interval.driver import IntervalDriver


class Picky(mw.Computation[tuple[str, str], int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] == "bad":
            raise ValueError("bad")
        ctx.state += 1


@pytest.mark.guarantee("G8", section="4.1")
def test_records_undone_beside_a_failure_rerun_without_an_event() -> None:
    """Regression: the undone records waited for the next event. If all other work waited for them, none came."""
    driver = IntervalDriver(Picky())
    driver.deliver(("k", "good", 1), ("k", "bad", 2))
    assert driver.take(AppendEntry), "the good one is committed"
