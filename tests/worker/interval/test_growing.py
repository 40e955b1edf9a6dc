"""One interval with growing states: the pages that hooks read, their cost, and their owners (section 4.4)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.page_keys import is_page_key, row_owner
from millwheel.model.time import seconds
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.rpc.v1.inspection_pb2 import GetWorkerLoadResponse, InspectKeyRequest
from millwheel.store.contract import JournalHead, StateRow
from millwheel.store.memory import MemoryStore
from millwheel.testing.store_effects import result_of
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.cache import pages as interval_pages
from millwheel.worker.messages import (
    AnswerDelivery,
    Delivery,
    FlushStates,
    HookFailed,
    OpenedParent,
    Parent,
    ReadStates,
    StatesFlushed,
    StatesRead,
    Tick,
)
from millwheel.worker.process.inspection import InspectionService
from millwheel.worker.process.owned_states import OwnedStates
from tests.worker.interval.driver import INJECTOR, IntervalDriver


class Lists(mw.GrowingState):
    calls: int = 0
    items: mw.ListState[str]


class Appender(mw.Computation[tuple[str, str], Lists]):
    """Appends. "sum" reads all elements, "last" the last one, "first" the first one. "del" deletes the state."""

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
    """The store of one interval: rows by key. The test performs the writes."""

    def __init__(self, driver: IntervalDriver) -> None:
        self.driver = driver
        self.rows: dict[bytes, StateRow] = {}
        self.reads: list[list[bytes]] = []

    def settle(self, damaged: Callable[[bytes], bool] = lambda key: False) -> None:
        """Commit, flush and read until nothing waits. The rows of ``damaged`` keys cannot be read."""
        driver = self.driver
        for _ in range(500):
            driver.commit_all()
            driver.now += 2_000_000
            driver.handle(Tick())
            flushes, reads = driver.take(FlushStates), driver.take(ReadStates)
            for flush in flushes:
                self.rows.update((row.key, row) for row in flush.rows)
                driver.handle(StatesFlushed(flush.number))
            for read in reads:
                self.reads.append(read.keys)
                bad = {key: "a bad checksum" for key in read.keys if damaged(key)}
                found = {key: row for key in read.keys if (row := self.rows.get(key)) and row.blob and key not in bad}
                driver.handle(StatesRead(read.keys, [found.get(key) for key in read.keys], bad))
            if not (flushes or reads or driver.commit_all()):
                return
        raise AssertionError("it reads for ever")

    def forget_cells(self, keep: bytes = b"") -> None:
        """Evict every clean cell."""
        cells = self.driver.state.cells
        for key in [key for key, cell in cells.items() if not cell.dirty and key != keep]:
            cells.evict(key)

    def pages(self) -> set[bytes]:
        return {key for key, row in self.rows.items() if is_page_key(key) and row.blob}


def filled(count: int = 300, **options: Any) -> Rows:
    """An interval whose key has ``count`` elements of 50 bytes in stored pages."""
    rows = Rows(IntervalDriver(Appender(), **options))
    rows.driver.deliver(*[("k", f"{number:050}", number) for number in range(count)])
    rows.settle()
    return rows


def children(
    keys: Sequence[str], flushed: bool, made: Callable[[], mw.Computation[Any, Any]]
) -> Iterator[tuple[Rows, KeyInterval]]:
    """Two children of a split at ``ka``, each with its keys, running ``made``. Each of ``keys`` has 300 elements."""
    parent = Rows(IntervalDriver(Appender()))
    for key in keys:
        parent.driver.deliver(*[(key, f"{number:050}", number) for number in range(300)])
    if flushed:
        parent.settle()
    parent.driver.commit_all()
    head = JournalHead(7, parent.driver.state.committed, 0, ())
    for mine in (KeyInterval(b"", b"ka"), KeyInterval(b"ka", None)):
        opened = OpenedParent(Parent("test.1.j0", ALL_KEYS), head, {}, parent.driver.entries)
        child = Rows(IntervalDriver(made(), parents=[opened], keys=mine))
        child.rows, child.driver.position = dict(parent.rows), parent.driver.position
        yield child, mine


@pytest.mark.guarantee("G13", section="8.3")
def test_a_hook_reads_the_pages_that_it_needs_and_no_others() -> None:
    rows = filled(2_000)
    assert len(rows.pages()) > 25
    for what, most in (("last", 3), ("one more", 3), ("first", 3)):
        rows.forget_cells()
        rows.reads.clear()
        rows.driver.deliver(("k", what, 1))
        rows.settle()
        assert 2 <= len([key for read in rows.reads for key in read]) <= most
    assert [what for what, _ in rows.driver.sent()] == [f"{1999:050}", f"{0:050}"]


@pytest.mark.guarantee("G8", section="8.3")
def test_a_hook_advances_however_small_the_cache_is() -> None:
    rows = filled(1_000, settings=IntervalSettings(cache_bytes=1))
    rows.driver.deliver(("k", "sum", 1), ("k", "first", 2), ("k", "last", 3))
    rows.settle()
    assert rows.driver.sent() == [("1000", 1), (f"{0:050}", 2), (f"{999:050}", 3)]
    rows.driver.handle(Tick())
    assert rows.driver.state.cells.pages == 0, "nothing keeps pages in memory afterwards"


def test_a_scan_of_stored_pages_takes_a_few_reads() -> None:
    rows = filled(5_000)
    rows.forget_cells()
    rows.reads.clear()
    rows.driver.deliver(("k", "sum", 1))
    rows.settle()
    assert rows.driver.sent() == [("5000", 1)]
    assert {key for read in rows.reads for key in read} == {b"k", *rows.pages()}
    assert len(rows.reads) < 10


@pytest.mark.guarantee("G13")
def test_hooks_that_miss_pages_run_a_few_times_each() -> None:
    """Work that is undone for a page runs alone, so a batch of misses does not run its hooks again and again."""
    rows = filled(3_000)
    rows.forget_cells()
    appender = rows.driver.state.program.computation
    assert isinstance(appender, Appender)
    appender.runs = 0
    rows.driver.deliver(*[("k", ["first", "last", "x"][number % 3], number) for number in range(300)])
    rows.settle()
    assert len(rows.driver.sent()) == 200
    assert appender.runs < 320


@pytest.mark.guarantee("G13", section="8.3")
@pytest.mark.guarantee("G8")
def test_keys_that_read_pages_share_a_budget() -> None:
    """All keys of a batch together read more pages than fit. Each key runs when its pages fit."""
    limit = 600_000
    rows = Rows(IntervalDriver(Appender(), settings=IntervalSettings(cache_bytes=limit)))
    keys = [f"k{number}" for number in range(30)]
    for key in keys:
        rows.driver.deliver(*[(key, "x" * 800, number) for number in range(150)])
        rows.settle()
    rows.driver.deliver(*[(key, "sum", 1_000) for key in keys])
    peak = 0

    def watch(key: bytes) -> bool:
        nonlocal peak
        peak = max(peak, rows.driver.state.cells.bytes_held)
        return False

    rows.reads.clear()
    rows.settle(damaged=watch)
    assert rows.driver.sent() == [("150", 1_000)] * len(keys)
    assert peak < 2 * limit, "all pages together are 12 MB in memory"
    assert max(map(len, rows.reads)) < 60


@pytest.mark.parametrize("work", [["x"] * 900 + ["first"], ["first"] + ["x"] * 900])
def test_work_before_a_miss_runs_again_in_one_commit(work: list[str]) -> None:
    rows = filled(3_000)
    rows.forget_cells()
    rows.driver.deliver(("k", "last", 1))
    rows.settle()
    appender = rows.driver.state.program.computation
    assert isinstance(appender, Appender)
    appender.runs, commits = 0, rows.driver.state.committed
    rows.driver.deliver(*[("k", what, number) for number, what in enumerate(work)])
    rows.settle()
    assert rows.driver.state.committed - commits < 4
    assert appender.runs < 2 * len(work) + 4
    assert len(rows.driver.sent()) == 2


class Ringing(Appender):
    """At "timers" it sets five timers, which append their tags. The second sets another; the last misses."""

    def process_record(self, ctx: mw.Context[Lists], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] != "timers":
            super().process_record(ctx, record)
            return
        for number, tag in enumerate("abcde"):
            ctx.set_timer(mw.Timestamp(1_000 + 10 * number), tag=tag)

    def process_timer(self, ctx: mw.Context[Lists], timer: mw.Timer) -> None:
        if timer.tag == "b":
            ctx.set_timer(mw.Timestamp(1_015), tag="b2")
        ctx.state.items.append(timer.tag)
        ctx.produce("out", f"{timer.tag} {len(ctx.state.items)} {ctx.state.items[0 if timer.tag == 'e' else -1]}")


def ringing() -> Rows:
    """A key with five timers, whose last page alone is in memory, and a key without pages."""
    rows = Rows(IntervalDriver(Ringing()))
    rows.driver.deliver(*[("k", f"{number:050}", 1) for number in range(300)])
    rows.driver.deliver(("k", "timers", 1))
    rows.settle()
    rows.forget_cells()
    rows.driver.deliver(("k", "last", 1), ("other", "x", 1))
    rows.settle()
    rows.driver.sent()
    return rows


RANG = [*(f"{tag} {301 + number} {tag}" for number, tag in enumerate(["a", "b", "b2", "c", "d"])), f"e 306 {0:050}"]


@pytest.mark.guarantee("G5", section="4.6")
@pytest.mark.guarantee("G6")
def test_timers_before_a_miss_fire_once_and_in_order() -> None:
    rows = ringing()
    commits = rows.driver.state.committed
    rows.driver.watermark(2_000)
    rows.settle()
    assert [what for what, _ in rows.driver.sent()] == RANG
    assert rows.driver.state.committed - commits <= 4


@pytest.mark.guarantee("G5", section="4.6")
def test_newly_due_timers_wait_for_what_undone_ones_set() -> None:
    """Undone work fires again in one commit, except behind a timer that one of its timers sets."""
    rows = ringing()
    rows.driver.deliver(("other", "x", 2_500))
    rows.driver.watermark(1_012)
    rows.driver.deliver(("k", "x", 3_000), ("k", "first", 3_001))
    rows.driver.watermark(2_000)
    rows.settle()
    assert [what for what, _ in rows.driver.sent()] == [*RANG, f"{0:050}"]


class Values(mw.GrowingState):
    small: mw.ListState[str]
    large: mw.ListState[bytes]


class Scanner(mw.Computation[tuple[str, str], Values]):
    """Fills both lists, or scans the first and reads one element of the second."""

    def process_record(self, ctx: mw.Context[Values], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] == "small":
            ctx.state.small.extend("s" * 800 for _ in range(500))
        elif record.value[1] == "large":
            ctx.state.large.extend(b"l" * 300_000 for _ in range(5))
        else:
            ctx.produce("out", f"{sum(1 for _ in ctx.state.small)} {len(next(iter(ctx.state.large)))}")


@pytest.mark.guarantee("G13")
def test_large_values_are_read_ahead_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is for as many pages as were read. Large values have pages of their own, so it also counts bytes."""
    monkeypatch.setattr(interval_pages, "LEAST_READABLE_BYTES", 6 << 20)
    rows = Rows(IntervalDriver(Scanner(), settings=IntervalSettings(cache_bytes=1), on_failure=mw.dead_letter(after=1)))
    for what in ["small"] * 2 + ["large"] * 5:
        rows.driver.deliver(("k", what, 1))
        rows.settle()
    rows.reads.clear()
    rows.driver.deliver(("k", "scan", 2))
    rows.settle()
    assert rows.driver.sent() == [("1000 300000", 2)]
    assert max(sum(len(rows.rows[key].blob) for key in read) for read in rows.reads) < 5 << 20


