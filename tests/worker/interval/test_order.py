"""No record of a key overtakes a due timer of the key, also in a batch of many keys (G5, G6; section 4.6)."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.worker.interval import IntervalSettings
from tests.worker.interval.driver import IntervalDriver


class Ordered(mw.Computation[tuple[str, str], list[str]]):
    """Logs a key's records and timers. A number sets a timer at that time. "fail" always fails."""

    def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        if what == "fail":
            raise ValueError(what)
        if what.isdigit():
            ctx.set_timer(mw.Timestamp(int(what)), what)
        ctx.state.append(what)

    def process_timer(self, ctx: mw.Context[list[str]], timer: mw.Timer) -> None:
        ctx.state.append(f"fires {timer.tag}")


def log_of(driver: IntervalDriver, key: str) -> Any:
    cell = driver.state.cells.get(key.encode())
    assert cell is not None
    return driver.state.program.state.decode(cell.encoded)


@pytest.mark.guarantee("G6", section="4.6")
def test_due_timers_of_blocked_keys_are_not_overtaken() -> None:
    """Regression: at most as many timers were taken as the batch had room for.

    If they were of blocked keys, the next one stayed.
    """
    driver = IntervalDriver(Ordered(), settings=IntervalSettings(batch_records=2), on_failure=mw.retry())
    driver.deliver(("waits", "5", 1), ("waits", "6", 1), ("key", "10", 1))
    driver.commit_all()
    driver.deliver(("waits", "fail", 20))
    driver.commit_all()
    driver.deliver(("other", "in flight", 30))
    driver.deliver(("other", "fills", 30), ("other", "the batch", 30), ("key", "record", 30))
    driver.watermark(25)
    assert driver.state.watermark == 20
    driver.commit_all()
    assert log_of(driver, "key") == ["10", "fires 10", "record"]


@pytest.mark.guarantee("G5", section="4.6")
def test_a_key_whose_timers_wait_for_a_commit_keeps_its_records() -> None:
    """This batch set the earlier of two due timers. It takes effect when the batch is sealed, and fires first."""
    driver = IntervalDriver(Ordered())
    driver.deliver(("key", "18", 1))
    driver.commit_all()
    driver.watermark(10)
    driver.commit_all()
    driver.deliver(("other", "in flight", 30))
    driver.deliver(("key", "17", 30))
    driver.watermark(25)
    driver.deliver(("key", "record", 30))
    driver.commit_all()
    assert log_of(driver, "key") == ["18", "17", "fires 17", "fires 18", "record"]
