"""The embedded store beyond the contract: group commit, slices, garbage collection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel.embedded.database import EmbeddedDatabase
from millwheel.model.incarnation import IncarnationId
from millwheel.store import heads, layout
from millwheel.store.contract import (
    Append,
    JournalHead,
    PartId,
    SequencerRefusedError,
    StateRow,
    StoreError,
    StoreUnavailableError,
)
from millwheel.store.directory import DatabaseDirectory
from millwheel.store.embedded import EmbeddedStore
from millwheel.store.rocks import Rocks, RowBatch
from millwheel.store.writer import StoreThread
from tests.patience import patience


class WatchedRocks(Rocks):
    """A real database that counts its writes and syncs. Tests can make its log fail."""

    writes = 0
    syncs = 0
    synced = 0
    """The number of writes at the last sync."""
    fail_before = False
    fail_after = False

    def write(self, batch: RowBatch) -> None:
        self.writes += 1
        if self.fail_before:
            self._failure = "injected"
        super().write(batch)
        self.written()
        if self.fail_after:
            self._failure = "injected"
            raise StoreUnavailableError("injected")

    def written(self) -> None:
        """A write is made. Tests look at it."""

    def sync(self) -> None:
        self.syncs += 1
        super().sync()
        self.synced = self.writes

    def recover(self) -> bool:
        if self.fail_before or self.fail_after:
            raise StoreUnavailableError("still failing")
        return super().recover()


@dataclass
class Opened:
    rocks: WatchedRocks
    thread: StoreThread
    store: EmbeddedStore = field(init=False)


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    directory = DatabaseDirectory(tmp_path / "db")
    rocks = WatchedRocks(directory)
    thread = StoreThread(rocks)
    opened = Opened(rocks, thread)

    def close() -> None:
        thread.close()
        rocks.close()

    opened.store = EmbeddedStore(rocks, thread, close)
    await opened.store.create_journal("j")
    await opened.store.fence("j", 5)
    rocks.writes = rocks.syncs = 0
    yield opened
    await opened.store.close()
    directory.release()


def entry(commit: int, *, truncation_point: int = 0, sync: bool = True) -> Append:
    return Append(5, commit, truncation_point, (), b"entry %d" % commit, sync)


async def test_what_waits_together_is_committed_with_one_sync_in_order(opened: Opened) -> None:
    await asyncio.gather(*(opened.store.append("j", entry(commit)) for commit in range(1, 201)))
    assert opened.rocks.syncs < 50
    assert await opened.store.read_entries("j", 1, 200) == [b"entry %d" % commit for commit in range(1, 201)]


async def test_an_unsynced_append_syncs_only_with_a_synced_one(opened: Opened) -> None:
    for commit in range(1, 6):
        await opened.store.append("j", entry(commit, sync=False))
    assert (opened.rocks.writes, opened.rocks.syncs) == (5, 0)
    await asyncio.gather(
        opened.store.append("j", entry(6, sync=False)),
        opened.store.append("j", entry(7)),
        opened.store.append("j", entry(8, sync=False)),
    )
    assert opened.rocks.syncs >= 1


async def test_a_refusal_writes_nothing(opened: Opened) -> None:
    with pytest.raises(SequencerRefusedError):
        await opened.store.append("j", entry(3))
    assert (opened.rocks.writes, opened.rocks.syncs) == (0, 0)


async def ended_appends(store: EmbeddedStore, appends: list[tuple[str, Append]]) -> list[BaseException | None]:
    """What appends without a coroutine end with, in the order of their ends."""
    ended: asyncio.Queue[BaseException | None] = asyncio.Queue()
    for journal, append in appends:
        store.append_soon(journal, append, ended.put_nowait, asyncio.get_running_loop().call_soon)
    return [await ended.get() for _ in appends]


@pytest.mark.guarantee("G2", section="6.1.2")
async def test_appends_of_several_journals_in_a_turn_share_a_sync(opened: Opened) -> None:
    """Each keeps its order and its fence: what is refused changes nothing, and takes no other along."""
    for journal in ("first", "second"):
        await opened.store.create_journal(journal)
        await opened.store.fence(journal, 5)
    opened.rocks.writes = opened.rocks.syncs = 0
    await opened.store.append("j", entry(1))
    assert (opened.rocks.writes, opened.rocks.syncs) == (1, 1)
    older = Append(4, 1, 0, (), b"older")
    asked = [("first", entry(1)), ("second", older), ("second", entry(1)), ("first", entry(2)), ("j", entry(1))]
    ended = await ended_appends(opened.store, asked)
    assert [type(error) for error in ended] == [
        type(None), SequencerRefusedError, type(None), type(None), SequencerRefusedError
    ]  # fmt: skip
    assert (opened.rocks.writes, opened.rocks.syncs) == (2, 1), "the results come before the sync"
    synced = asyncio.get_running_loop().create_future()
    opened.store.after_sync(lambda: synced.set_result(opened.rocks.syncs))
    assert await synced == 2
    assert await opened.store.read_entries("first", 1, 2) == [b"entry 1", b"entry 2"]
    assert (await opened.store.read_head("second")).commit == 1


@pytest.mark.guarantee("G8", section="5.1")
async def test_calls_are_released_if_the_thread_takes_their_step(opened: Opened) -> None:
    """The step that was to sync for them gave its own calls to the thread, as the thread had a large one."""
    loop, may_end, released = asyncio.get_running_loop(), threading.Event(), asyncio.Event()

    def begin(name: bytes, size: int = 0) -> asyncio.Future[None]:
        def stage(batch: RowBatch) -> None:
            assert not size or may_end.wait(patience(20))
            batch.put(name, b"")

        future = loop.create_future()
        opened.thread.begin(future, stage, size=size, soon=loop.call_soon)
        return future

    await begin(b"early")
    opened.thread.after_sync(released.set)
    assert not released.is_set()
    both = begin(b"large", 1 << 20), begin(b"small")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(*both)
    async with asyncio.timeout(patience(5)):
        await released.wait()


async def test_an_append_without_a_coroutine_ends_with_each_failure(opened: Opened) -> None:
    opened.rocks.fail_after = True
    (error,) = await ended_appends(opened.store, [("j", entry(1))])
    assert isinstance(error, StoreUnavailableError)
    opened.rocks.fail_after = False
    await asyncio.to_thread(opened.thread.close)
    (error,) = await ended_appends(opened.store, [("j", entry(2))])
    assert isinstance(error, StoreUnavailableError)


class Blocking:
    """Work of the store thread that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def advance(self, batch: RowBatch) -> bool:
        self.begun.set()
        assert self.may_end.wait(patience(20))
        return True


