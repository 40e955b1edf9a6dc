"""An interval's owner lists its keys and timers, in pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.model.page_keys import page_key
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import common_pb2 as common
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.store.contract import CorruptValueError, PartId, StateRow
from millwheel.store.memory import MemoryStore
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.entry import encode_part
from millwheel.worker.interval.spilled_timers import SpilledPart
from millwheel.worker.process.listings import KeyListing, TimerListing, page_size
from millwheel.worker.process.owned_states import OwnedStates
from tests.worker.interval.column_windows import Results, counting
from tests.worker.interval.driver import IntervalDriver
from tests.worker.test_inspection import service

ID = IncarnationId("test.1")
JOURNAL = "test.1.j1"


class Timed(mw.Computation[tuple[str, str], int]):
    """Counts. Sets a timer for a number, in wall time with a minus; "drop" deletes the state."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        ctx.state += 1
        if what == "drop":
            del ctx.state
        elif what:
            domain = mw.TimeDomain.PROCESSING_TIME if int(what) < 0 else mw.TimeDomain.EVENT_TIME
            ctx.set_timer(mw.Timestamp(abs(int(what))), f"t{what}", domain=domain)

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        """Do nothing."""


class Damaged(MemoryStore):
    """A store in which the row of "bad" cannot be read."""

    async def read_states(self, incarnation: IncarnationId, keys: Any) -> Any:
        if b"bad" in keys:
            raise CorruptValueError("row of key b'bad'", "its checksum does not match")
        return await super().read_states(incarnation, keys)


def filled(*records: tuple[str, str, int], keys: KeyInterval | None = None) -> IntervalDriver:
    driver = IntervalDriver(Timed(), keys=keys) if keys is not None else IntervalDriver(Timed())
    for start in range(0, len(records), 500):
        driver.deliver(*records[start : start + 500])
        driver.commit_all()
    return driver


def evicted(driver: IntervalDriver, store: MemoryStore, rows: dict[bytes, bytes]) -> None:
    """Rows whose keys have no cell."""
    driver.state.cells.evicted = True
    store.states[ID] = {key: StateRow(key, 1, blob) for key, blob in rows.items()}


async def all_keys(
    driver: IntervalDriver, store: MemoryStore, size: int, within: common.KeyInterval | None = None
) -> list[wire.ListedKey]:
    found: list[wire.ListedKey] = []
    request = wire.ListKeysRequest(journal=JOURNAL, page_size=size, keys=within)
    while True:
        page = await service(driver, store).ListKeys(request, None)
        assert len(page.keys) <= size
        found += page.keys
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_keys_of_memory_and_of_the_store_are_listed_in_order(size: int) -> None:
    driver = filled(("m", "", 1), ("b", "5", 1), ("c", "drop", 1), ("z", "7", 1), ("z", "drop", 1))
    store = MemoryStore()
    rows = {b"a": b"12", b"b": b"old", b"n": b"", b"": b"1", b"m": b"older"}
    pages = {page_key(key, number): b"page" for key in (b"", b"a", b"m") for number in range(1, 40)}
    evicted(driver, store, rows | pages | {b"m2": b"345"})
    listed = await all_keys(driver, store, size)
    sizes = {one.key: one.state_bytes for one in listed}
    assert list(sizes) == [b"", b"a", b"b", b"m", b"m2", b"z"]
    assert (sizes[b""], sizes[b"a"], sizes[b"b"], sizes[b"m2"], sizes[b"z"]) == (1, 2, 1, 3, 0)
    assert {one.key: one.timers for one in listed if one.timers} == {b"b": 1, b"z": 1}


async def test_only_keys_within_the_bounds_are_listed() -> None:
    driver, store = filled(*[(f"k{number:04}", "", 1) for number in range(5_000)]), MemoryStore()
    within = common.KeyInterval(start=b"k0100", end=b"k0103")
    assert [one.key for one in await all_keys(driver, store, 2, within)] == [b"k0100", b"k0101", b"k0102"]
    assert len(await all_keys(driver, store, 1_000)) == 5_000
    assert await all_keys(driver, store, 2, common.KeyInterval(start=b"l")) == []
    assert not (await service(driver).ListKeys(wire.ListKeysRequest(journal=JOURNAL, page_size=5_000), None)).keys[
        1_000:
    ]


class Evicting(MemoryStore):
    """A store whose reader evicts the cell of "a" meanwhile. Its row is written."""

    driver: IntervalDriver

    async def read_states(self, incarnation: IncarnationId, keys: Any) -> Any:
        cells = self.driver.state.cells
        if (cell := cells.peek(b"a")) is not None:
            cells.flushed([cell], [StateRow(b"a", cell.dirty, cell.encoded)])
            self.states[ID][b"a"] = StateRow(b"a", 1, cell.encoded)
            cells.evict(b"a")
        return await super().read_states(incarnation, keys)


