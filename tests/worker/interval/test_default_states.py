"""A state that equals its type's default is not stored: it has no row, no cell and no journal entry (4.4, 8.3)."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.testing import TopologyHarness
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.entry import decode_entry
from millwheel.worker.messages import AppendEntry, FlushStates, StatesFlushed
from tests.testing.inside import cluster_of
from tests.worker.interval.driver import IntervalDriver

_NOW = IntervalSettings(flush_interval=0)
_drawn = itertools.count()


class Drawn(msgspec.Struct):
    """A state whose default has a new number each time."""

    number: int = msgspec.field(default_factory=lambda: next(_drawn))


class Keeps(mw.Computation[tuple[str, str], dict[str, int]]):
    """Adds each value. "take" removes it, "look" only reads the state, "del" and "none" leave none."""

    def process_record(self, ctx: mw.Context[dict[str, int]], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        if what == "take":
            ctx.state.clear()
        elif what == "del":
            del ctx.state
        elif what == "look":
            assert isinstance(ctx.state, dict)
        elif what != "blind":
            ctx.state[what] = 1


def _states(driver: IntervalDriver) -> list[tuple[bytes, bytes]]:
    return [row for blob in driver.entries for row in decode_entry(blob, "entry").states]


def _flush(driver: IntervalDriver) -> None:
    for flush in driver.take(FlushStates):
        driver.handle(StatesFlushed(flush.number))


@pytest.mark.guarantee("G12", section="4.4")
@pytest.mark.parametrize("what", ["take", "del"])
def test_a_state_that_becomes_its_default_loses_row_and_cell(what: str) -> None:
    driver = IntervalDriver(Keeps(), settings=_NOW)
    driver.deliver(("k", "a", 1))
    driver.commit_all()
    _flush(driver)
    assert b"k" in driver.state.cells
    driver.deliver(("k", what, 2))
    driver.commit_all()
    assert _states(driver)[-1] == (b"k", b"")
    (flush,) = driver.take(FlushStates)
    assert [(row.key, row.blob) for row in flush.rows] == [(b"k", b"")]
    assert b"k" in driver.state.cells, "until its row is written, its cell alone knows that it has none"
    driver.handle(StatesFlushed(flush.number))
    assert b"k" not in driver.state.cells
    assert driver.state.cells.bytes_held == 0
    successor = IntervalDriver(Keeps(), settings=_NOW, entries=driver.entries)
    successor.position = driver.position
    successor.deliver(("k", "b", 3))
    successor.commit_all()
    assert _states(successor)[-1] == (b"k", msgspec.msgpack.encode({"b": 1}))


@pytest.mark.paper(section="4.4")
@pytest.mark.parametrize("what", ["look", "take", "blind"])
def test_a_key_that_never_had_a_state_leaves_nothing(what: str) -> None:
    driver = IntervalDriver(Keeps(), settings=_NOW)
    driver.deliver(("k", what, 1), ("k", what, 2))
    driver.commit_all()
    assert _states(driver) == []
    assert not driver.take(FlushStates)
    assert len(driver.state.cells) == driver.state.cells.bytes_held == 0


@pytest.mark.guarantee("G12", section="8.3")
def test_a_cell_that_a_batch_uses_stays_until_that_is_sealed() -> None:
    driver = IntervalDriver(Keeps(), settings=_NOW)
    driver.deliver(("k", "a", 1))
    driver.commit_all()
    _flush(driver)
    driver.deliver(("k", "take", 2))
    driver.commit_all()
    driver.deliver(("j", "a", 3))  # its append is in flight, so that what comes next waits in a batch
    driver.deliver(("k", "b", 4))
    _flush(driver)
    assert b"k" in driver.state.cells
    driver.commit_all()
    assert _states(driver)[-1] == (b"k", msgspec.msgpack.encode({"b": 1}))
    driver.deliver(("k", "look", 5))
    driver.commit_all()
    assert _states(driver)[-1] == (b"k", msgspec.msgpack.encode({"b": 1}))


@pytest.mark.paper(section="8.3")
def test_once_cells_were_evicted_one_without_state_saves_a_read() -> None:
    driver = IntervalDriver(Keeps(), settings=_NOW)
    driver.deliver(("k", "a", 1))
    driver.commit_all()
    _flush(driver)
    driver.state.cells.evicted = True
    driver.deliver(("k", "take", 2))
    driver.commit_all()
    _flush(driver)
    assert b"k" in driver.state.cells
    driver.deliver(("k", "b", 3))
    assert driver.take(AppendEntry)


@pytest.mark.paper(section="4.4")
def test_a_default_that_differs_from_key_to_key_is_kept() -> None:
    class Numbers(mw.Computation[tuple[str, str], Drawn]):
        def process_record(self, ctx: mw.Context[Drawn], record: mw.Record[tuple[str, str]]) -> None:
            ctx.produce("out", str(ctx.state.number))

    driver = IntervalDriver(Numbers())
    for number in range(3):
        driver.deliver(("k", "", number))
        driver.commit_all()
    (first, *others) = [value for value, _ in driver.sent()]
    assert others == [first, first]


@pytest.mark.paper(section="4.4")
def test_a_migrated_state_that_is_the_new_default_is_none() -> None:
    class Now(mw.Computation[tuple[str, str], dict[str, int]]):
        state_version = 2

        def migrate(self, stored: mw.StoredState) -> dict[str, int]:
            return {name: 1 for name in stored.read(dict[str, int]) if name != "a"}

        def process_record(self, ctx: mw.Context[dict[str, int]], record: mw.Record[tuple[str, str]]) -> None:
            ctx.produce("out", ",".join(ctx.state))

    before = IntervalDriver(Keeps())
    before.deliver(("k", "a", 1), ("j", "b", 2))
    before.commit_all()
    driver = IntervalDriver(Now(), settings=_NOW, entries=before.entries)
    driver.position = before.position
    for at in (3, 4):
        driver.deliver(("k", "", at), ("j", "", at))
        driver.commit_all()
    assert sorted(value for value, _ in driver.sent()) == ["", "", "b", "b"]
    assert [key for key, blob in _states(driver)[-2:] if not blob] == [b"k"]


class Counted(msgspec.Struct):
    """The state of a window."""

    ends: dict[int, int] = {}
    total: int = 0


class Windows(mw.Computation[str, Counted]):
    """Keeps a window of its key, and no state after it."""

    def process_record(self, ctx: mw.Context[Counted], record: mw.Record[str]) -> None:
        ctx.state.ends[record.timestamp + 10] = 1
        ctx.state.total += 1
        ctx.set_timer(mw.Timestamp(record.timestamp + 10), str(record.timestamp))

    def process_timer(self, ctx: mw.Context[Counted], timer: mw.Timer) -> None:
        ctx.state.total -= ctx.state.ends.pop(timer.timestamp)


@pytest.mark.guarantee("G13", section="8.3")
def test_keys_that_come_and_go_leave_no_rows_and_no_cells() -> None:
    topology = mw.Topology("passing")
    topology.source("in", str)
    topology.add(Windows, inputs={"in": mw.key(lambda value: value)})
    harness = TopologyHarness(topology)
    for number in range(40):
        records: list[tuple[Any, mw.Timestamp]] = [(f"{number}-{one}", mw.Timestamp(number * 100)) for one in range(50)]
        harness.send_all("in", records)
        harness.advance(mw.Timestamp(number * 100 + 50))
    harness.finish()
    harness.advance_clock(mw.minutes(5))
    (core,) = cluster_of(harness).cores_of("windows")
    assert len(core.state.cells) == 0
    states = harness.store.states[core.state.config.incarnation]  # scans show no empty rows
    assert len(states) == 2_000
    assert not [row for row in states.values() if row.blob]
    harness.crash()
    assert harness.state("windows", "3-3") is None