@pytest.mark.guarantee("G9", section="6.1.2")
async def test_a_report_is_noted_before_the_writer_goes_on(opened: Opened) -> None:
    """A failed sync may follow at once. The loop has not had the outcome yet."""
    after = Blocking()
    ended: list[BaseException | None] = []
    large = Append(5, 1, 0, (), bytes(100_000), True)
    opened.store.append_soon("j", large, ended.append, asyncio.get_running_loop().call_soon)
    opened.thread.call_later(after)
    assert after.begun.wait(patience(20))
    reported = dict(opened.store.heads.reported)
    after.may_end.set()
    assert (ended, reported) == ([], {"j": 1})


@pytest.mark.guarantee("G8")
async def test_a_dropped_journal_leaves_no_report(opened: Opened) -> None:
    """The append has its outcome when the same write has deleted the journal. Nothing is lost then."""
    before = Blocking()
    opened.thread.call_later(before)
    assert before.begun.wait(patience(20))
    ended: list[BaseException | None] = []
    soon = partial(asyncio.get_running_loop().call_later, 0)  # after the drop has joined the write
    opened.store.append_soon("j", entry(1), ended.append, soon)
    dropped = asyncio.ensure_future(opened.store.drop_journal("j"))
    for _ in range(5):
        await asyncio.sleep(0)
    before.may_end.set()
    await dropped
    assert (ended, opened.store.heads.reported) == ([None], {})