async def test_a_key_that_is_evicted_meanwhile_is_listed() -> None:
    driver, store = filled(("a", "", 1), ("m", "", 1)), Evicting()
    store.driver = driver
    evicted(driver, store, {b"b": b"1", b"c": b"1"})
    assert [one.key for one in await all_keys(driver, store, 10)] == [b"a", b"b", b"c", b"m"]
    assert b"a" not in driver.state.cells


class CountingStore(MemoryStore):
    """Counts the calls that list rows."""

    lists = 0

    async def list_states(self, incarnation: IncarnationId, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        self.lists += 1
        return await super().list_states(incarnation, start, end, limit)


@pytest.mark.parametrize("pages", [3, 30])
async def test_a_page_of_growing_states_reads_few_stretches(pages: int) -> None:
    driver, store = filled(("a", "", 1)), CountingStore()
    keys = {b"k%04d" % number: b"1" for number in range(200)}
    evicted(driver, store, keys | {page_key(key, one): b"page" for key in keys for one in range(1, pages)})
    page = await service(driver, store).ListKeys(wire.ListKeysRequest(journal=JOURNAL, page_size=150), None)
    assert store.lists <= 16
    assert page.keys
    assert page.next_page_token
    assert [one.key for one in await all_keys(driver, store, 150)] == [b"a", *keys]


class Moving(MemoryStore):
    """A store that takes so long that the owner's timers have moved to another part."""

    driver: IntervalDriver
    reads = 0

    async def read_parts(self, journal: str, parts: Any) -> Any:
        self.reads += 1
        spilled = self.driver.state.timers.spilled
        (part,) = spilled.parts.values()
        del spilled.parts[part.rows]
        part.rows = PartId(part.rows.name, part.rows.sequencer, part.rows.commit + 1)
        spilled.parts[part.rows] = part
        return [encode_part([])]


async def test_timers_that_move_all_the_time_end_the_listing() -> None:
    driver, store = filled(), Moving()
    store.driver = driver
    driver.state.timers.spilled.add(SpilledPart.from_rows(1, 7, 1, [(b"k", False, "t", 9, None, 1, 1)], None))
    with pytest.raises(RequestError, match="go to the store and come back"):
        await TimerListing(store).page(driver.core, None, 10, "")
    assert store.reads < 20


class Spilled(MemoryStore):
    """A store with one part of spilled timers."""

    def __init__(self, rows: Sequence[Any]) -> None:
        super().__init__()
        self.part = SpilledPart.from_rows(1, 7, 1, rows[:1], None)
        self._blob = encode_part(rows)

    async def read_parts(self, journal: str, parts: Any) -> Any:
        assert list(parts) == [self.part.rows]
        return [self._blob]


async def test_other_work_runs_while_a_large_part_is_listed() -> None:
    driver = filled()
    store = Spilled([(b"k", False, str(number), number, None, 1, 1) for number in range(20_000)])
    driver.state.timers.spilled.add(store.part)
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(work())
    page = await TimerListing(store).page(driver.core, None, 3, "")
    other.cancel()
    assert [one.timer.timestamp_us for one in page.timers] == [0, 1, 2]
    assert turns >= 9, "20,000 timers are ten slices"


async def test_a_damaged_timer_within_a_part_is_named() -> None:
    driver = filled()
    store = Spilled([(b"k", False, "t", 9, None, 1, 1), (b"k", False, "t", "noon", None, 1, 1)])
    driver.state.timers.spilled.add(store.part)
    with pytest.raises(CorruptValueError, match="base part far/rows/1: not a row of a base part: Expected `int`"):
        await TimerListing(store).page(driver.core, None, 10, "")


async def test_rows_of_other_intervals_are_not_listed() -> None:
    driver, store = filled(("d", "", 1), keys=KeyInterval(b"c", b"e")), MemoryStore()
    evicted(driver, store, {b"b": b"1", b"c": b"1", b"e": b"1"})
    assert [one.key for one in await all_keys(driver, store, 10)] == [b"c", b"d"]


async def test_a_damaged_row_is_listed_as_damaged() -> None:
    driver, store = filled(("a", "", 1)), Damaged()
    evicted(driver, store, {b"bad": b"1", b"good": b"12"})
    listed = await all_keys(driver, store, 10)
    assert [(one.key, one.state_bytes, one.damaged) for one in listed] == [
        (b"a", 1, False),
        (b"bad", 0, True),
        (b"good", 2, False),
    ]


async def test_timers_of_both_clocks_are_listed_in_time_order() -> None:
    driver = filled(("b", "5000000", 1), ("a", "-7000000", 1), ("a", "6000000", 1), ("c", "5000000", 1))
    driver.watermark(3_000_000)
    request = wire.ListTimersRequest(journal=JOURNAL, page_size=2)
    first = await service(driver).ListTimers(request, None)
    request.page_token = first.next_page_token
    second = await service(driver).ListTimers(request, None)
    found = [(one.timer.timestamp_us, one.key, one.timer.wall_time) for one in [*first.timers, *second.timers]]
    assert found == [
        (5_000_000, b"b", False),
        (5_000_000, b"c", False),
        (6_000_000, b"a", False),
        (7_000_000, b"a", True),
    ]
    assert (first.input_watermark_us, second.next_page_token) == (3_000_000, "")
    of_key = await service(driver).ListTimers(wire.ListTimersRequest(journal=JOURNAL, key=b"c"), None)
    assert [one.timer.tag for one in of_key.timers] == ["t5000000"]


@pytest.mark.guarantee("G8", section="7.1")
async def test_panes_are_listed_window_by_window() -> None:
    """Other work runs meanwhile. A key in two windows, or with a state beside a pane, has each of its timers once."""
    driver = IntervalDriver(counting(Results()), settings=IntervalSettings(columns_from=2), outputs={})
    driver.deliver(("c", "", 501))
    driver.commit_all()
    records = [(key, "", 10 * window) for window in range(50) for key in "cab"]
    driver.deliver(*records)
    driver.commit_all()
    runs = 0

    async def run() -> None:
        nonlocal runs
        while True:
            runs += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(run())
    listing, token = TimerListing(MemoryStore()), ""
    found: list[tuple[int, bytes, str]] = []
    while True:
        page = await listing.page(driver.core, None, 40, token)
        found += [(one.timer.timestamp_us, one.key, one.timer.tag) for one in page.timers]
        if not (token := page.next_page_token):
            break
    assert runs >= 50
    of_a = await listing.page(driver.core, b"a", 100, "")
    owned = OwnedStates(lambda *_: JOURNAL, lambda _: driver.core, lambda _: "", MemoryStore())
    keys, _ = await KeyListing(owned, MemoryStore()).keys(driver.core, KeyInterval(b"", None), 100, "")
    other.cancel()
    ends = [
        (10 * window + 10, key, f"{10 * window}/{10 * window + 10}")
        for window in range(50)
        for key in (b"a", b"b", b"c")
    ]
    assert found == [*ends, (510, b"c", "500/510")]
    assert len(of_a.timers) == 50
    assert keys == [b"a", b"b", b"c"]


async def test_a_page_shows_only_what_is_committed() -> None:
    driver = IntervalDriver(Timed())
    driver.deliver(("a", "5", 1))
    with pytest.raises(ConnectionAbortedError, match="the store has not taken commit 1"):
        await refused(driver, wire.ListKeysRequest(journal=JOURNAL))
    driver.commit_all()
    assert len((await service(driver).ListKeys(wire.ListKeysRequest(journal=JOURNAL), None)).keys) == 1


async def test_other_work_runs_while_states_are_decoded() -> None:
    """A page of 1,000 short states would hold everything up that the worker does."""
    driver, store = filled(*[(f"k{number:03}", "", 1) for number in range(100)]), MemoryStore()
    owned = OwnedStates(lambda *_: JOURNAL, lambda _: driver.core, lambda _: "", store)
    page = asyncio.ensure_future(KeyListing(owned, store).page(driver.core, KeyInterval(), 100, "", states=True))
    turns = 0
    while not page.done():
        await asyncio.sleep(0)
        turns += 1
    assert [one.state_text for one in (await page).keys] == ["1"] * 100
    assert turns >= 6


async def test_a_bad_request_is_refused() -> None:
    driver = filled(("a", "", 1))
    for token in ("x", "ff"):
        with pytest.raises(RequestError, match="the page token is not one that this server gave"):
            await TimerListing(MemoryStore()).page(driver.core, None, 1, token)
    owned = OwnedStates(lambda *_: JOURNAL, lambda _: driver.core, lambda _: "", MemoryStore())
    with pytest.raises(RequestError, match="the page token is not one that this server gave"):
        await KeyListing(owned, MemoryStore()).page(driver.core, KeyInterval(), 1, "0")
    assert [page_size(asked) for asked in (-1, 0, 1, 5_000)] == [100, 100, 1, 1_000]


class Context:
    """A call's context. Its end is an error here."""

    async def abort(self, code: Any, details: str, metadata: Any) -> None:
        raise ConnectionAbortedError(details)


async def refused(driver: IntervalDriver, request: wire.ListKeysRequest) -> None:
    await service(driver, append_seconds=0).ListKeys(request, Context())
