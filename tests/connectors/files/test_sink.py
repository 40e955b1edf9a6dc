"""The sink of files: each record in exactly one file, through crashes, late processes and restores (6.1)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors import FilesError, Sink, SinkBatch, SinkShard, SinkWriter, write_files
from millwheel.sdk.errors import UsageError
from millwheel.windows.result import Result
from tests.connectors.files.given import Sale, contents_of, files_in, records_in, without_syncs
from tests.connectors.given import at, running
from tests.house.tree import ROOT
from tests.patience import patience

PROGRESS = "_millwheel/shop.sales-lake/0.json"
HOUR = 3_600
LONG = blake2b("ü".encode() * 300, digest_size=8).hexdigest()


def place(run: int = 5, sink: str = "shop/sales-lake") -> SinkShard:
    return SinkShard(sink, 0, 1, run)


def batch(number: int, *cents: int, id: str = "", after: str | None = None) -> SinkBatch[Sale]:
    """A batch whose id is its number, and that comes after the one with the number before."""
    former = str(number - 1) if number > 1 else ""
    records = [(Sale("tea", one), at(one)) for one in cents]
    return SinkBatch(number, records, id or str(number), former if after is None else after)


def with_writers(sink: Sink[Any], *places: SinkShard, do: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Run ``do`` with a writer of each place."""

    async def run() -> None:
        writers = [await sink.open_writer(one) for one in places]
        await do(*writers)
        for writer in writers:
            await writer.close()

    asyncio.run(run())


def cents_in(folder: Path) -> list[int]:
    return sorted(row["cents"] for row in records_in(folder))


@pytest.mark.guarantee("G1")
@settings(max_examples=30)
@given(
    sales=st.lists(st.integers(0, 3), max_size=12),
    crash_at=st.sets(st.integers(0, 12)),
    full=st.sets(st.integers(0, 12)),
)
def test_each_record_is_in_the_folder_once(
    tmp_path_factory: pytest.TempPathFactory, sales: list[int], crash_at: set[int], full: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("lake")
    topology = mw.Topology("shop")
    lake = write_files(folder, Sale, by="cents")
    topology.source("sales", Sale).to("lake", lake, batch_records=3)
    real = os.replace
    with running(topology) as harness, without_syncs() as patch:
        for number, cents in enumerate(sales):
            renames = iter([True, False] if number in full else [])  # the second rename finds a full disk

            def replace(source: Any, target: Any, renames: Any = renames) -> None:
                if not next(renames, True):
                    raise OSError(28, "No space left on device")
                real(source, target)

            patch.setattr(os, "replace", replace)
            with suppress(FilesError):
                if number in crash_at:
                    harness.crash()
            with suppress(FilesError):
                harness.send("sales", Sale("tea", cents), at(number))
        for _ in range(3):
            with suppress(FilesError):
                harness.advance_clock(mw.seconds(60))
        assert cents_in(folder) == sorted(sales)


@pytest.mark.guarantee("G1")
def test_a_process_that_is_killed_at_any_step_is_followed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.connectors.files.killed", str(tmp_path), "jsonl"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(100), check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 40


@pytest.mark.guarantee("G1")
def test_a_new_folder_is_on_the_disk_with_those_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[tuple[int, int]] = set()
    original = os.fsync

    def fsync(descriptor: int) -> None:
        state = os.fstat(descriptor)
        synced.add((state.st_dev, state.st_ino))
        original(descriptor)

    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10))

    monkeypatch.setattr(os, "fsync", fsync)
    with_writers(write_files(tmp_path / "shop" / "lake", Sale), place(), do=do)
    for folder in (tmp_path / "shop" / "lake", tmp_path / "shop", tmp_path):
        state = folder.stat()
        assert (state.st_dev, state.st_ino) in synced, folder


@pytest.mark.guarantee("G3")
def test_a_former_process_that_wakes_up_changes_nothing(tmp_path: Path) -> None:
    async def do(former: SinkWriter[Sale], present: SinkWriter[Sale]) -> None:
        await former.write(batch(1, 10))
        await present.write(batch(1, 10))
        await present.write(batch(2, 20))
        with pytest.raises(FilesError, match="another process has changed it meanwhile"):
            await former.write(batch(2, 20))
        await present.write(batch(3, 30))
        with pytest.raises(FilesError, match="another process has changed it meanwhile"):
            await former.write(batch(2, 21, id="2b"))

    with_writers(write_files(tmp_path, Sale), place(), place(), do=do)
    assert cents_in(tmp_path) == [10, 20, 30]