def test_more_than_half_of_the_cache_is_not_read_by_one_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval_pages, "LEAST_READABLE_BYTES", 40_000)
    rows = filled(3_000, settings=IntervalSettings(cache_bytes=1), on_failure=mw.dead_letter(after=1))
    rows.forget_cells()
    rows.driver.deliver(("k", "sum", 1), ("k", "last", 2))
    rows.settle()
    (failed,) = rows.driver.take(HookFailed)
    assert "what a hook of key 'k' reads of its state has" in failed.message
    assert "read a slice in each of several hooks" in failed.message
    assert (f"{2999:050}", 2) in rows.driver.sent()


def test_a_damaged_page_fails_its_key_alone() -> None:
    rows = filled(400, on_failure=mw.retry(initial=seconds(1)))
    rows.driver.deliver(("j", "x", 1))
    rows.settle()
    rows.forget_cells()
    bad = dict.fromkeys(rows.pages(), "a bad checksum")
    rows.driver.deliver(("k", "sum", 1), ("k", "x", 2), ("j", "last", 3))
    rows.driver.now += 1
    for read in rows.driver.take(ReadStates):
        rows.driver.handle(StatesRead(read.keys, [rows.rows.get(key) for key in read.keys]))
    (read,) = rows.driver.take(ReadStates)
    assert set(read.keys) <= bad.keys()
    rows.driver.handle(StatesRead(read.keys, [None] * len(read.keys), dict.fromkeys(read.keys, "a bad checksum")))
    (failed,) = rows.driver.take(HookFailed)
    assert "a bad checksum" in failed.message
    assert "attempt 1" in failed.message
    rows.settle()
    assert rows.driver.sent() == [("x", 3), ("400", 1)], "the page is read again; its replica was repaired"
    assert rows.driver.core.damaged_rows == {}


