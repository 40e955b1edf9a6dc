"""The stored state of a key fails its checksum. Only this key's work fails, by the policy, and no record is lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.time import Timestamp, seconds
from millwheel.store.contract import StateRow
from millwheel.worker.messages import (
    Acknowledged,
    AppendEntry,
    FlushStates,
    HookFailed,
    ReadStates,
    SendDelivery,
    StatesRead,
    Tick,
)
from tests.worker.interval.driver import IntervalDriver

WHY = "state of key 'k' of incarnation test.1: checksum 00000001 where 00000002 was written"


class Count(mw.Computation[tuple[str, str], int]):
    """Counts. "timer" sets a timer that is due at once and produces."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1
        if record.value[1] == "timer":
            ctx.set_timer(Timestamp(record.timestamp))
        ctx.produce("out", f"{ctx.key}{ctx.state}")

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        ctx.produce("out", f"{ctx.key} rang at {ctx.state}", timestamp=timer.timestamp)


def made(**options: Any) -> IntervalDriver:
    driver = IntervalDriver(Count(), **options)
    driver.state.cells.evicted = True
    return driver


def read(driver: IntervalDriver, damaged: frozenset[bytes] = frozenset({b"k"}), state: int = 10) -> list[bytes]:
    """Answer reads of rows. Those of ``damaged`` keys cannot be read."""
    asked: list[bytes] = []
    for one in driver.take(ReadStates):
        asked += one.keys
        rows = [StateRow(key, 0, msgspec.msgpack.encode(state)) if key not in damaged else None for key in one.keys]
        driver.handle(StatesRead(one.keys, rows, {key: WHY for key in one.keys if key in damaged}))
    return asked


def delivered(driver: IntervalDriver) -> list[tuple[str, int]]:
    """The values sent since the last call. Their receivers ACK them."""
    sends = driver.take(SendDelivery)
    driver.waiting += sends
    found = driver.sent()
    for send in sends:
        driver.handle(Acknowledged(send.delivery.token))
    return found


def forget(driver: IntervalDriver) -> None:
    """The cache has no room for the row of k any more."""
    driver.state.cells.evict(b"k")


@pytest.mark.guarantee("G1", section="4.1")
def test_a_damaged_row_blocks_its_key_until_it_is_restored() -> None:
    driver = made(on_failure=mw.retry(initial=seconds(1)))
    driver.deliver(("k", "x", 1), ("j", "x", 2), ("k", "y", 3))
    assert sorted(read(driver)) == [b"j", b"k"]
    driver.commit_all()
    assert driver.sent() == [("j11", 2)], "the other key goes on with its own row"
    (failed,) = driver.take(HookFailed)
    for named in ("'test'", "key 'k'", "stream 'in'", WHY, "restore the row", "it will be tried again"):
        assert named in failed.message
    assert driver.core.damaged_rows == {b"k": WHY}
    for attempt in range(2, 5):
        driver.now += seconds(10)
        driver.handle(Tick())
        assert read(driver) == [b"k"], "each attempt reads the row again"
        (failed,) = driver.take(HookFailed)
        assert f"attempt {attempt};" in failed.message
    driver.now += seconds(100)
    driver.handle(Tick())
    read(driver, frozenset())
    driver.commit_all()
    assert driver.sent() == [("k11", 1), ("k12", 3)], "in order, on the state that was restored"
    assert driver.core.damaged_rows == {}


@pytest.mark.guarantee("G2")
def test_a_damaged_rows_records_become_dead_letters_and_it_stays() -> None:
    driver = made(on_failure=mw.dead_letter(after=2, initial=seconds(1)))
    driver.deliver(("k", "x", 1), ("k", "y", 2))
    for _ in range(8):
        read(driver)
        driver.commit_all()
        driver.now += seconds(60)
        driver.handle(Tick())
    assert driver.state.counts.dead_letters == 2
    letters = [value for value, _ in driver.sent()]
    assert len(letters) == 2
    assert all("StateDamagedError" in str(letter) for letter in letters)
    assert b"k" not in driver.state.cells
    assert [row.key for flush in driver.take(FlushStates) for row in flush.rows] == []
    driver.deliver(("k", "z", 3))
    read(driver, frozenset())
    driver.commit_all()
    assert driver.sent() == [("k11", 3)], "once restored the key goes on with what its row says"


def test_a_damaged_rows_records_stop_the_computation_by_policy() -> None:
    driver = made(on_failure=mw.stop(after=2, initial=seconds(1)))
    driver.deliver(("k", "x", 1))
    for _ in range(3):
        read(driver)
        driver.now += seconds(60)
        driver.handle(Tick())
    assert WHY in driver.core.stopped
    assert driver.take(AppendEntry) == [], "nothing is committed of it, so its sender keeps it"


@pytest.mark.guarantee("G6")
def test_a_timer_of_a_damaged_row_fires_once_the_row_is_restored() -> None:
    driver = made(on_failure=mw.retry(initial=seconds(1)))
    driver.deliver(("k", "timer", 5))
    read(driver, frozenset())
    driver.commit_all()
    assert delivered(driver) == [("k11", 5)]
    cells = driver.state.cells.take_dirty()
    driver.state.cells.flushed(cells, driver.state.cells.rows_of(cells))
    forget(driver)
    driver.watermark(10)
    read(driver)
    driver.commit_all()
    assert delivered(driver) == []
    assert driver.output <= 5, "the timer holds the watermark meanwhile"
    driver.now += seconds(60)
    driver.handle(Tick())
    read(driver, frozenset(), 11)
    driver.commit_all()
    fired = delivered(driver)
    assert fired == [("k rang at 11", 5)]
    driver.watermark(20)
    driver.commit_all()
    assert driver.output == 20


@pytest.mark.guarantee("G2")
def test_a_timer_of_a_damaged_row_ends_with_its_dead_letter() -> None:
    driver = made(on_failure=mw.dead_letter(after=1))
    driver.deliver(("k", "timer", 5))
    read(driver, frozenset())
    driver.commit_all()
    delivered(driver)
    cells = driver.state.cells.take_dirty()
    driver.state.cells.flushed(cells, driver.state.cells.rows_of(cells))
    forget(driver)
    driver.watermark(10)
    read(driver)
    driver.commit_all()
    assert [stamp for _, stamp in delivered(driver)] == [5]
    assert driver.state.timers.count == 0
    driver.watermark(20)
    driver.commit_all()
    assert driver.output == 20
