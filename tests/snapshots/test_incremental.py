"""Snapshots share what is equal: only changes are written, and a deletion takes nothing from the others (G12)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots import file_systems
from millwheel.snapshots.chunks import CHUNKS, ChunkWriter, read_file
from millwheel.snapshots.claims import CLAIMS, COUNTS_FOR, Claim, ClaimKind, claim
from millwheel.snapshots.copying import copy_rows
from millwheel.snapshots.deleting import delete_snapshots
from millwheel.snapshots.files import MAX_BYTES
from millwheel.snapshots.holders import holder_of, this_process
from millwheel.snapshots.location import MANIFEST, SnapshotFolder, SnapshotLocation
from millwheel.snapshots.manifest import SNAPSHOT_FORMAT, encode_manifest, reusable_chunks, stored_chunks, written_bytes
from millwheel.snapshots.verifying import SnapshotContent, verify_snapshot
from millwheel.store.contract import StateRow
from millwheel.store.memory import MemoryStore
from tests.patience import patience, until

INCARNATION, JOURNAL = IncarnationId("test.1"), "test.1.j1"


class Rows:
    """States of a computation, some of which change between snapshots."""

    def __init__(self, count: int, size: int) -> None:
        self._draw = random.Random(1)
        self._size = size
        self._commit = 0
        self.store = MemoryStore()
        self.store.states[INCARNATION] = {}
        for number in range(count):
            self.put(number)

    def put(self, number: int) -> None:
        """Write a state, or another value of it."""
        self._commit += 1
        key = b"key-%06d" % number
        self.store.states[INCARNATION][key] = StateRow(key, self._commit, self._draw.randbytes(self._size))

    def remove(self, number: int) -> None:
        """Delete a state."""
        del self.store.states[INCARNATION][b"key-%06d" % number]


async def take(location: SnapshotLocation, rows: Rows, name: str, full: bool = False) -> wire.SnapshotManifest:
    """A snapshot of the rows."""
    manifest = wire.SnapshotManifest(format=SNAPSHOT_FORMAT, name=name, cluster_format=1)
    async with claim(location, ClaimKind.WRITING):
        writer = ChunkWriter(location, () if full else await reusable_chunks(location))
        manifest.rows.append(await copy_rows(rows.store, INCARNATION, writer, "rows-1"))
        manifest.written_bytes = writer.written_bytes
        await location.folder(name).write(MANIFEST, encode_manifest(manifest))
    return manifest


async def verify(location: SnapshotLocation, name: str) -> SnapshotContent:
    return await verify_snapshot(location.folder(name))


@pytest.fixture
def location(tmp_path: Path) -> SnapshotLocation:
    return SnapshotLocation(str(tmp_path / "backups"))


@pytest.mark.parametrize("size", [1_000, 10_000])
async def test_only_what_has_changed_is_written(location: SnapshotLocation, size: int) -> None:
    count = 15_000_000 // size
    rows = Rows(count, size)
    first = await take(location, rows, "a")
    total = sum(file.size_bytes for file in first.rows[0].files)
    assert first.written_bytes == total
    sizes = [file.size_bytes for file in first.rows[0].files]
    assert len(sizes) > 6, "files of moderate size"
    assert max(sizes) <= MAX_BYTES + 2 * size
    assert (await take(location, rows, "same")).written_bytes == 0
    for number in (3, count // 2):
        rows.put(number)
    rows.remove(count // 3)
    rows.put(count + 5)
    second = await take(location, rows, "b")
    assert 0 < second.written_bytes < total / 2, "four files of many"
    assert (await verify(location, "b")).rows == count
    assert (await verify(location, "a")).rows == count


async def test_a_deletion_leaves_the_other_snapshots_whole(location: SnapshotLocation, tmp_path: Path) -> None:
    rows = Rows(600, 10_000)
    for name in "abc":
        await take(location, rows, name)
        rows.put(5)
    with pytest.raises(RequestError, match="no snapshot 'x'"):
        await delete_snapshots(location, ["a", "x"])
    assert await location.names() == ["a", "b", "c"]
    done = await delete_snapshots(location, ["b"])
    assert (done.names, done.chunks) == (("b",), 1)
    done = await delete_snapshots(location, ["a"])
    assert done.chunks == 1
    assert (await verify(location, "c")).rows == 600
    files = {file.name for file in (tmp_path / "backups" / CHUNKS).iterdir()}
    assert files == await stored_chunks([location.folder("c")])
    await delete_snapshots(location, ["c"])
    assert list((tmp_path / "backups" / CHUNKS).iterdir()) == []
    assert await location.names() == []


async def test_what_a_failed_snapshot_left_is_not_trusted(location: SnapshotLocation, tmp_path: Path) -> None:
    """Its chunks may not be on the disk. The next deletion removes them."""
    rows = Rows(300, 10_000)
    await take(location, rows, "whole")
    rows.put(5)
    await copy_rows(rows.store, INCARNATION, ChunkWriter(location, await reusable_chunks(location)), "rows-1")
    assert (await take(location, rows, "next")).written_bytes > 0
    await delete_snapshots(location, ["next"])
    rows.put(5)
    await copy_rows(rows.store, INCARNATION, ChunkWriter(location, await reusable_chunks(location)), "rows-1")
    assert (await delete_snapshots(location, [])).chunks == 1
    assert (await verify(location, "whole")).rows == 300


async def test_a_full_snapshot_mends_a_damaged_chunk(location: SnapshotLocation, tmp_path: Path) -> None:
    rows = Rows(300, 10_000)
    await take(location, rows, "a")
    chunk = max((tmp_path / "backups" / CHUNKS).iterdir(), key=lambda file: file.stat().st_size)
    chunk.write_bytes(bytes(chunk.stat().st_size))
    await take(location, rows, "b")
    for name in "ab":
        with pytest.raises(RequestError, match=chunk.name) as damaged:
            await verify(location, name)
        assert damaged.value.code is FailureCode.DATA_LOSS
    await take(location, rows, "c", full=True)
    for name in "abc":
        await verify(location, name)


async def test_a_lost_chunk_is_written_again(location: SnapshotLocation, tmp_path: Path) -> None:
    """Otherwise each later snapshot would name it, and none could be restored."""
    rows = Rows(300, 10_000)
    first = await take(location, rows, "a")
    lost, cut = (tmp_path / "backups" / CHUNKS / file.sha256 for file in first.rows[0].files[:2])
    await asyncio.to_thread(lost.unlink)
    await asyncio.to_thread(cut.write_bytes, b"")
    second = await take(location, rows, "b")
    assert second.written_bytes == sum(file.size_bytes for file in first.rows[0].files[:2])
    assert (await verify(location, "b")).rows == 300


async def test_nothing_is_deleted_if_a_snapshot_cannot_be_read(location: SnapshotLocation, tmp_path: Path) -> None:
    """Its chunks are not known."""
    rows = Rows(100, 10_000)
    for name in "ab":
        await take(location, rows, name)
        rows.put(5)
    before = sorted(file.name for file in (tmp_path / "backups" / CHUNKS).iterdir())
    (tmp_path / "backups" / "a" / MANIFEST).write_text('{"format": 99}')
    for named in ["b"], ["b", "a"]:
        with pytest.raises(RequestError, match=r"snapshot a: .* 99 .*othing was deleted") as refused:
            await delete_snapshots(location, named)
        assert f"`millwheel snapshot delete {location.text} a --unreadable`" in refused.value.remedy
    with pytest.raises(RequestError, match="nothing was deleted"):
        await delete_snapshots(location, ["b"], unreadable=True)
    assert sorted(file.name for file in (tmp_path / "backups" / CHUNKS).iterdir()) == before
    assert (await take(location, rows, "c")).written_bytes > 0


async def test_a_snapshot_that_cannot_be_read_is_deleted_by_name(location: SnapshotLocation, tmp_path: Path) -> None:
    rows = Rows(100, 10_000)
    for name in "ab":
        await take(location, rows, name)
        rows.put(5)
    folder = tmp_path / "backups" / "a"
    (folder / MANIFEST).write_text("{")
    (folder / "rows-1").write_bytes(b"a file of format 1")
    deleted = await delete_snapshots(location, ["a"], unreadable=True)
    assert (deleted.names, deleted.chunks) == (("a",), 1)
    assert list(folder.iterdir()) == []
    assert (await verify(location, "b")).rows == 100


async def test_a_location_is_not_claimed_for_both(location: SnapshotLocation, tmp_path: Path) -> None:
    await take(location, Rows(10, 100), "a")
    async with claim(location, ClaimKind.WRITING), claim(location, ClaimKind.WRITING):
        with pytest.raises(RequestError, match="a snapshot is being written there since") as refused:
            await delete_snapshots(location, ["a"])
        assert refused.value.reason == "LOCATION_IN_USE"
    async with claim(location, ClaimKind.DELETING):
        with pytest.raises(RequestError, match="a snapshot is being deleted there since"):
            await take(location, Rows(10, 100), "b")
    assert await location.names() == ["a"]
    assert list((tmp_path / "backups" / CLAIMS).iterdir()) == [], "no claim stays"


async def test_a_claim_that_is_cancelled_while_it_is_written_ends(
    location: SnapshotLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = SnapshotFolder.write

    async def cut_off(folder: SnapshotFolder, path: str, content: bytes) -> None:
        await written(folder, path, content)
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(SnapshotFolder, "write", cut_off)
        with pytest.raises(asyncio.CancelledError):
            async with claim(location, ClaimKind.DELETING):
                pass
    async with claim(location, ClaimKind.WRITING):
        pass


CLAIMING = """
import asyncio, sys
from millwheel.snapshots.claims import ClaimKind, claim
from millwheel.snapshots.location import SnapshotLocation