@pytest.mark.guarantee("G6")
def test_a_damaged_page_fails_no_timer_that_does_not_need_it() -> None:
    """A timer that becomes due while the page is read needs no page, so the failure policy does not decide about it."""

    class Ringing(Appender):
        def process_record(self, ctx: mw.Context[Lists], record: mw.Record[tuple[str, str]]) -> None:
            if record.value[1] == "timer":
                ctx.set_timer(mw.Timestamp(ctx.now + seconds(100)), domain=mw.TimeDomain.PROCESSING_TIME)
            else:
                super().process_record(ctx, record)

        def process_timer(self, ctx: mw.Context[Lists], timer: mw.Timer) -> None:
            ctx.produce("out", f"rang at {len(ctx.state.items)}")

    rows = Rows(IntervalDriver(Ringing(), on_failure=mw.dead_letter(after=1)))
    rows.driver.deliver(*[("k", f"{number:050}", number) for number in range(300)])
    rows.settle()
    rows.driver.deliver(("k", "timer", 4_000))
    rows.settle()
    rows.forget_cells(keep=b"k")
    rows.driver.deliver(("k", "first", 4_500))
    (read,) = rows.driver.take(ReadStates)
    rows.driver.now += seconds(200)
    rows.driver.handle(Tick())
    rows.driver.handle(StatesRead(read.keys, [None], {read.keys[0]: "a bad checksum"}))
    rows.settle(damaged=is_page_key)
    (failed,) = rows.driver.take(HookFailed)
    assert "record of stream 'in'" in failed.message
    assert "rang at 300" in [what for what, _ in rows.driver.sent()]