async def test_an_append_does_not_wait_for_an_earlier_flush(opened: Opened) -> None:
    await opened.store.append("j", entry(1))
    rows = [StateRow(b"%d" % number, 1, bytes(100)) for number in range(50_000)]
    flush = asyncio.ensure_future(opened.store.write_states(IncarnationId("c"), "j", 5, rows))
    await asyncio.sleep(0)
    for commit in range(2, 12):
        await opened.store.append("j", entry(commit))
        assert not flush.done()
    await flush
    assert (await opened.store.read_states(IncarnationId("c"), [b"49999"]))[0] == rows[-1]


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_fence_ends_a_flush_that_is_under_way(opened: Opened) -> None:
    await opened.store.append("j", entry(1))
    rows = [StateRow(b"%06d" % number, 1, b"old owner") for number in range(50_000)]
    flush = asyncio.ensure_future(opened.store.write_states(IncarnationId("c"), "j", 5, rows))
    await asyncio.sleep(0)
    await opened.store.fence("j", 6)
    written = [rows[-1]] if flush.done() else [None]
    await flush
    assert await opened.store.read_states(IncarnationId("c"), [b"049999"]) == written == [None]


@pytest.mark.guarantee("G2")
async def test_a_row_ahead_of_its_entry_is_refused(opened: Opened) -> None:
    await opened.store.append("j", entry(1))
    with pytest.raises(StoreError, match="commit 2"):
        await opened.store.write_states(IncarnationId("c"), "j", 5, [StateRow(b"k", 1, b"x"), StateRow(b"k", 2, b"x")])
    assert await opened.store.read_states(IncarnationId("c"), [b"k"]) == [None]


async def test_emptied_rows_leave_nothing_once_entries_are_truncated(opened: Opened) -> None:
    store, rocks = opened.store, opened.rocks
    for commit in (1, 2, 3):
        await store.append("j", entry(commit))
    rows = [StateRow(b"%04d" % number, 2, b"") for number in range(1200)]
    await store.write_states(
        IncarnationId("c"), "j", 5, [*rows, StateRow(b"kept", 3, b"state"), StateRow(b"later", 3, b"")]
    )
    await store.write_states(IncarnationId("c"), "j", 5, [StateRow(b"0007", 3, b"set again")])
    names, marks = [*(row.key for row in rows), b"kept", b"later"], (layout.CLEARED, layout.past(layout.CLEARED))

    def stored() -> list[bytes]:
        found = rocks.get([b"c\0" + name for name in names], state=True)
        return [name for name, row in zip(names, found, strict=True) if row is not None]

    assert stored() == names
    await store.append("j", entry(4, truncation_point=2))
    await store.drop_incarnation(IncarnationId("behind the purge"))
    assert stored() == [b"0007", b"kept", b"later"]
    assert len(rocks.keys(*marks)) == 1
    await store.drop_journal("j")
    await store.drop_incarnation(IncarnationId("behind the purge"))
    assert stored() == [b"0007", b"kept"]
    assert rocks.keys(*marks) == []


async def test_emptied_rows_are_forgotten_after_a_restart_too(tmp_path: Path) -> None:
    async with await EmbeddedDatabase.open(tmp_path) as database:
        for journal in ("j", "k"):
            await database.store.create_journal(journal)
            await database.store.fence(journal, 5)
            await database.store.append(journal, entry(1))
            await database.store.write_states(IncarnationId(journal), journal, 5, [StateRow(b"x", 1, b"")])
    directory = DatabaseDirectory(tmp_path)
    rocks = Rocks(directory)
    batch = RowBatch(rocks)
    # The state after a crash between a journal's drop and the removal of its last rows.
    batch.delete(layout.head_key("k"))
    rocks.write(batch)
    thread = StoreThread(rocks)

    def close() -> None:
        thread.close()
        rocks.close()
        directory.release()

    store = EmbeddedStore(rocks, thread, close)
    await store.append("j", entry(2, truncation_point=1))
    await store.drop_incarnation(IncarnationId("behind the purge"))
    assert rocks.get([b"j\0x", b"k\0x"], state=True) == [None, None]
    assert rocks.keys(layout.CLEARED, layout.past(layout.CLEARED)) == []
    await store.close()


