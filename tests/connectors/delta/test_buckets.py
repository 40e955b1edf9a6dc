"""Tables in a bucket of an object store, by real requests of S3: processes that die, answers that get lost (6.1)."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest
from deltalake import DeltaTable

import millwheel as mw
from millwheel.connectors import DeltaTableError, SinkWriter, write_delta
from tests.connectors.delta.given import batch, cents_in, commits, place, with_writers, write
from tests.connectors.files.buckets import BUCKET, Bucket, other_server, reached_bucket
from tests.connectors.files.given import Sale
from tests.connectors.given import at, running
from tests.house.tree import ROOT
from tests.patience import patience

ours_only = pytest.mark.skipif(bool(other_server()), reason="it breaks the bucket's answers")

WRITES = """
import sys
from millwheel.connectors import write_delta
from tests.connectors.delta.given import batch, write
from tests.connectors.files.given import Sale
write(write_delta(sys.argv[1], Sale), batch(1, 10), batch(2, 20))
"""
"""A process of its own."""


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with reached_bucket() as one:
        yield one


@pytest.fixture
def table(bucket: Bucket) -> str:
    return f"s3://{BUCKET}/{uuid4().hex}/sales"


def commit(version: int) -> str:
    return f"_delta_log/{version:020}.json"


async def until_held(bucket: Bucket) -> None:
    assert await asyncio.to_thread(bucket.held.wait, patience(30))


@pytest.mark.guarantee("G1")
def test_a_topology_writes_a_table_in_a_bucket(table: str) -> None:
    topology = mw.Topology("shop")
    sink = write_delta(table, Sale, partition_by="item")
    topology.source("sales", Sale).to("sales-table", sink, batch_records=3, shards=2)
    with running(topology) as harness:
        for number in range(6):
            harness.send("sales", Sale(f"item {number % 2}", number), at(number))
            if number % 2:
                harness.crash()
        harness.advance_clock(mw.seconds(60))
    assert cents_in(table) == list(range(6))
    read: list[int] = DeltaTable(table).to_pyarrow_table().column("cents").to_pylist()
    assert sorted(read) == list(range(6))


@ours_only
@pytest.mark.parametrize("takes", [True, False], ids=["behind its commit", "before its commit"])
@pytest.mark.guarantee("G1", "G2")
async def test_a_process_may_be_killed_while_it_commits(bucket: Bucket, table: str, takes: bool) -> None:
    """The files of its batch are there. Its successor gets the batch again."""
    bucket.hold(commit(2))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITES, table, cwd=ROOT)
    try:
        await until_held(bucket)
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
        bucket.release(takes=takes)
    writer = await write_delta(table, Sale).open_writer(place())
    for number in (2, 3):
        await writer.write(batch(number, 10 * number))
    await writer.close()
    assert cents_in(table) == [10, 20, 30]
    files = sum(key.startswith(table.removeprefix(f"s3://{BUCKET}/")) and "part-" in key for key in bucket.objects)
    assert files >= 3
    assert len([actions for actions in commits(table) if any("add" in action for action in actions)]) == 3


@ours_only
@pytest.mark.guarantee("G3")
async def test_a_process_that_wakes_up_commits_nothing(bucket: Bucket, table: str) -> None:
    """It was paused before its commit. Its successor has gone on meanwhile."""
    sink = write_delta(table, Sale)
    former, present = await sink.open_writer(place()), await sink.open_writer(place())
    await former.write(batch(1, 10))
    for held, ahead in ((2, 3), (4, 4)):
        bucket.hold(commit(held))
        late = asyncio.create_task(former.write(batch(held, 10 * held)))
        await until_held(bucket)
        for number in range(held, ahead + 1):
            await present.write(batch(number, 10 * number))
        bucket.release()
        if ahead > held:
            with pytest.raises(DeltaTableError, match=f"has batch {ahead} .* another batch {held} comes next"):
                await late
        else:
            await late  # its batch is there, by the other one
    assert cents_in(table) == [10, 20, 30, 40]


@ours_only
@pytest.mark.guarantee("G1")
async def test_of_two_that_make_a_table_one_does(bucket: Bucket, table: str) -> None:
    """The other one has other columns, which must not replace those of the table."""
    first = await write_delta(table, Sale).open_writer(place())
    second = await write_delta(table, Sale, partition_by="item").open_writer(place(1))
    bucket.hold(commit(0))
    late = asyncio.create_task(second.write(batch(1, 11)))
    await until_held(bucket)
    await first.write(batch(1, 10))
    bucket.release()
    with pytest.raises(DeltaTableError, match="partitioned not at all, and the sink states by item"):
        await late
    await first.write(batch(2, 20))
    assert cents_in(table) == [10, 20]
    assert sum("metaData" in action for actions in commits(table) for action in actions) == 1


@ours_only
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_S3_ALLOW_UNSAFE_RENAME", "true"),
        ("AWS_S3_LOCKING_PROVIDER", "dynamodb"),
        ("AWS_COPY_IF_NOT_EXISTS", "multipart"),
        ("AWS_CONDITIONAL_PUT", "disabled"),
    ],
)
@pytest.mark.guarantee("G3")
async def test_no_variable_lets_a_commit_be_replaced(
    bucket: Bucket, table: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that write the same version, one has it. Or the library refuses to write."""
    monkeypatch.setenv(name, value)
    former, present = [await write_delta(table, Sale).open_writer(place(one)) for one in (0, 1)]
    if value == "disabled":
        with pytest.raises(DeltaTableError, match="conditional put is disabled"):
            await former.write(batch(1, 10))
        return
    await former.write(batch(1, 10))
    bucket.hold(commit(2))
    late = asyncio.create_task(former.write(batch(2, 20)))
    await until_held(bucket)
    await present.write(batch(1, 11))
    bucket.release()
    await late
    assert cents_in(table) == [10, 11, 20]


@ours_only
@pytest.mark.guarantee("G1")
def test_a_lost_answer_of_a_bucket_writes_nothing_twice(bucket: Bucket, table: str) -> None:
    """Of the files of a batch, and of its commit."""

    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 1))
        for number, lost in ((2, 1), (3, 2), (4, 3)):
            bucket.lost = lost
            await writer.write(batch(number, number))

    with_writers(write_delta(table, Sale), place(), do=do)
    assert cents_in(table) == [1, 2, 3, 4]


@ours_only
@pytest.mark.guarantee("G8")
def test_a_bucket_that_refuses_the_account_says_so(bucket: Bucket, table: str) -> None:
    sink = write_delta(table, Sale)
    for number in (1, 2):
        bucket.refuses = True
        try:
            with pytest.raises(
                DeltaTableError, match=r"the table s3://shop/.*lacked the necessary privileges"
            ) as caught:
                write(sink, batch(number, number))
        finally:
            bucket.refuses = False
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)
        write(sink, batch(number, number))
    assert cents_in(table) == [1, 2]
