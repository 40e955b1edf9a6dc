"""Files in a bucket of an object store, by real requests of S3 (6.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import millwheel as mw
from millwheel.connectors import FilesError, SinkWriter, read_files, write_files
from millwheel.connectors.files.places import parse_root
from millwheel.connectors.files.storage import Storage, storage_of
from tests.connectors.files.buckets import BUCKET, Bucket, other_server, reached_bucket
from tests.connectors.files.given import (
    Sale,
    compressed,
    contents_of,
    found,
    read_on,
    records_of,
    small_reads,
    values_of,
)
from tests.connectors.files.test_sink import batch, place, with_writers
from tests.connectors.given import running
from tests.patience import patience


class Place:
    """A folder of its own in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.url = f"s3://{BUCKET}/{uuid4().hex}"
        self.storage: Storage = storage_of(parse_root(self.url))

    def cents(self) -> list[int]:
        names = self.storage.find(["**", "*"])
        contents = {name: self.storage.load(name) for name in names}
        return sorted(row["cents"] for name, one in contents.items() if one for row in contents_of(name, one.content))


@pytest.fixture(scope="module")
def _bucket() -> Iterator[Bucket]:
    with reached_bucket() as bucket:
        yield bucket


@pytest.fixture
def folder(_bucket: Bucket) -> Place:
    return Place(_bucket)


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.guarantee("G1")
def test_lines_of_objects_are_read_from_any_position(folder: Place, ending: str) -> None:
    content = b"".join(b'{"item":"tea","cents":%d}\n' % number for number in range(500))
    for name in (f"2026/a b%20+.jsonl{ending}", f"2026/01/b.jsonl{ending}", f"_2026/c.jsonl{ending}", "x.csv"):
        folder.storage.write(name, compressed(content, ending))
    source = read_files(f"{folder.url}/**/*.jsonl{ending}", Sale)
    assert found(source) == [f"2026/01/b.jsonl{ending}", f"2026/a b%20+.jsonl{ending}"]
    mark = f"{folder.storage.root.path}/2026/01/x.jsonl{ending}/"  # of a folder, as consoles make it
    folder.bucket.objects[mark] = b"", datetime.now(UTC)
    with small_reads(2_000):
        for name in found(source):
            reads = list(read_on(source, name, reopen=lambda read: read % 2 == 1))
            assert [value.cents for value in records_of(reads)] == list(range(500))


@pytest.mark.guarantee("G1")
def test_an_object_that_was_replaced_is_refused(folder: Place) -> None:
    content = b"".join(b'{"item":"tea","cents":%d}\n' % number for number in range(500))
    folder.storage.write("a.jsonl", content)
    source = read_files(f"{folder.url}/*", Sale, format="jsonl")
    with small_reads(1_000):
        reads = read_on(source, "a.jsonl")
        read = next(reads)
        folder.storage.write("a.jsonl", content.replace(b"tea", b"pot"))
        with pytest.raises(FilesError, match="was replaced while it was read"):
            next(reads)
        with pytest.raises(FilesError, match="are not those that were read"):
            next(read_on(source, "a.jsonl", read.position))
        folder.storage.write("a.jsonl", content)
        rest = values_of(source, "a.jsonl", read.position)
    assert [one.cents for one in rest] == list(range(len(read.records), 500))


def test_an_object_that_grows_is_followed(folder: Place) -> None:
    source, position = read_files(f"{folder.url}/*.log", str, follow=mw.hours(1)), None
    got: list[Any] = []
    for content in (b"one\ntw", b"one\ntwo\n", b"one\ntwo\nthree\n"):
        folder.storage.write("a.log", content)
        for read in read_on(source, "a.log", position):
            got += [value for value, _ in read.records]
            position = read.position
    assert got == ["one", "two", "three"]


def test_rows_of_an_object_are_read(folder: Place) -> None:
    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, *range(2_500)))

    with_writers(write_files(folder.url, Sale, format="parquet"), place(), do=do)
    source = read_files(f"{folder.url}/*.parquet", Sale)
    (name,) = found(source)
    reads = list(read_on(source, name, reopen=lambda read: True))
    assert [value.cents for value in records_of(reads)] == list(range(2_500))


def test_objects_that_are_not_there_are_named(folder: Place) -> None:
    with pytest.raises(FilesError, match=r"no file matches s3://shop/.*/\*\.csv"):
        found(read_files(f"{folder.url}/*.csv", Sale))
    with pytest.raises(FilesError, match=r"s3://shop/.*/a\.csv is gone"):
        list(read_on(read_files(f"{folder.url}/a.csv", Sale), "a.csv"))
    with pytest.raises(FilesError, match=r"s3://other/") as caught:
        found(read_files("s3://other/*.csv", Sale))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(bool(other_server()), reason="only the bucket of this process can refuse")