@pytest.mark.parametrize("policy", [mw.dead_letter(after=1), mw.stop(after=1)])
def test_a_damaged_discarded_page_fails_no_work(policy: mw.FailurePolicy) -> None:
    rows = Rows(IntervalDriver(Appender(), on_failure=policy))
    rows.driver.deliver(*[("k", "y" * 900, number) for number in range(2_000)])
    rows.settle()
    rows.forget_cells()
    rows.driver.deliver(("k", "del", 4_000))
    rows.settle(damaged=is_page_key)
    failures = rows.driver.take(HookFailed)
    assert failures
    assert all("a discarded page is deleted unread" in one.message for one in failures)
    rows.driver.deliver(("k", "new", 5_000), ("k", "sum", 5_001))
    rows.settle(damaged=is_page_key)
    assert rows.driver.sent() == [("1", 5_001)]
    assert not rows.driver.core.stopped
    assert not rows.driver.take(HookFailed)


@pytest.mark.guarantee("G2")
def test_a_deleted_state_deletes_its_pages_a_few_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval_pages, "MAX_COLLECTED_PAGES", 10)
    rows = filled(5_000)
    before, commits = len(rows.pages()), rows.driver.state.committed
    rows.forget_cells()
    rows.driver.deliver(("k", "del", 1), ("k", "new", 2))
    rows.settle()
    assert rows.driver.state.committed - commits > before // 10 // 60
    assert rows.pages() == set()
    rows.driver.deliver(("k", "sum", 3))
    rows.settle()
    assert rows.driver.sent() == [("1", 3)]


