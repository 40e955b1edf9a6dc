"""A snapshot's files are written while more is read, and the process keeps time for its other work (G13)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots import copying
from millwheel.snapshots import manifest as manifests
from millwheel.snapshots.chunks import ChunkWriter, read_file
from millwheel.snapshots.copying import copy_rows
from millwheel.snapshots.files import MAX_BYTES, FileSeries, decode_items
from millwheel.snapshots.location import MANIFEST, SnapshotLocation
from millwheel.store.contract import StateRow
from millwheel.store.memory import MemoryStore
from tests.patience import patience, until

INCARNATION = IncarnationId("test.1")


class HeldWriter(ChunkWriter):
    """A writer whose files wait until it is released."""

    def __init__(self, place: Path) -> None:
        super().__init__(SnapshotLocation(str(place)))
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.released = asyncio.Event()

    async def write(self, path: str, content: bytes) -> wire.SnapshotFile:
        self.begun.append(path)
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.append(path)
            raise
        return await super().write(path, content)


async def add(series: FileSeries, *items: bytes) -> None:
    """Add items. Each fills a file."""
    for item in items:
        series.add(item, MAX_BYTES, item)
    await series.write()


@pytest.mark.guarantee("G13")
async def test_one_file_is_written_while_the_next_is_filled(tmp_path: Path) -> None:
    location, writer = SnapshotLocation(str(tmp_path)), HeldWriter(tmp_path)
    async with FileSeries(writer, "f") as series:
        await add(series, b"a")
        await until(lambda: writer.begun == ["f-1"])
        more = asyncio.create_task(add(series, b"b", b"c"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not more.done()
        assert writer.begun == ["f-1"], "a second one waits for the first"
        writer.released.set()
        await more
        series.add(b"rest", 4, b"rest")
    assert [file.path for file in series.files] == ["f-1", "f-2", "f-3", "f-4"]
    contents = [await read_file(location.folder("any"), file) for file in series.files]
    assert [decode_items(content, bytes) for content in contents] == [[b"a"], [b"b"], [b"c"], [b"rest"]]


async def test_a_copy_that_fails_writes_nothing_more(tmp_path: Path) -> None:
    writer = HeldWriter(tmp_path)
    series = FileSeries(writer, "f")

    async def copy() -> None:
        async with series:
            await add(series, b"a")
            await until(lambda: writer.begun)
            series.add(b"rest", 4, b"rest")
            raise ValueError("the read failed")

    with pytest.raises(ValueError, match="the read failed"):
        await copy()
    writer.released.set()
    assert writer.begun == writer.cancelled == ["f-1"]
    assert not series.files


@pytest.mark.parametrize("change", ["put", "delete"])
async def test_a_cancelled_change_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Regression: it went on in its thread. A file that no longer came to the disk replaced a later one that had."""
    begun, released, ended = threading.Event(), threading.Event(), list[str]()
    really, folder = getattr(obstore, change), SnapshotLocation(str(tmp_path)).folder("s")
    await folder.write("f", b"before")

    def slowly(*arguments: Any) -> None:
        begun.set()
        assert released.wait(patience(20))
        really(*arguments)
        ended.append(change)

    monkeypatch.setattr(obstore, change, slowly)
    sync = os.fsync

    def synced(descriptor: int) -> None:
        sync(descriptor)
        ended.append("fsync")

    monkeypatch.setattr(os, "fsync", synced)
    changing = asyncio.create_task(folder.write("f", b"after") if change == "put" else folder.remove("f"))
    await until(begun.is_set)
    for _ in range(2):  # a server that ends cancels once more
        changing.cancel()
        await asyncio.wait([changing], timeout=0.05)
    waits = not changing.done()
    released.set()
    await asyncio.wait([changing])
    assert changing.cancelled()
    assert waits
    assert ended[0] == change
    assert set(ended[1:]) == {"fsync"}
    found = await folder.files()
    assert [(name, size) for name, (size, _) in found.items()] == ([("f", 5)] if change == "put" else [])


async def test_a_copy_that_fails_waits_for_its_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt may write the same chunk. Nothing of this one may come after that."""
    begun, released, written = threading.Event(), threading.Event(), list[str]()
    put = obstore.put

    def slowly(store: Any, path: str, content: bytes) -> None:
        begun.set()
        assert released.wait(patience(20))
        put(store, path, content)
        written.append(path)

    monkeypatch.setattr(obstore, "put", slowly)
    series = FileSeries(ChunkWriter(SnapshotLocation(str(tmp_path))), "f")

    async def copy() -> None:
        async with series:
            await add(series, b"a")
            await until(begun.is_set)
            series.add(b"rest", 4, b"rest")
            threading.Timer(0.05, released.set).start()
            raise ValueError("the read failed")

    with pytest.raises(ValueError, match="the read failed"):
        await copy()
    assert len(written) == 1


async def test_a_file_that_is_not_written_fails_the_copy(tmp_path: Path) -> None:
    class Full(ChunkWriter):
        async def write(self, path: str, content: bytes) -> wire.SnapshotFile:
            raise RequestError(FailureCode.UNAVAILABLE, f"{path}: no space left on device")

    for items in ([b"a"], [b"a", b"b"]):
        with pytest.raises(RequestError, match="f-1: no space"):
            async with FileSeries(Full(SnapshotLocation(str(tmp_path))), "f") as series:
                await add(series, *items)


class _Clock:
    """A clock that moves when something works or sleeps."""

    def __init__(self) -> None:
        self.now, self.rests = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.rests.append(round(seconds, 6))
        self.now += seconds


@pytest.mark.parametrize(("waits", "rest"), [(0.0, 1.0), (0.4, 0.6), (5.0, 0.0)])
async def test_a_copy_rests_as_long_as_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: float, rest: float
) -> None:
    """Regression: it also rested for as long as its files were written, one after the other: half of its time."""
    clock = _Clock()
    monkeypatch.setattr(copying, "time", clock)
    monkeypatch.setattr(copying, "asyncio", SimpleNamespace(sleep=clock.sleep))

    class Store(MemoryStore):
        async def read_states(self, incarnation: IncarnationId, keys: Sequence[bytes]) -> list[StateRow | None]:
            clock.now += 1.0
            return await super().read_states(incarnation, keys)

    class Disk(ChunkWriter):
        async def write(self, path: str, content: bytes) -> wire.SnapshotFile:
            clock.now += waits
            return await super().write(path, content)

    store = Store()
    rows = {b"%d" % number: StateRow(b"%d" % number, 1, bytes(MAX_BYTES)) for number in range(9)}
    store.states[INCARNATION] = rows
    copied = await copy_rows(store, INCARNATION, Disk(SnapshotLocation(str(tmp_path))), "rows")
    assert len(copied.files) == 9
    assert clock.rests[-1] == rest, "one row is read, and the file before it is waited for"


async def test_no_manifest_is_read_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: that of each other snapshot of 1 GiB stopped it for 140 ms."""
    threads: list[int] = []
    decode = manifests.decode_manifest

    def decode_here(content: bytes, where: str) -> wire.SnapshotManifest:
        threads.append(threading.get_ident())
        return decode(content, where)

    monkeypatch.setattr(manifests, "decode_manifest", decode_here)
    folder = SnapshotLocation(str(tmp_path)).folder("s")
    written = wire.SnapshotManifest(format=manifests.SNAPSHOT_FORMAT, name="s")
    await folder.write(MANIFEST, manifests.encode_manifest(written))
    assert await manifests.read_manifest(folder) == written
    assert len(threads) == 1
    assert threading.get_ident() not in threads