@pytest.mark.guarantee("G3")
def test_a_process_that_stands_still_in_the_lock_holds_others(tmp_path: Path) -> None:
    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10))
        with (tmp_path / f"{PROGRESS}.lock").open() as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(FilesError, match="another process is changing it"):
                await writer.write(batch(2, 20))
        await writer.write(batch(2, 20))

    with_writers(write_files(tmp_path, Sale), place(), do=do)
    assert cents_in(tmp_path) == [10, 20]


@pytest.mark.guarantee("G1")
def test_a_restored_topology_is_noticed_and_can_go_on(tmp_path: Path) -> None:
    sink: Sink[Sale] = write_files(tmp_path, Sale)

    async def original(writer: SinkWriter[Sale]) -> None:
        for number in (1, 2, 3):
            await writer.write(batch(number, number))

    with_writers(sink, place(), do=original)
    for other in (batch(2, 20, id="2b"), batch(3, 30, id="3b"), batch(4, 40, id="4b", after="3b")):

        async def refused(writer: SinkWriter[Sale], other: SinkBatch[Sale] = other) -> None:
            with pytest.raises(FilesError, match=f"has batch 3 .* batch {other.number} comes next"):
                await writer.write(other)

        with_writers(sink, place(), do=refused)
    assert cents_in(tmp_path) == [1, 2, 3]

    async def restored(writer: SinkWriter[Sale]) -> None:
        with pytest.raises(FilesError) as caught:
            await writer.write(batch(2, 20, id="2b"))
        take_out(tmp_path, str(caught.value))
        again = await sink.open_writer(place())
        await again.write(batch(2, 20, id="2b"))
        await again.close()

    with_writers(sink, place(), do=restored)
    assert cents_in(tmp_path) == [1, 20]


def take_out(folder: Path, message: str) -> None:
    """Do what a message says: delete the files of the shard from this name on, and write the progress."""
    words = message.split()
    first = words[words.index("shard", words.index("Delete")) + 2]
    for name in files_in(folder):
        if name >= first.removesuffix("*"):
            (folder / name).unlink()
    (folder / PROGRESS).write_text(next(word for word in words if word.startswith("{")))


