"""One interval with states that grow: which pages hooks read, what they cost, and who has them (section 4.4)."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.page_keys import is_page_key, row_owner
from millwheel.model.time import seconds
from millwheel.rpc.v1.inspection_pb2 import GetWorkerLoadResponse, InspectKeyRequest
from millwheel.store.contract import JournalHead, StateRow
from millwheel.store.memory import MemoryStore
from millwheel.testing.store_effects import result_of
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval import pages as interval_pages
from millwheel.worker.messages import (
    FlushStates,
    HookFailed,
    OpenedParent,
    Parent,
    ReadStates,
    StatesFlushed,
    StatesRead,
    Tick,
)
from millwheel.worker.shell.inspection import InspectionService
from millwheel.worker.shell.owned_states import OwnedStates
from tests.worker.interval.solo import Solo


class Lists(mw.GrowingState):
    calls: int = 0
    items: mw.ListState[str]


class Appender(mw.Computation[tuple[str, str], Lists]):
    """Appends; "sum" reads all, "last" the last, "first" the first, "del" deletes the state."""

    def __init__(self) -> None:
        self.runs = 0

    def process_record(self, ctx: mw.Context[Lists], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        self.runs += 1
        ctx.state.calls += 1
        if what == "sum":
            ctx.produce("out", f"{len(list(ctx.state.items))}")
        elif what == "last":
            ctx.produce("out", ctx.state.items[-1])
        elif what == "first":
            ctx.produce("out", ctx.state.items[0])
        elif what == "del":
            del ctx.state
        else:
            ctx.state.items.append(what)


class Rows:
    """The store of one interval: rows by key, which are written when asked for."""

    def __init__(self, solo: Solo) -> None:
        self.solo = solo
        self.rows: dict[bytes, StateRow] = {}
        self.reads: list[list[bytes]] = []

    def settle(self) -> None:
        """Commit, flush and read until nothing waits."""
        solo = self.solo
        for _ in range(500):
            solo.commit_all()
            solo.now += 2_000_000
            solo.handle(Tick())
            flushes, reads = solo.take(FlushStates), solo.take(ReadStates)
            for flush in flushes:
                self.rows.update((row.key, row) for row in flush.rows)
                solo.handle(StatesFlushed(flush.number))
            for read in reads:
                self.reads.append(read.keys)
                rows = [row if (row := self.rows.get(key)) and row.blob else None for key in read.keys]
                solo.handle(StatesRead(read.keys, rows))
            if not (flushes or reads or solo.commit_all()):
                return
        raise AssertionError("it reads for ever")

    def forget_cells(self, keep: bytes = b"") -> None:
        """Every clean cell is evicted."""
        cells = self.solo.state.cells
        for key in [key for key, cell in cells.items() if not cell.dirty and key != keep]:
            cells.evict(key)

    def pages(self) -> set[bytes]:
        return {key for key, row in self.rows.items() if is_page_key(key) and row.blob}


def filled(count: int = 300, **options: Any) -> Rows:
    """An interval whose key has ``count`` elements of 50 bytes in stored pages."""
    rows = Rows(Solo(Appender(), **options))
    rows.solo.deliver(*[("k", f"{number:050}", number) for number in range(count)])
    rows.settle()
    return rows


@pytest.mark.guarantee("G13", section="8.3")
def test_a_hook_reads_the_pages_that_it_needs_and_no_others() -> None:
    rows = filled(2_000)
    assert len(rows.pages()) > 25
    for what, most in (("last", 3), ("one more", 3), ("first", 3)):
        rows.forget_cells()
        rows.reads.clear()
        rows.solo.deliver(("k", what, 1))
        rows.settle()
        assert 2 <= len([key for read in rows.reads for key in read]) <= most
    assert [what for what, _ in rows.solo.sent()] == [f"{1999:050}", f"{0:050}"]


@pytest.mark.guarantee("G8", section="8.3")
def test_a_hook_advances_however_small_the_cache_is() -> None:
    rows = filled(1_000, settings=IntervalSettings(cache_bytes=1))
    rows.solo.deliver(("k", "sum", 1), ("k", "first", 2), ("k", "last", 3))
    rows.settle()
    assert rows.solo.sent() == [("1000", 1), (f"{0:050}", 2), (f"{999:050}", 3)]
    rows.solo.handle(Tick())
    assert rows.solo.state.cells.pages == 0, "nothing keeps pages in memory afterwards"


def test_a_scan_of_stored_pages_takes_a_few_reads() -> None:
    rows = filled(5_000)
    rows.forget_cells()
    rows.reads.clear()
    rows.solo.deliver(("k", "sum", 1))
    rows.settle()
    assert rows.solo.sent() == [("5000", 1)]
    assert {key for read in rows.reads for key in read} == {b"k", *rows.pages()}
    assert len(rows.reads) < 10


@pytest.mark.guarantee("G13")
def test_hooks_that_miss_pages_run_a_few_times_each() -> None:
    """Work that is undone for a page runs alone, so a batch of misses does not run its hooks again and again."""
    rows = filled(3_000)
    rows.forget_cells()
    appender = rows.solo.state.program.computation
    assert isinstance(appender, Appender)
    appender.runs = 0
    rows.solo.deliver(*[("k", ["first", "last", "x"][number % 3], number) for number in range(300)])
    rows.settle()
    assert len(rows.solo.sent()) == 200
    assert appender.runs < 320


def test_more_than_half_of_the_cache_is_not_read_by_one_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval_pages, "_LEAST_READABLE", 40_000)
    rows = filled(3_000, settings=IntervalSettings(cache_bytes=1), on_failure=mw.dead_letter(after=1))
    rows.forget_cells()
    rows.solo.deliver(("k", "sum", 1), ("k", "last", 2))
    rows.settle()
    (failed,) = rows.solo.take(HookFailed)
    assert "what a hook of key 'k' reads of its state has" in failed.message
    assert "read a slice in each of several hooks" in failed.message
    assert (f"{2999:050}", 2) in rows.solo.sent()


def test_a_damaged_page_fails_its_key_alone() -> None:
    rows = filled(400, on_failure=mw.retry(initial=seconds(1)))
    rows.solo.deliver(("j", "x", 1))
    rows.settle()
    rows.forget_cells()
    bad = dict.fromkeys(rows.pages(), "a bad checksum")
    rows.solo.deliver(("k", "sum", 1), ("k", "x", 2), ("j", "last", 3))
    rows.solo.now += 1
    for read in rows.solo.take(ReadStates):
        rows.solo.handle(StatesRead(read.keys, [rows.rows.get(key) for key in read.keys]))
    (read,) = rows.solo.take(ReadStates)
    assert set(read.keys) <= bad.keys()
    rows.solo.handle(StatesRead(read.keys, [None] * len(read.keys), dict.fromkeys(read.keys, "a bad checksum")))
    (failed,) = rows.solo.take(HookFailed)
    assert "a bad checksum" in failed.message
    assert "attempt 1" in failed.message
    rows.settle()
    assert rows.solo.sent() == [("x", 3), ("400", 1)], "the page is read again; its replica was repaired"
    assert rows.solo.core.damaged_rows == {}


@pytest.mark.guarantee("G2")
def test_a_deleted_state_deletes_its_pages_a_few_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval_pages, "_COLLECTED", 10)
    rows = filled(5_000)
    before, commits = len(rows.pages()), rows.solo.state.committed
    rows.forget_cells()
    rows.solo.deliver(("k", "del", 1), ("k", "new", 2))
    rows.settle()
    assert rows.solo.state.committed - commits > before // 10 // 60
    assert rows.pages() == set()
    rows.solo.deliver(("k", "sum", 3))
    rows.settle()
    assert rows.solo.sent() == [("1", 3)]


class Numbered(msgspec.Struct):
    number: int = msgspec.field(default_factory=itertools.count().__next__)


class NumberedLists(mw.GrowingState):
    made: Numbered
    items: mw.ListState[str]


class NumberedAppender(mw.Computation[tuple[str, str], NumberedLists]):
    def process_record(self, ctx: mw.Context[NumberedLists], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] == "del":
            del ctx.state
        else:
            ctx.state.items.append(record.value[1])


@pytest.mark.parametrize("count", [1, 2_000])
def test_a_deleted_state_has_no_row_though_its_default_varies(count: int) -> None:
    rows = Rows(Solo(NumberedAppender(), settings=IntervalSettings(cache_bytes=1)))
    rows.solo.deliver(*[("k", f"{number:050}", number) for number in range(count)])
    rows.settle()
    assert rows.rows[b"k"].blob
    rows.solo.deliver(("k", "del", 1))
    rows.settle()
    assert not any(row.blob for row in rows.rows.values())


@pytest.mark.guarantee("G11", section="4.2")
@pytest.mark.parametrize("flushed", [False, True])
def test_children_of_a_split_have_the_pages_of_their_keys(flushed: bool) -> None:
    """A page's row sorts above many keys; its key decides which child has it."""
    parent = Rows(Solo(Appender()))
    for key in ("k", "ka", "l"):
        parent.solo.deliver(*[(key, f"{number:050}", number) for number in range(300)])
    if flushed:
        parent.settle()
    parent.solo.commit_all()
    head = JournalHead(7, parent.solo.state.committed, 0, ())
    for keys in (KeyInterval(b"", b"ka"), KeyInterval(b"ka", None)):
        opened = OpenedParent(Parent("solo.1.j0", ALL_KEYS), head, {}, parent.solo.entries)
        child = Rows(Solo(Appender(), parents=[opened], keys=keys))
        child.rows, child.solo.position = dict(parent.rows), parent.solo.position
        mine = [key for key in ("k", "ka", "l") if key.encode() in keys]
        assert {row_owner(key).decode() for key, _ in child.solo.state.cells.items()} == set(mine)
        child.solo.deliver(*[(key, "sum", 1) for key in mine])
        child.settle()
        assert child.solo.sent() == [("300", 1)] * len(mine)