async def test_deleted_entries_stay_deleted_after_a_restart(tmp_path: Path) -> None:
    keys = (layout.entry_key("j", 0), layout.entry_key("j", 99))
    async with await EmbeddedDatabase.open(tmp_path) as database:
        await database.store.create_journal("j")
        await database.store.fence("j", 5)
        for commit in range(1, 11):
            await database.store.append("j", entry(commit, truncation_point=commit - 1))
        await database.store.delete_entries("j", 4)
        assert database.rocks.keys(*keys) == [layout.entry_key("j", commit) for commit in range(4, 11)]
        await database.store.delete_entries("j", 6)
        assert database.rocks.keys(*keys) == [layout.entry_key("j", commit) for commit in range(6, 11)]
    async with await EmbeddedDatabase.open(tmp_path) as database:
        await database.store.delete_entries("j", 8)
        await database.store.delete_entries("j", 9)
        assert database.rocks.keys(*keys) == [layout.entry_key("j", 9), layout.entry_key("j", 10)]


async def test_many_entries_are_deleted_in_pieces(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: 5,000 entries were deleted at once, and the event loop stood still for 5 to 9 ms."""
    store, rocks, many = opened.store, opened.rocks, 4 * heads.MAX_DELETED_ENTRIES
    await asyncio.gather(*(store.append("j", entry(commit, sync=False)) for commit in range(1, many + 1)))
    await store.append("j", entry(many + 1, truncation_point=many))
    kept = layout.entry_key("j", 0), layout.entry_key("j", 2 * many)
    left: list[int] = []
    monkeypatch.setattr(rocks, "written", lambda: left.append(len(rocks.keys(*kept))))
    deletion = asyncio.ensure_future(store.delete_entries("j", many + 1))
    await asyncio.sleep(0)
    await store.append("j", entry(many + 2, truncation_point=many))
    assert not deletion.done(), "an append waits for a piece, and not for the whole"
    await deletion
    assert left[-1] == 2
    assert max(before - after for before, after in pairwise(left)) <= heads.MAX_DELETED_ENTRIES
    assert len(left) >= 4


@pytest.mark.parametrize("applied", [False, True])
async def test_a_failed_append_is_settled_by_repeating_it(opened: Opened, applied: bool) -> None:
    store, rocks = opened.store, opened.rocks
    await store.append("j", entry(1))
    rocks.fail_after, rocks.fail_before = applied, not applied
    results = await asyncio.gather(
        store.append("j", entry(2)), store.append("j", entry(3)), store.fence("j", 3), return_exceptions=True
    )
    assert [type(result) for result in results] == [StoreUnavailableError] * 3
    with pytest.raises(StoreUnavailableError):
        await store.read_head("j")
    rocks.fail_after = rocks.fail_before = False
    if applied:
        with pytest.raises(SequencerRefusedError) as refused:
            await store.append("j", entry(3))
        assert (refused.value.sequencer, refused.value.commit) == (5, 3)
    else:
        await store.append("j", entry(2))
        await store.append("j", entry(3))
    assert (await store.read_head("j")).commit == 3
    assert len(await store.read_entries("j", 1, 3)) == 3


async def test_outstanding_calls_fail_when_the_store_is_closed(opened: Opened) -> None:
    await opened.store.append("j", entry(1))
    rows = [StateRow(b"%d" % number, 1, bytes(100)) for number in range(100_000)]
    flush = asyncio.ensure_future(opened.store.write_states(IncarnationId("c"), "j", 5, rows))
    await asyncio.sleep(0.005)
    await opened.store.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await flush
    with pytest.raises(StoreUnavailableError):
        await opened.store.read_states(IncarnationId("c"), [b"1"])
    await opened.store.close()


async def test_a_cancelled_caller_harms_no_other(opened: Opened) -> None:
    tasks = [asyncio.ensure_future(opened.store.append("j", entry(commit))) for commit in range(1, 6)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [result is None for result in results] == [True, True, False, True, True]
    assert (await opened.store.read_head("j")).commit == 5


@pytest.mark.guarantee("G1", section="6.2")
async def test_a_head_that_is_read_is_on_disk_before_it_is_reported(opened: Opened) -> None:
    """A takeover relies on the head. Regression: an unsynced head was reported, which a loss of power could undo."""
    store, rocks = opened.store, opened.rocks
    await store.append("j", entry(1, sync=False))
    assert rocks.syncs == 0
    assert (await store.read_head("j")).commit == 1
    assert rocks.syncs == 1
    await store.read_head("j")
    assert rocks.syncs == 1, "nothing was written since"


@pytest.mark.guarantee("G2", section="6.1.2")
async def test_what_refuses_a_call_is_on_disk_before_it_is_reported(opened: Opened) -> None:
    """A repetition that is refused with the caller's own commit counts as done."""
    store, rocks = opened.store, opened.rocks
    await store.append("j", entry(1, sync=False))
    with pytest.raises(SequencerRefusedError):
        await store.append("j", entry(1))
    assert rocks.syncs == 1
    await store.append("j", entry(2, sync=False))
    with pytest.raises(SequencerRefusedError):
        await store.fence("j", 4)
    assert rocks.syncs == 2


CALLS = st.sampled_from(["append", "repeat", "head", "fence", "old fence", "part", "rows", "delete entries"])


@pytest.mark.guarantee("G1", section="6.1.1")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(st.lists(st.tuples(CALLS, st.booleans()), min_size=1, max_size=4), max_size=12))
def test_no_answer_that_waits_for_a_sync_rests_on_less(
    tmp_path_factory: pytest.TempPathFactory, calls: list[list[tuple[str, bool]]]
) -> None:
    """Calls run at once, some with a sync and some without.

    The last answer comes when all writes before it are synced.
    """
    run_groups(tmp_path_factory.mktemp("groups"), calls)


