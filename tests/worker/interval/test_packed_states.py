"""States that nothing uses are packed, and rows that were read at once run in one pass (section 8.3; G12, G13)."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.store.contract import StateRow
from millwheel.windows.result import Row
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.cache.cells import CellCache
from millwheel.worker.interval.intake import IntervalIntake
from millwheel.worker.messages import FlushStates, ReadStates, StatesFlushed, StatesRead, Tick
from tests.worker.interval.column_windows import Results, driver_of, opened, read_states
from tests.worker.interval.driver import IntervalDriver

_KEYS = 60
_SLICE = 7


class Tags(mw.Computation[tuple[str, str], list[str]]):
    """Keeps what its key got, and produces all of it."""

    def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state.append(record.value[1])
        ctx.produce("out", ctx.key + "".join(ctx.state))


def _driver(cache_bytes: int) -> IntervalDriver:
    """An interval whose keys each have the state ["a"], with acknowledged rows."""
    settings = IntervalSettings(cache_bytes=cache_bytes, flush_slice=_SLICE)
    driver = IntervalDriver(Tags(), settings=settings)
    driver.deliver(*((f"k{number:02}", "a", number) for number in range(_KEYS)))
    driver.commit_all()
    _flush(driver)
    driver.sent()
    return driver


def _flush(driver: IntervalDriver) -> None:
    driver.now += 60_000_000
    flushes: list[Any] = []
    while not flushes:
        driver.handle(Tick())
        flushes = driver.take(FlushStates)
    driver.handle(StatesFlushed(flushes[0].number))
    while driver.state.cells.dirty_count:
        assert driver.core.next_deadline() == driver.now, "the next slice waits for no other event (G8)"
        driver.handle(Tick())


@pytest.mark.guarantee("G12", section="8.3")
def test_a_packed_state_is_what_its_next_hook_sees() -> None:
    driver = _driver(cache_bytes=30_000)
    cells = driver.state.cells
    assert cells.packed_count > _KEYS // 4, "those beyond half of the limit"
    assert not cells.evicted, "packing was enough"
    driver.deliver(*((f"k{number:02}", "b", 100) for number in range(_KEYS)))
    driver.commit_all()
    assert not driver.take(ReadStates), "it is in memory"
    assert [text for text, _ in driver.sent()] == [f"k{number:02}ab" for number in range(_KEYS)]
    assert cells.packed_count == 0


@pytest.mark.guarantee("G13", section="8.3")
def test_states_that_fit_when_packed_are_not_evicted() -> None:
    """They are packed slice by slice, and are over the limit meanwhile."""
    cells = _driver(cache_bytes=15_000).state.cells
    assert cells.packed_count > 0
    assert (len(cells), cells.evicted) == (_KEYS, False)


@pytest.mark.paper(section="8.3")
def test_states_are_not_packed_while_there_is_room() -> None:
    driver = _driver(cache_bytes=1 << 20)
    assert driver.state.cells.packed_count == 0


@pytest.mark.guarantee("G13", section="8.3")
def test_a_packed_state_takes_two_hundred_bytes() -> None:
    """Beside its encoding. The cache counts about what Python has: else its limit would mean nothing."""
    count = 10_000
    tracemalloc.start()
    try:
        cache = CellCache(1 << 40, evicted=False)
        for number in range(count):
            cache.insert(b"key-%08d" % number, number.to_bytes(8, "big"))
        cache.pack_clean(())
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.packed_count == count
    assert used / count <= 208
    assert used / 1.4 <= cache.bytes_held <= used * 1.4


@pytest.mark.paper(section="8.3")
@pytest.mark.parametrize(("evicted", "order"), [(False, b"abc"), (True, b"bca")])
def test_what_is_packed_goes_to_the_end_once_states_leave(evicted: bool, order: bytes) -> None:
    """So it is evicted last. Before, no order is needed, and the dict need not be built again."""
    cache = CellCache(1, evicted=evicted)
    for key in (b"a", b"b", b"c"):
        cache.insert(key, b"x")
    cache.pack_clean(())
    cache.changed([(b"a", b"y")], 1)
    cells = cache.take_dirty()
    cache.flushed(cells, cache.rows_of(cells))
    assert b"".join(key for key, _ in cache.packed()) == order


@pytest.mark.guarantee("G5", section="4.1")
def test_records_whose_rows_are_read_at_once_run_in_one_pass() -> None:
    """They return to the queue together: in one run for each delivery, and not in one for each key."""
    driver = _driver(cache_bytes=1 << 20)
    for number in range(_KEYS):
        driver.state.cells.evict(b"k%02d" % number)
    for tag in "bc":
        driver.deliver(*((f"k{number:02}", tag, 100) for number in range(_KEYS)))
    (read,) = driver.take(ReadStates)
    assert len(read.keys) == _KEYS
    driver.handle(StatesRead(read.keys, [StateRow(key, 1, msgspec.msgpack.encode(["a"])) for key in read.keys]))
    driver.commit_all()
    sent = [text for text, _ in driver.sent()]
    assert sorted(sent) == sorted(f"k{number:02}{tags}" for number in range(_KEYS) for tags in ("ab", "abc"))
    for number in range(_KEYS):
        assert sent.index(f"k{number:02}ab") < sent.index(f"k{number:02}abc"), "the records of a key keep their order"


@pytest.mark.guarantee("G5", section="4.1")
def test_returning_records_are_grouped_and_keep_their_order() -> None:
    driver = _driver(cache_bytes=1 << 20)
    for number in range(3):
        driver.state.cells.evict(b"k%02d" % number)
    driver.deliver(("k00", "b", 100), ("k01", "b", 100), ("k00", "c", 100))
    driver.deliver(("k01", "c", 100), ("k02", "b", 100))
    waiting = {key: list(blocked.items) for key, blocked in driver.state.blocked.keys.items()}
    (first, _), (second, _) = waiting[b"k00"][0], waiting[b"k02"][0]
    together = IntervalIntake()
    together.requeue([item for items in waiting.values() for item in items])
    assert [(one.receipt, one.indexes) for one in together.queue] == [(first, [0, 1, 2]), (second, [0, 1])]
    crossed = IntervalIntake()
    crossed.requeue([*waiting[b"k02"], *waiting[b"k01"]])
    assert [(one.receipt, one.indexes) for one in crossed.queue] == [(second, [1]), (first, [1]), (second, [0])]


def _number(value: tuple[str, str]) -> int:
    return int(value[1])


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize("columns_from", [0, 3, 9])
def test_returning_records_are_added_with_their_own_values(columns_from: int) -> None:
    """Three records wait behind hooks of their two keys, and return at once: all records of a delivery."""
    mean = agg.mean(_number).bind(tuple[str, str])
    means = windows.Aggregate(windows.tumbling(mw.Duration(10)), mean, output="out", row=Row(str, Results()))
    driver = IntervalDriver(means, settings=IntervalSettings(columns_from=columns_from), outputs={})
    driver.deliver(("z", "0", 1))
    driver.deliver(("a", "1", 1), ("b", "1", 1))
    driver.deliver(("a", "1", 11), ("b", "100", 11), ("a", "10", 11))
    driver.commit_all()
    driver.watermark(20)
    driver.commit_all()
    sent = sorted(text for text, _ in driver.sent())
    assert sent == ["a 0-10 1.0", "a 10-20 5.5", "b 0-10 1.0", "b 10-20 100.0", "z 0-10 0.0"]


@pytest.mark.guarantee("G13", section="4.2")
def test_states_leave_room_for_panes() -> None:
    """Panes come first here, up to the limit of the cache. States behind them get a quarter beside."""
    limit = 100_000
    driver = driver_of(Results(), IntervalSettings(columns_from=100, cache_bytes=limit, batch_records=1_000))
    for number in range(6):
        driver.deliver(*((f"k{number}{place:03}", "", 1) for place in range(200)))
        driver.commit_all()
        read_states(driver)
    cells, panes = driver.state.cells, driver.state.panes
    assert panes.bytes > limit * 3 // 4
    for number in range(40):
        driver.deliver(*((f"s{number:02}{place:02}", "", 1) for place in range(50)))
        driver.commit_all()
        read_states(driver)
        driver.commit_all()
        driver.now += 60_000_000
        driver.handle(Tick())
        for flush in driver.take(FlushStates):
            driver.handle(StatesFlushed(flush.number))
    while driver.core.next_deadline() == driver.now:
        driver.handle(Tick())
    assert cells.evicted
    assert cells.bytes_held <= cells.limit_bytes == limit // 4


@pytest.mark.guarantee("G13", section="4.2")
def test_the_lengths_of_keys_count_as_memory_of_panes() -> None:
    driver = driver_of(Results())
    for window in (1, 11):
        driver.deliver(*((f"{place:03}" + "x" * 4_000, "", window) for place in range(50)))
        driver.commit_all()
    assert driver.state.panes.bytes > 2 * 50 * 4_003
    assert opened(driver).state.panes.bytes > 2 * 50 * 4_003, "after a takeover, too"
    driver.watermark(20)
    driver.commit_all()
    assert driver.state.panes.bytes == 0
