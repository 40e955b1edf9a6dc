"""Work that a failing hook undoes runs again without another event (G8; 4.1)."""

from __future__ import annotations

import pytest

import millwheel as mw
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.hooks.runner import MAX_SEARCHED_RECORDS
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


def read(value: tuple[str, str]) -> bool:
    """A filter that fails, as a hook does."""
    if value[1] == "unread":
        raise ValueError("unread")
    return True


@pytest.mark.guarantee("G1", "G8", section="4.1")
@pytest.mark.parametrize("what", ["bad", "unread"])
def test_a_step_searches_a_limited_number_of_records(what: str) -> None:
    """Each failing key is searched in all records of the batch. So some thousands took seconds, up to the lease."""
    records, failing = 20_000, 120
    driver = IntervalDriver(
        Picky(), settings=IntervalSettings(gathered_from=1), on_failure=mw.dead_letter(after=1), keep=read
    )
    driver.deliver(*((f"k{at % 1000}", "good", 1) for at in range(records)), followed=True)
    driver.deliver(*((f"k{at}", what, 2) for at in range(failing)), followed=True)
    blocked = len(driver.state.blocked.keys)
    most = MAX_SEARCHED_RECORDS // records
    assert most <= blocked < most + 5, "the others wait in the queue"
    assert driver.core.next_deadline() == driver.now + 1, "the next step needs no other event"
    for _ in range(30):
        driver.pass_time(1)
        driver.commit_all()
    counts = driver.state.counts
    assert (counts.records, counts.dead_letters) == (records + failing, failing)