async def main():
    async with claim(SnapshotLocation(sys.argv[1]), ClaimKind.DELETING):
        print("claimed", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_claim_ends_with_its_process(location: SnapshotLocation) -> None:
    deleting = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLAIMING, location.text, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert deleting.stdout is not None
        assert await asyncio.wait_for(deleting.stdout.readline(), patience(20)) == b"claimed\n"
        deleting.send_signal(signal.SIGSTOP)
        with pytest.raises(RequestError, match=f"by process {deleting.pid} of host"):
            await take(location, Rows(10, 100), "a")
    finally:
        deleting.kill()
        await deleting.wait()
    await take(location, Rows(10, 100), "a")


HALF_ENDED = """
import ctypes, threading, time
from millwheel.snapshots.holders import holder_of, this_process
import msgspec
print(msgspec.json.encode(this_process()).decode(), flush=True)
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


async def test_a_process_whose_first_thread_has_ended_is_not_gone() -> None:
    """Regression: its state was that of a process that does nothing any more, while its other threads ran."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", HALF_ENDED, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        holder = holder_of(await asyncio.wait_for(process.stdout.readline(), patience(20)))
        stat = Path(f"/proc/{holder.pid}/stat")
        await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", patience(20))
        assert not holder.is_gone()
    finally:
        process.kill()
        await process.wait()
    assert holder.is_gone()


async def test_a_claim_on_a_network_file_system_ends_after_a_day(
    location: SnapshotLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its process has written may still be on its way, as to an object store."""
    await take(location, Rows(10, 100), "a")
    left = tmp_path / "backups" / CLAIMS / "writing-gone"
    left.write_bytes(msgspec.json.encode(msgspec.structs.replace(this_process(), pid=2**22 + 1)))
    mounts = tmp_path / "mounts"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path} rw shared:1 - nfs4 server:/ rw\n")
    monkeypatch.setattr(file_systems, "MOUNTS", mounts)
    with pytest.raises(RequestError, match="writing-gone"):
        await delete_snapshots(location, ["a"])
    monkeypatch.undo()
    await delete_snapshots(location, ["a"])


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("/", True),
        ("/data/x", False),
        ("/data two/x", True),
        ("/database", True),
        ("/data/local/x", True),
        ("/fuse", False),
    ],
)
def test_the_file_system_of_a_directory_is_the_deepest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str, expected: bool
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "1 0 8:1 / / rw shared:1 - ext4 /dev/a rw\n2 1 0:2 / /data rw - ext4 /dev/b rw\n"
        "3 1 0:2 / /data rw shared:1 - nfs4 server:/ rw\n4 3 0:3 / /data/local rw - xfs /dev/c rw\n"
        "5 1 0:4 / /data\\040two rw - btrfs /dev/d rw\n6 1 0:5 / /fuse rw - fuse.sshfs a:/ rw\n"
    )
    monkeypatch.setattr(file_systems, "MOUNTS", mounts)
    assert file_systems.is_of_this_host(Path(directory)) is expected
    monkeypatch.setattr(file_systems, "MOUNTS", tmp_path / "none")
    assert not file_systems.is_of_this_host(Path(directory))


@pytest.mark.parametrize("other", [{"host": "elsewhere"}, {"system": "another start"}, {"start": ""}], ids=str)
async def test_a_claim_of_a_process_that_is_not_seen_stays(
    location: SnapshotLocation, tmp_path: Path, other: dict[str, str]
) -> None:
    gone = msgspec.structs.replace(this_process(), pid=2**22 + 1)
    assert gone.is_gone()
    await take(location, Rows(10, 100), "a")
    left = tmp_path / "backups" / CLAIMS / "writing-elsewhere"
    left.write_bytes(msgspec.json.encode(msgspec.structs.replace(gone, **other)))
    with pytest.raises(RequestError, match="writing-elsewhere"):
        await delete_snapshots(location, ["a"])
    left.write_bytes(msgspec.json.encode(gone))
    await delete_snapshots(location, ["a"])
    assert not left.exists()


async def test_a_claim_that_names_no_process_ends_after_a_day(location: SnapshotLocation, tmp_path: Path) -> None:
    await take(location, Rows(10, 100), "a")
    left = tmp_path / "backups" / CLAIMS / "writing-dead"
    left.write_bytes(b"")
    with pytest.raises(RequestError, match="writing-dead"):
        await delete_snapshots(location, ["a"])
    past = left.stat().st_mtime - COUNTS_FOR.total_seconds() - 1
    os.utime(left, (past, past))
    await delete_snapshots(location, ["a"])
    assert not left.exists()


@pytest.mark.parametrize("order", [*combinations(range(6), 3)], ids=str)
async def test_two_claims_never_hold_in_any_order(
    location: SnapshotLocation, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each claim writes, lists, and then works. All orders of these steps of two claims are tried."""
    turns = ["writing" if step in order else "deleting" for step in range(6)]
    working: set[str] = set()

    async def turn(name: str) -> None:
        await until(lambda: not turns or turns[0] == name or name not in turns, patience(5), every=0.0)

    def stepping(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def step(folder: SnapshotFolder, *arguments: Any) -> Any:
            name = asyncio.current_task().get_name()  # type: ignore[union-attr]
            await turn(name)
            done = await real(folder, *arguments)
            if name in turns:
                turns.remove(name)
            return done

        return step

    monkeypatch.setattr(SnapshotFolder, "write", stepping(SnapshotFolder.write))
    monkeypatch.setattr(SnapshotFolder, "files", stepping(SnapshotFolder.files))

    async def work(kind: ClaimKind) -> None:
        try:
            async with claim(location, kind) as held:
                assert isinstance(held, Claim)
                working.add(kind.value)
                assert len(working) == 1
                await turn(kind.value)
                working.remove(kind.value)
                if kind.value in turns:
                    turns.remove(kind.value)
        except RequestError:
            turns[:] = [one for one in turns if one != kind.value]

    tasks = [asyncio.create_task(work(kind), name=kind.value) for kind in ClaimKind]
    await asyncio.gather(*tasks)
    assert not working


async def test_a_snapshot_of_format_1_has_its_own_files(location: SnapshotLocation, tmp_path: Path) -> None:
    """Versions before shared chunks wrote them. It is verified, and deleted with its files."""
    rows = Rows(100, 10_000)
    shared = await take(location, rows, "new")
    folder, old = location.folder("old"), wire.SnapshotManifest()
    old.CopyFrom(shared)
    old.format, old.name, old.written_bytes = 1, "old", 0
    for file in old.rows[0].files:
        await folder.write(file.path, await read_file(location.folder("new"), file))
        file.shared = False
    await folder.write(MANIFEST, encode_manifest(old))
    assert (await verify(location, "old")).rows == 100
    assert written_bytes(old) == sum(file.size_bytes for file in old.rows[0].files)
    assert (await delete_snapshots(location, ["old"])).chunks == 0
    assert list((tmp_path / "backups" / "old").iterdir()) == []
    assert (await verify(location, "new")).rows == 100