@pytest.mark.guarantee("G1")
def test_a_batch_that_was_begun_is_known_after_a_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its files may be there, beside those of another batch with its number."""
    real, full = os.replace, "hour=14"

    def replace(source: Any, target: Any) -> None:
        if full in str(target):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)

    async def original(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 0))
        with pytest.raises(FilesError, match="No space left"):
            await writer.write(batch(2, HOUR, 2 * HOUR))

    async def restored(writer: SinkWriter[Sale]) -> None:
        with pytest.raises(FilesError, match=r"has batch 2 .* another batch 2 comes next"):
            await writer.write(batch(2, 1, id="2b"))

    sink: Sink[Sale] = write_files(tmp_path, Sale, by_time="hour")
    with_writers(sink, place(), do=original)
    assert cents_in(tmp_path) == [0, HOUR]
    with_writers(sink, place(), do=restored)


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("former", [{"by_time": "hour"}, {"by_time": "hour", "by": "cents"}])
def test_a_batch_that_was_begun_keeps_its_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, former: dict[str, Any]
) -> None:
    """An update changes format and folders after the first of two files, and before the commit of their batch."""
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        if "hour=13" in str(target):
            raise OSError(28, "No space left on device")
        real(source, target)

    async def killed(writer: SinkWriter[Sale]) -> None:
        with pytest.raises(FilesError, match="No space left"):
            await writer.write(batch(1, 0, HOUR))

    async def updated(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 0, HOUR))
        await writer.write(batch(2, 7))

    with monkeypatch.context() as full:
        full.setattr(os, "replace", replace)
        with_writers(write_files(tmp_path, Sale, **former), place(), do=killed)
    assert cents_in(tmp_path) == [0]
    with_writers(write_files(tmp_path, Sale, format="parquet"), place(), do=updated)
    assert cents_in(tmp_path) == [0, 7, HOUR]
    assert [name for name in files_in(tmp_path) if "/" not in name] == ["shop.sales-lake-0-5-000000000002.parquet"]


@pytest.mark.guarantee("G1")
def test_progress_of_an_earlier_version_is_followed(tmp_path: Path) -> None:
    (tmp_path / PROGRESS).parent.mkdir(parents=True)
    (tmp_path / PROGRESS).write_text('{"run":5,"batch":1,"id":"1"}')

    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 1))
        await writer.write(batch(2, 2))

    with_writers(write_files(tmp_path, Sale), place(), do=do)
    assert cents_in(tmp_path) == [1, 2]


def follow(error: str) -> None:
    """Do what the error says: write a progress to its file."""
    words = error.split()
    write, progress, _, file = words[words.index("on:") + 1 :][:4]
    assert write == "write"
    Path(file.rstrip(".")).write_text(progress)


@pytest.mark.parametrize("after", ["", "6"])
def test_a_fork_of_a_former_name_is_shown_its_way_on(tmp_path: Path, after: str) -> None:
    """Batches that were in flight have the run of the original, which is older than that of the former fork."""
    sink: Sink[Sale] = write_files(tmp_path, Sale)

    async def former(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 1))

    async def fork(writer: SinkWriter[Sale]) -> None:
        with pytest.raises(FilesError, match=r"this one is over. If that one was deleted, such as a fork") as caught:
            await writer.write(batch(7, 7, after=after))
        follow(str(caught.value))
        again = await sink.open_writer(place(5))
        await again.write(batch(7, 7, after=after))
        await again.close()

    with_writers(sink, place(9), do=former)
    with_writers(sink, place(5), do=fork)
    assert cents_in(tmp_path) == [1, 7]


def test_a_folder_that_was_emptied_or_set_back_is_noticed(tmp_path: Path) -> None:
    sink: Sink[Sale] = write_files(tmp_path, Sale)

    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 1))
        former = (tmp_path / PROGRESS).read_bytes()
        await writer.write(batch(2, 2))
        await writer.write(batch(3, 3))
        for content, message in (
            (former, "has batch 1 .* the folder was set back"),
            (None, "is not there, and batch 4"),
        ):
            (tmp_path / PROGRESS).unlink()
            if content is not None:
                (tmp_path / PROGRESS).write_bytes(content)
            with pytest.raises(FilesError, match="another process has changed it"):
                await writer.write(batch(4, 4))
            again = await sink.open_writer(place())
            with pytest.raises(FilesError, match=message):
                await again.write(batch(4, 4))
        (tmp_path / PROGRESS).write_bytes(b"{")
        again = await sink.open_writer(place())
        with pytest.raises(FilesError, match="is no progress of a sink"):
            await again.write(batch(4, 4))

    with_writers(sink, place(), do=do)
    assert cents_in(tmp_path) == [1, 2, 3]


@pytest.mark.guarantee("G1")
def test_another_first_batch_of_a_run_can_go_on(tmp_path: Path) -> None:
    """The snapshot that was restored had records of this run, and none of its batches."""
    sink: Sink[Sale] = write_files(tmp_path, Sale)

    async def former(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10))
        await writer.write(batch(2, 20))

    async def restored(writer: SinkWriter[Sale]) -> None:
        with pytest.raises(FilesError, match=r"has batch 2 .* another batch 1 comes next") as no:
            await writer.write(batch(1, 11, id="1b"))
        take_out(tmp_path, str(no.value))
        again = await sink.open_writer(place())
        await again.write(batch(1, 11, id="1b"))
        await again.write(batch(1, 11, id="1b"))
        await again.close()

    with_writers(sink, place(), do=former)
    with_writers(sink, place(), do=restored)
    assert cents_in(tmp_path) == [11]


@pytest.mark.guarantee("G2")
def test_a_record_that_cannot_be_encoded_leaves_no_trace(tmp_path: Path) -> None:
    async def do(writer: SinkWriter[Any]) -> None:
        with pytest.raises(TypeError):
            await writer.write(SinkBatch(1, [(object(), at(1))], "1", ""))

    with_writers(write_files(tmp_path, Sale), place(), do=do)
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet"])
def test_partitions_are_folders_by_time_and_field(tmp_path: Path, form: Any) -> None:
    async def do(writer: SinkWriter[Sale]) -> None:
        items = ["tea", "a/b=c", "", "tea"]
        records = [(Sale(item, n), at(n * HOUR)) for n, item in enumerate(items)]
        records += [(Sale("tea", 4), mw.Timestamp(1 << 60)), (Sale("ü" * 300, 5), at(0))]
        await writer.write(SinkBatch(1, records, "1", ""))

    with_writers(write_files(tmp_path, Sale, format=form, by_time="hour", by="item"), place(), do=do)
    name, none = f"shop.sales-lake-0-5-000000000001.{form}", "__HIVE_DEFAULT_PARTITION__"
    assert {path: contents_of(path, content) for path, content in files_in(tmp_path).items()} == {
        f"date=2026-01-01/hour=12/item=tea/{name}": [{"item": "tea", "cents": 0}],
        f"date=2026-01-01/hour=13/item=a%2Fb%3Dc/{name}": [{"item": "a/b=c", "cents": 1}],
        f"date=2026-01-01/hour=14/item={none}/{name}": [{"item": "", "cents": 2}],
        f"date=2026-01-01/hour=15/item=tea/{name}": [{"item": "tea", "cents": 3}],
        f"date={none}/hour={none}/item=tea/{name}": [{"item": "tea", "cents": 4}],
        f"date=2026-01-01/hour=12/item={'%C3%BC' * 16}%C3%-{LONG}/{name}": [{"item": "ü" * 300, "cents": 5}],
    }


class Colour(Enum):
    RED = "red"


T = TypeVar("T")


class Inner(msgspec.Struct, Generic[T], rename="camel"):
    the_value: T


class Wide(msgspec.Struct):
    at: mw.Timestamp
    when: datetime
    day: date
    count: int
    share: float | None
    ok: bool
    raw: bytes
    price: Decimal
    key: UUID
    colour: Colour
    kind: Literal["a", "b"]
    tags: list[str]
    marks: dict[str, int]
    inner: Inner[int]


def test_each_type_of_field_is_a_column_of_parquet(tmp_path: Path) -> None:
    when = datetime(2026, 1, 1, 12, tzinfo=UTC)
    wide = Wide(
        at(0), when, date(2026, 1, 1), 3, None, True, b"x", Decimal("1.5"), UUID(int=7), Colour.RED, "a", ["t"],
        {"m": 1}, Inner(4),
    )  # fmt: skip

    async def do(writer: SinkWriter[Wide]) -> None:
        await writer.write(SinkBatch(1, [(wide, at(0))], "1", ""))

    with_writers(write_files(tmp_path, Wide, format="parquet"), place(), do=do)
    ((name, content),) = files_in(tmp_path).items()
    assert contents_of(name, content) == [
        {
            "at": when, "when": when, "day": date(2026, 1, 1), "count": 3, "share": None, "ok": True, "raw": b"x",
            "price": "1.5", "key": str(UUID(int=7)), "colour": "red", "kind": "a", "tags": ["t"], "marks": [("m", 1)],
            "inner": {"theValue": 4},
        }
    ]  # fmt: skip
    schema = pq.read_schema(pa.BufferReader(content))
    assert schema.field("share").type == pa.float64()


def test_results_of_windows_are_rows_of_parquet(tmp_path: Path) -> None:
    async def do(writer: SinkWriter[Result[int]]) -> None:
        await writer.write(SinkBatch(1, [(Result("tea", at(0), at(60), 3), at(60))], "1", ""))

    with_writers(write_files(tmp_path, Result[int], format="parquet"), place(), do=do)
    (row,) = records_in(tmp_path)
    assert (row["key"], row["value"], row["revision"]) == ("tea", 3, 0)
    assert row["end"] == datetime(2026, 1, 1, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("lake", Sale), {}, "is no place of files"),
        (("s3://u:secret@lake", Sale), {}, "this URL is no place"),
        (("/lake", Sale), {"format": "csv"}, "is no format of a sink"),
        (("/lake", Sale), {"by_time": "week"}, "by_time is one of day, hour"),
        (("/lake", Sale), {"by": "colour"}, "is no field"),
        (("/lake", int), {"format": "parquet"}, "has fields, and int has none"),
        (("/lake", Result[Any]), {"format": "parquet"}, "Result.*value is Any, which is no column"),
        (("/lake", Result[int | str]), {"format": "parquet"}, r"value is int \| str, which is no column"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write_files(*arguments, **options)


def test_parts_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    parts = tmp_path / "_millwheel" / "parts"
    parts.mkdir(parents=True)
    for name, hours in (("old", 2), ("new", 0)):
        (parts / name).touch()
        os.utime(parts / name, (parts.stat().st_mtime - hours * HOUR,) * 2)

    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10))

    with_writers(write_files(tmp_path, Sale), place(), do=do)
    assert [path.name for path in parts.iterdir()] == ["new"]