def made(store: EmbeddedStore, head: JournalHead, group: list[tuple[str, bool]]) -> list[Awaitable[object]]:
    """The calls of a group, in the order in which the store gets them."""
    sequencer, commit = head.sequencer, head.commit
    work: list[Awaitable[object]] = []
    for kind, sync in group:
        commit += kind == "append"
        sequencer += kind == "fence"
        work.append(call(store, kind, Append(sequencer, commit, 0, (), b"", sync)))
    return work


def call(store: EmbeddedStore, kind: str, at: Append) -> Awaitable[object]:
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "append": lambda: store.append("j", at),
        "repeat": lambda: store.append("j", at),
        "head": lambda: store.read_head("j"),
        "fence": lambda: store.fence("j", at.sequencer),
        "old fence": lambda: store.fence("j", 1),
        "part": lambda: store.write_part("j", PartId("p", 5, at.commit), b""),
        "rows": lambda: store.write_states(IncarnationId("c"), "j", at.sequencer, [StateRow(b"k", at.commit, b"")]),
        "delete entries": lambda: store.delete_entries("j", 1),
    }
    return calls[kind]()


def run_groups(path: Path, groups: list[list[tuple[str, bool]]]) -> None:
    async def main() -> None:
        directory = DatabaseDirectory(path / "db")
        rocks = WatchedRocks(directory)
        thread = StoreThread(rocks)

        def close() -> None:
            thread.close()
            rocks.close()

        store = EmbeddedStore(rocks, thread, close)
        try:
            await store.create_journal("j")
            await store.fence("j", 5)
            for group in groups:
                await asyncio.gather(*made(store, await store.read_head("j"), group), return_exceptions=True)
                kind, sync = group[-1]
                if kind != "delete entries" and (sync or kind not in ("append", "repeat")):
                    assert rocks.synced == rocks.writes, group
        finally:
            await store.close()
            directory.release()

    asyncio.run(main())