@pytest.mark.guarantee("G1")
def test_a_bucket_that_refuses_the_account_says_so(folder: Place) -> None:
    """Nothing is lost until the account is right."""
    source, sink = read_files(f"{folder.url}/*.jsonl", Sale), write_files(folder.url, Sale)
    folder.storage.write("a.jsonl", b'{"item": "tea", "cents": 7}\n')

    async def write(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10))

    folder.bucket.refuses = True
    try:
        for call in (
            lambda: found(source),
            lambda: list(read_on(source, "a.jsonl")),
            lambda: with_writers(sink, place(), do=write),
        ):
            with pytest.raises(
                FilesError, match=r"403 Forbidden.*refuses the worker's account: correct what"
            ) as caught:
                call()
            assert "secret" not in str(caught.value)
            assert "\n" not in str(caught.value)
    finally:
        folder.bucket.refuses = False
    assert [one.cents for one in values_of(source, "a.jsonl")] == [7]
    with_writers(sink, place(), do=write)
    assert folder.cents() == [7, 10]


@pytest.mark.guarantee("G3")
def test_a_former_process_writes_nothing_into_a_bucket(folder: Place) -> None:
    async def do(former: SinkWriter[Sale], present: SinkWriter[Sale]) -> None:
        await former.write(batch(1, 10))
        await present.write(batch(1, 10))
        await present.write(batch(2, 20))
        with pytest.raises(FilesError, match="another process has changed it meanwhile"):
            await former.write(batch(2, 21, id="2b"))
        await present.write(batch(3, 30))

    with_writers(write_files(folder.url, Sale), place(), place(), do=do)
    assert folder.cents() == [10, 20, 30]


@pytest.mark.guarantee("G3")
def test_of_two_first_writers_of_a_bucket_one_goes_on(folder: Place) -> None:
    """Both have seen no progress."""
    first = folder.storage.replace("p.json", b"1", None)
    with pytest.raises(FilesError, match="another process has changed it"):
        folder.storage.replace("p.json", b"2", None)
    assert folder.storage.replace("p.json", b"1", None) == first
    assert folder.storage.load("p.json") == first


@pytest.mark.skipif(bool(other_server()), reason="it breaks the bucket's answers")
@pytest.mark.guarantee("G1")
def test_a_lost_answer_of_a_bucket_changes_nothing(folder: Place) -> None:
    async def do(writer: SinkWriter[Sale]) -> None:
        for number in (1, 2, 3):
            folder.bucket.lost = number
            await writer.write(batch(number, number))

    with_writers(write_files(folder.url, Sale), place(), do=do)
    assert folder.cents() == [1, 2, 3]


@pytest.mark.skipif(bool(other_server()), reason="it holds requests back")
@pytest.mark.guarantee("G1")
async def test_a_process_that_wakes_up_writes_the_same_file(folder: Place) -> None:
    """It was paused between the progress and the file. Its successor has gone on meanwhile."""
    sink = write_files(folder.url, Sale)
    former, present = await sink.open_writer(place()), await sink.open_writer(place())
    folder.bucket.hold("000000000001")
    late = asyncio.create_task(former.write(batch(1, 10)))
    assert await asyncio.to_thread(folder.bucket.held.wait, patience(20))
    await present.write(batch(1, 10))
    await present.write(batch(2, 20))
    folder.bucket.release()
    await late
    assert folder.cents() == [10, 20]


@pytest.mark.guarantee("G1")
def test_a_topology_reads_a_bucket_and_writes_it(folder: Place) -> None:
    for number in range(3):
        lines = "".join(f'{{"item":"tea","cents":{100 * number + line}}}\n' for line in range(20))
        folder.storage.write(f"in/{number}.jsonl", lines.encode())
    topology = mw.Topology("shop")
    sales = topology.source("sales", Sale, read_files(f"{folder.url}/in/*.jsonl", Sale))
    sales.to("lake", write_files(f"{folder.url}/out", Sale, format="parquet"), batch_records=7)
    with small_reads(100), running(topology) as harness:
        for _ in range(4):
            harness.crash()
            harness.advance_clock(mw.seconds(1))
    folder.storage = storage_of(parse_root(f"{folder.url}/out"))
    assert folder.cents() == [100 * number + line for number in range(3) for line in range(20)]


def test_the_folder_may_be_the_bucket_itself(folder: Place, tmp_path: Path) -> None:
    assert str(parse_root(f"s3://{BUCKET}/")) == f"s3://{BUCKET}"
    storage = storage_of(parse_root(f"s3://{BUCKET}"))
    name = f"{uuid4().hex}.txt"
    storage.write(name, b"x")
    assert storage.find([name]) == storage.find([name], since=1) == [name]
    assert storage.find([name], since=4_102_444_800_000_000) == []  # in 2100
    assert storage.name(name) == f"s3://{BUCKET}/{name}"
