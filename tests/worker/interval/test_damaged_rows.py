"""A key whose stored state fails its checksum: its work fails by the policy, nothing else does, and nothing is lost."""

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
from tests.worker.interval.solo import Solo

WHY = "state of key 'k' of incarnation solo.1: checksum 00000001 where 00000002 was written"


class Count(mw.Computation[tuple[str, str], int]):
    """Counts. "timer" sets a timer that is due at once and produces."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1
        if record.value[1] == "timer":
            ctx.set_timer(Timestamp(record.timestamp))
        ctx.produce("out", f"{ctx.key}{ctx.state}")

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        ctx.produce("out", f"{ctx.key} rang at {ctx.state}", timestamp=timer.timestamp)


def made(**options: Any) -> Solo:
    solo = Solo(Count(), **options)
    solo.state.cells.evicted = True
    return solo


def read(solo: Solo, damaged: frozenset[bytes] = frozenset({b"k"}), state: int = 10) -> list[bytes]:
    """Answer what rows are asked for; those of ``damaged`` keys cannot be read."""
    asked: list[bytes] = []
    for one in solo.take(ReadStates):
        asked += one.keys
        rows = [StateRow(key, 0, msgspec.msgpack.encode(state)) if key not in damaged else None for key in one.keys]
        solo.handle(StatesRead(one.keys, rows, {key: WHY for key in one.keys if key in damaged}))
    return asked


def delivered(solo: Solo) -> list[tuple[str, int]]:
    """The values sent since the last call. Their receivers ACK them."""
    sends = solo.take(SendDelivery)
    solo.waiting += sends
    found = solo.sent()
    for send in sends:
        solo.handle(Acknowledged(send.delivery.token))
    return found


def forget(solo: Solo) -> None:
    """The cache has no room for the row of k any more."""
    del solo.state.cells._cells[b"k"]  # noqa: SLF001  # when the cache evicts depends on its size


@pytest.mark.guarantee("G1", section="4.1")
def test_a_damaged_row_blocks_its_key_until_it_is_restored() -> None:
    solo = made(on_failure=mw.retry(initial=seconds(1)))
    solo.deliver(("k", "x", 1), ("j", "x", 2), ("k", "y", 3))
    assert sorted(read(solo)) == [b"j", b"k"]
    solo.commit_all()
    assert solo.sent() == [("j11", 2)], "the other key goes on with its own row"
    (failed,) = solo.take(HookFailed)
    for named in ("'solo'", "key 'k'", "stream 'in'", WHY, "restore the row", "it will be tried again"):
        assert named in failed.message
    assert solo.core.damaged_rows == {b"k": WHY}
    for attempt in range(2, 5):
        solo.now += seconds(10)
        solo.handle(Tick())
        assert read(solo) == [b"k"], "each attempt reads the row again"
        (failed,) = solo.take(HookFailed)
        assert f"attempt {attempt};" in failed.message
    solo.now += seconds(100)
    solo.handle(Tick())
    read(solo, frozenset())
    solo.commit_all()
    assert solo.sent() == [("k11", 1), ("k12", 3)], "in order, on the state that was restored"
    assert solo.core.damaged_rows == {}


@pytest.mark.guarantee("G2")
def test_a_damaged_rows_records_become_dead_letters_and_it_stays() -> None:
    solo = made(on_failure=mw.dead_letter(after=2, initial=seconds(1)))
    solo.deliver(("k", "x", 1), ("k", "y", 2))
    for _ in range(8):
        read(solo)
        solo.commit_all()
        solo.now += seconds(60)
        solo.handle(Tick())
    assert solo.state.counts.dead_letters == 2
    letters = [value for value, _ in solo.sent()]
    assert len(letters) == 2
    assert all("StateDamagedError" in str(letter) for letter in letters)
    assert b"k" not in solo.state.cells
    assert [row.key for flush in solo.take(FlushStates) for row in flush.rows] == []
    solo.deliver(("k", "z", 3))
    read(solo, frozenset())
    solo.commit_all()
    assert solo.sent() == [("k11", 3)], "once restored the key goes on with what its row says"


def test_a_damaged_rows_records_stop_the_computation_by_policy() -> None:
    solo = made(on_failure=mw.stop(after=2, initial=seconds(1)))
    solo.deliver(("k", "x", 1))
    for _ in range(3):
        read(solo)
        solo.now += seconds(60)
        solo.handle(Tick())
    assert WHY in solo.core.stopped
    assert solo.take(AppendEntry) == [], "nothing is committed of it, so its sender keeps it"


@pytest.mark.guarantee("G6")
def test_a_timer_of_a_damaged_row_fires_once_the_row_is_restored() -> None:
    solo = made(on_failure=mw.retry(initial=seconds(1)))
    solo.deliver(("k", "timer", 5))
    read(solo, frozenset())
    solo.commit_all()
    assert delivered(solo) == [("k11", 5)]
    solo.state.cells.flushed(solo.state.cells.dirty_rows())
    forget(solo)
    solo.watermark(10)
    read(solo)
    solo.commit_all()
    assert delivered(solo) == []
    assert solo.output <= 5, "the timer holds the watermark meanwhile"
    solo.now += seconds(60)
    solo.handle(Tick())
    read(solo, frozenset(), 11)
    solo.commit_all()
    fired = delivered(solo)
    assert fired == [("k rang at 11", 5)]
    solo.watermark(20)
    solo.commit_all()
    assert solo.output == 20


@pytest.mark.guarantee("G2")
def test_a_timer_of_a_damaged_row_ends_with_its_dead_letter() -> None:
    solo = made(on_failure=mw.dead_letter(after=1))
    solo.deliver(("k", "timer", 5))
    read(solo, frozenset())
    solo.commit_all()
    delivered(solo)
    solo.state.cells.flushed(solo.state.cells.dirty_rows())
    forget(solo)
    solo.watermark(10)
    read(solo)
    solo.commit_all()
    assert [stamp for _, stamp in delivered(solo)] == [5]
    assert solo.state.timers.count == 0
    solo.watermark(20)
    solo.commit_all()
    assert solo.output == 20