def test_inspection_shows_sizes_and_no_timer_of_its_own() -> None:
    rows = filled(5_000)
    rows.solo.deliver(("k", "del", 1), ("k", "y", 2))
    rows.solo.commit()
    store = MemoryStore()
    owned = OwnedStates(lambda computation, key: "solo.1.j1", lambda journal: rows.solo.core, lambda journal: "", store)
    service = InspectionService(owned, store, GetWorkerLoadResponse)
    request = InspectKeyRequest(incarnation=IncarnationId("solo.1"), key=b"k")
    shown = result_of(service.InspectKey(request, None))
    assert shown.state_text == '{"calls":1,"items":{"elements":1,"page_levels":0}}'
    assert list(shown.timers) == []


def test_a_state_is_emptied_and_not_replaced() -> None:
    class Replacing(mw.Computation[tuple[str, str], Lists]):
        def process_record(self, ctx: mw.Context[Lists], record: mw.Record[tuple[str, str]]) -> None:
            ctx.state = Lists()

    solo = Solo(Replacing())
    solo.deliver(("k", "x", 1))
    (failed,) = solo.take(HookFailed)
    assert "replaces a growing state: set its fields, and use `del ctx.state` to empty it" in failed.message


def test_a_batch_of_changed_pages_has_a_limit() -> None:
    """Changed pages count in the size of a commit, like productions."""
    solo = Solo(Appender(), settings=IntervalSettings(batch_bytes=20_000))
    solo.deliver(*[(f"k{key}", "x" * 900, 1) for key in range(100) for _ in range(3)])
    assert solo.commit_all() > 10