class Large(mw.GrowingState):
    total: int = 0
    texts: mw.MapState[str, str]


class Clearer(mw.Computation[tuple[str, str], Large]):
    """Fills and clears a map of large values. "bad" fails."""

    def process_record(self, ctx: mw.Context[Large], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        if what.startswith("fill"):
            for number in range(200):
                ctx.state.texts[f"{what}-{number:04}" + "k" * 300] = "v" * 1_100
        elif what == "clear":
            ctx.state.texts.clear()
        elif what == "bad":
            raise ValueError("always")
        else:
            ctx.state.total += 1
            ctx.produce("out", what)


def cleared(fills: int, **options: Any) -> Rows:
    """An interval whose key has discarded ``fills`` times 200 large values, whose pages are not in memory."""
    rows = Rows(IntervalDriver(Clearer(), **options))
    for fill in range(fills):
        rows.driver.deliver(("k", f"fill{fill}", 1))
        rows.settle()
    rows.forget_cells()
    rows.driver.deliver(("k", "clear", 2))
    for read in rows.driver.take(ReadStates):
        rows.driver.handle(StatesRead(read.keys, [rows.rows.get(key) for key in read.keys]))
    rows.driver.commit_all()
    return rows


@pytest.mark.guarantee("G8")
def test_records_run_while_pages_are_deleted() -> None:
    rows = cleared(8)
    commits, before = rows.driver.state.committed, len(rows.pages())
    rows.reads.clear()
    rows.driver.deliver(("k", "hello", 3))
    assert rows.driver.commit_all() == 1
    assert rows.driver.sent() == [("hello", 3)]
    rows.settle()
    assert rows.pages() == set()
    assert len(rows.reads) < 20, "there are about 140 leaves"
    assert rows.driver.state.committed - commits < 3 * before // 512 + 20


def test_deleting_pages_hides_no_failed_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletions of pages run between two attempts at a record.

    The attempts are still counted, so the failure policy decides.
    """
    monkeypatch.setattr(interval_pages, "MAX_COLLECTED_PAGES", 20)
    rows = cleared(4, on_failure=mw.dead_letter(after=3, initial=seconds(1), maximum=seconds(1)))
    rows.driver.deliver(("k", "bad", 3))
    rows.settle()
    assert ["attempt 1" in one.message for one in rows.driver.take(HookFailed)] == [True, False, False]
    assert rows.pages() == set()


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
    rows = Rows(IntervalDriver(NumberedAppender(), settings=IntervalSettings(cache_bytes=1)))
    rows.driver.deliver(*[("k", f"{number:050}", number) for number in range(count)])
    rows.settle()
    assert rows.rows[b"k"].blob
    rows.driver.deliver(("k", "del", 1))
    rows.settle()
    assert not any(row.blob for row in rows.rows.values())


@pytest.mark.guarantee("G11", section="4.2")
@pytest.mark.parametrize("flushed", [False, True])
def test_children_of_a_split_have_the_pages_of_their_keys(flushed: bool) -> None:
    """A page's row sorts above many keys; its key decides which child has it."""
    for child, keys in children(("k", "ka", "l"), flushed, Appender):
        mine = [key for key in ("k", "ka", "l") if key.encode() in keys]
        assert {row_owner(key).decode() for key, _ in child.driver.state.cells.items()} == set(mine)
        child.driver.deliver(*[(key, "sum", 1) for key in mine])
        child.settle()
        assert child.driver.sent() == [("300", 1)] * len(mine)


def test_inspection_shows_sizes_and_no_timer_of_its_own() -> None:
    rows = filled(5_000)
    rows.driver.deliver(("k", "del", 1), ("k", "y", 2))
    rows.driver.commit()
    store = MemoryStore()
    owned = OwnedStates(
        lambda computation, key: "test.1.j1", lambda journal: rows.driver.core, lambda journal: "", store
    )
    service = InspectionService(owned, store, GetWorkerLoadResponse)
    request = InspectKeyRequest(incarnation=IncarnationId("test.1"), key=b"k")
    shown = result_of(service.InspectKey(request, None))
    assert shown.state_text == '{"calls":1,"items":{"elements":1,"page_levels":0}}'
    assert list(shown.timers) == []


def test_a_state_is_emptied_and_not_replaced() -> None:
    class Replacing(mw.Computation[tuple[str, str], Lists]):
        def process_record(self, ctx: mw.Context[Lists], record: mw.Record[tuple[str, str]]) -> None:
            ctx.state = Lists()

    driver = IntervalDriver(Replacing())
    driver.deliver(("k", "x", 1))
    (failed,) = driver.take(HookFailed)
    assert "replaces a growing state: set its fields, and use `del ctx.state` to empty it" in failed.message


def test_a_batch_of_changed_pages_has_a_limit() -> None:
    """Changed pages count in the size of a commit, like productions."""
    driver = IntervalDriver(Appender(), settings=IntervalSettings(batch_bytes=20_000))
    driver.deliver(*[(f"k{key}", "x" * 900, 1) for key in range(100) for _ in range(3)])
    assert driver.commit_all() >= 10


@pytest.mark.guarantee("G8")
def test_a_key_that_would_be_a_page_is_refused() -> None:
    """In any computation, such a key's row would count as a page of another key. Its work would wait for ever."""

    class Plain(mw.Computation[tuple[str, str], int]):
        def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
            ctx.state += 1

    driver = IntervalDriver(Plain())
    sender = Sender("injector/in/p", 1, None, INJECTOR, None)
    ids = PositionIds("in/p", 0, [0, 1])
    values = [msgspec.msgpack.encode(("k", "x"))] * 2
    driver.handle(
        Delivery(IncarnationId("test.1"), "test.1.j1", "in", sender, ids, [b"k", b"k\xffz"], values, [1, 2], 1)
    )
    (answer,) = driver.take(AnswerDelivery)
    assert answer.outcome == DeliveryOutcome.DELIVERY_OUTCOME_INVALID
    assert "a key with the byte 0xFF" in answer.message


def test_an_undone_hook_leaves_no_bytes_in_its_commit() -> None:
    """Neither its productions nor its changed pages count."""

    class Failing(Appender):
        def process_record(self, ctx: mw.Context[Lists], record: mw.Record[tuple[str, str]]) -> None:
            super().process_record(ctx, record)
            if record.value[1] == "bad":
                ctx.state.items.extend("y" * 900 for _ in range(50))
                raise ValueError("it fails")

    driver = IntervalDriver(Failing())
    driver.deliver(("j", "x", 1))
    driver.deliver(("j", "x", 1), ("k", "bad", 2))
    assert driver.take(HookFailed)
    assert not driver.state.intake.queue
    assert driver.state.journal.sealed == 1, "a batch that is not sealed yet"
    assert driver.state.scope.produced_bytes == 0


def test_a_weak_batch_of_pages_alone_joins_no_commit() -> None:
    """A weak commit is queued only so that its productions are sent. Bytes of pages are not sent."""
    driver = IntervalDriver(Appender(), strong=False)
    driver.deliver(("k", "x" * 900, 1))
    driver.deliver(("k", "x" * 900, 2), ("k", "y" * 900, 3))
    assert driver.state.journal.sealed == 1
    assert driver.commit_all() == 2
