"""The sink of tables: each record once, through crashes, late processes, restores and other columns (6.1)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.schema import PrimitiveType
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors import DeltaTableError, FilesError, Sink, SinkBatch, SinkWriter, write_delta
from millwheel.connectors.delta import sink as delta_sink
from millwheel.sdk.errors import UsageError
from millwheel.windows.result import Result
from tests.connectors.delta.given import (
    batch,
    batches_in,
    cents_in,
    commits,
    place,
    rows_in,
    with_writers,
    write,
)
from tests.connectors.files.given import Sale, age, without_syncs
from tests.connectors.files.test_sink import Colour, Inner, Wide
from tests.connectors.given import at, running


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Path]:
    with without_syncs():
        yield tmp_path / "sales"


class Discounted(msgspec.Struct):
    """A sale as a later version of a topology has it."""

    item: str
    cents: int
    discount: float | None = None


@pytest.mark.guarantee("G1")
@settings(max_examples=8)
@given(sales=st.lists(st.integers(0, 3), min_size=1, max_size=8), crash_at=st.sets(st.integers(0, 8)))
def test_each_record_is_in_the_table_once(
    tmp_path_factory: pytest.TempPathFactory, sales: list[int], crash_at: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("lake") / "sales"
    topology = mw.Topology("shop")
    sink = write_delta(folder, Sale, partition_by="item")
    topology.source("sales", Sale).to("sales-table", sink, batch_records=3, shards=2)
    with without_syncs(), running(topology) as harness:
        for number, cents in enumerate(sales):
            harness.send("sales", Sale(f"item {cents}", cents), at(number))
            if number in crash_at:
                harness.crash()
        harness.advance_clock(mw.seconds(60))
    assert cents_in(folder) == sorted(sales)
    read: list[int] = DeltaTable(folder).to_pyarrow_table().column("cents").to_pylist()
    assert sorted(read) == sorted(sales)


@pytest.mark.guarantee("G3")
def test_a_former_process_commits_nothing(table: Path) -> None:
    """It has loaded the table, and its successor has gone on."""

    async def do(former: SinkWriter[Sale], present: SinkWriter[Sale]) -> None:
        await former.write(batch(1, 10))
        await present.write(batch(1, 10))
        await present.write(batch(2, 20))
        await former.write(batch(2, 20))  # it is there
        with pytest.raises(DeltaTableError, match=r"has batch 2 .* another batch 2 comes next"):
            await former.write(batch(2, 21, salt="other", after=batch(1).id))
        await present.write(batch(3, 30))

    with_writers(write_delta(table, Sale), place(), place(), do=do)
    assert cents_in(table) == [10, 20, 30]


@pytest.mark.guarantee("G1")
def test_shards_that_write_at_once_lose_nothing(table: Path) -> None:
    """Each makes the table, and each commit comes before some of the others."""

    async def do(*writers: SinkWriter[Sale]) -> None:
        for number in (1, 2, 3, 4):
            await asyncio.gather(
                *(writer.write(batch(number, 10 * number + shard)) for shard, writer in enumerate(writers))
            )

    with_writers(write_delta(table, Sale), *map(place, range(4)), do=do)
    assert cents_in(table) == [10 * number + shard for number in (1, 2, 3, 4) for shard in range(4)]
    assert sum("metaData" in action for actions in commits(table) for action in actions) == 1


@pytest.mark.guarantee("G1")
def test_readers_see_whole_batches(table: Path) -> None:
    write(write_delta(table, Sale, partition_by="cents"), batch(1, 1, 2, 3), batch(2, 4, 5))
    assert [sorted(row["cents"] for row in rows) for rows in batches_in(table)] == [["1", "2", "3"], ["4", "5"]]
    assert [DeltaTable(table, version=version).count() for version in range(3)] == [0, 3, 5]
    history = {one["userMetadata"] for one in DeltaTable(table).history() if "userMetadata" in one}
    assert history == {f"millwheel: shop/sales-table, shard 0, batch {number}" for number in (1, 2)}


@pytest.mark.guarantee("G1")
def test_the_progress_outlasts_the_log(table: Path) -> None:
    """A checkpoint stands for the commits before it, which are removed after days."""
    sink = write_delta(table, Sale)
    write(sink, batch(1, 10), batch(2, 20))
    DeltaTable(table).create_checkpoint()
    for path in sorted((table / "_delta_log").glob("0*.json"))[:-1]:
        path.unlink()
    write(sink, batch(2, 20))
    write(sink, batch(3, 30))
    with pytest.raises(DeltaTableError, match=r"has batch 3 .* and batch 5 comes next"):
        write(sink, batch(5, 50))
    read: list[int] = DeltaTable(table).to_pyarrow_table().column("cents").to_pylist()
    assert sorted(read) == [10, 20, 30]


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("is_old", [True, False], ids=["after a minute", "before"])
def test_a_clean_up_behind_a_writer_loses_nothing(table: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool) -> None:
    """Commits are removed that an idle writer has not read. Its own would be at the number of one of these."""

    async def do(idle: SinkWriter[Sale], other: SinkWriter[Sale]) -> None:
        await idle.write(batch(1, 10))
        there = len(commits(table))
        properties = {"delta.checkpointInterval": "1", "delta.logRetentionDuration": "interval 0 days"}
        DeltaTable(table).alter.set_table_properties(properties)
        for number in (1, 2, 3):
            await other.write(batch(number, 10 * number + 1))
        assert not (table / f"_delta_log/{there:020}.json").exists()
        if is_old:
            monkeypatch.setattr(delta_sink, "NEWEST_SECONDS", 0.0)
        else:
            with pytest.raises(DeltaTableError, match="Invalid table version"):
                await idle.write(batch(2, 20))
        await idle.write(batch(2, 20))

    with_writers(write_delta(table, Sale), place(), place(1), do=do)
    read: list[int] = DeltaTable(table).to_pyarrow_table().column("cents").to_pylist()
    assert sorted(read) == [10, 11, 20, 21, 31]


def test_the_owner_may_compact_the_table_meanwhile(table: Path) -> None:
    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 1))
        await writer.write(batch(2, 2))
        owner = DeltaTable(table)
        assert owner.optimize.compact()["numFilesRemoved"] == 2
        owner.vacuum(0, dry_run=False, enforce_retention_duration=False)
        await writer.write(batch(3, 3))

    with_writers(write_delta(table, Sale), place(), do=do)
    read: list[int] = DeltaTable(table).to_pyarrow_table().column("cents").to_pylist()
    assert sorted(read) == [1, 2, 3]


def progress_to_set(caught: pytest.ExceptionInfo[DeltaTableError]) -> dict[str, int]:
    """What the message says."""
    found = re.search(r"\{.*\}", str(caught.value))
    assert found is not None
    numbers: dict[str, int] = json.loads(found[0])
    return numbers


def set_progress(table: Path, numbers: dict[str, int]) -> None:
    """As docs/delta.md says."""
    one = DeltaTable(table)
    properties = CommitProperties(app_transactions=[Transaction(*number) for number in numbers.items()])
    one.create_write_transaction([], "append", one.schema(), commit_properties=properties)


@pytest.mark.guarantee("G1")
def test_a_restored_topology_is_noticed_and_can_go_on(table: Path) -> None:
    sink = write_delta(table, Sale)
    write(sink, *(batch(number, number) for number in (1, 2, 3)))
    others = [batch(2, 20, salt="b", after=batch(1).id), batch(3, 30, salt="b"), batch(4, 40, salt="b")]
    for other in others:
        with pytest.raises(DeltaTableError, match=f"has batch 3 .* another batch {other.number} comes next"):
            write(sink, other)
    assert cents_in(table) == [1, 2, 3]
    with pytest.raises(DeltaTableError) as caught:
        write(sink, others[0])
    DeltaTable(table).delete("cents > 1")
    set_progress(table, progress_to_set(caught))
    write(sink, *others)
    read: list[int] = DeltaTable(table).to_pyarrow_table().column("cents").to_pylist()
    assert sorted(read) == [1, 20, 30, 40]


@pytest.mark.guarantee("G1")
def test_a_table_that_was_replaced_is_noticed_and_can_go_on(table: Path) -> None:
    sink = write_delta(table, Sale)
    write(sink, batch(1, 1), batch(2, 2))
    former = table.with_name("former")
    shutil.copytree(table, former)
    write(sink, batch(3, 3))
    shutil.rmtree(table)
    with pytest.raises(DeltaTableError, match=r"has no batch of shop/sales-table, shard 0, and batch 4 comes next"):
        write(sink, batch(4, 4))
    assert not table.exists()
    former.rename(table)
    with pytest.raises(DeltaTableError, match=r"has batch 2 .* the table was set back") as caught:
        write(sink, batch(4, 4))
    set_progress(table, progress_to_set(caught))
    write(sink, batch(4, 4))
    assert cents_in(table) == [1, 2, 4]


def test_a_table_that_goes_away_while_it_is_written_is_an_error(table: Path) -> None:
    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 1))
        shutil.rmtree(table)
        with pytest.raises(DeltaTableError):
            await writer.write(batch(2, 2))

    with_writers(write_delta(table, Sale), place(), do=do)
    assert not list(table.glob("_delta_log/*.json"))


@pytest.mark.guarantee("G1")
def test_another_first_batch_of_a_run_can_go_on(table: Path) -> None:
    """The snapshot that was restored had records of this run, and none of its batches."""
    sink = write_delta(table, Sale)
    write(sink, batch(1, 10), batch(2, 20))
    other = batch(1, 11, salt="b")
    with pytest.raises(DeltaTableError, match=r"has batch 2 .* another batch 1 comes next") as caught:
        write(sink, other)
    set_progress(table, progress_to_set(caught))
    write(sink, other)
    write(sink, other)
    assert cents_in(table) == [10, 11, 20]


def test_a_later_topology_ends_the_former_one(table: Path) -> None:
    """If the later one was a fork that is deleted, the former one is shown its way on."""
    sink = write_delta(table, Sale)
    write(sink, batch(1, 10))
    write(sink, batch(1, 11, salt="b"), place=place(run=6))
    with pytest.raises(DeltaTableError, match="a later topology of the same name") as caught:
        write(sink, batch(2, 20))
    set_progress(table, progress_to_set(caught))
    write(sink, batch(2, 20))
    assert cents_in(table) == [10, 11, 20]


def test_columns_that_are_added_need_the_option(table: Path) -> None:
    write(write_delta(table, Sale), batch(1, 10))
    later = batch(2, Discounted("tea", 20, 0.5))
    with pytest.raises(DeltaTableError, match=r"discount \(double\) is not in the table\. .*merge_schema=True"):
        write(write_delta(table, Discounted), later)
    assert cents_in(table) == [10]
    write(write_delta(table, Discounted, merge_schema=True), later, batch(3, Discounted("tea", 30)))
    # The former version of the topology again.
    with pytest.raises(DeltaTableError, match=r"discount \(double\) is not in the records"):
        write(write_delta(table, Sale), batch(4, 40))
    write(write_delta(table, Sale, merge_schema=True), batch(4, 40))
    read = DeltaTable(table).to_pyarrow_table().sort_by("cents").to_pylist()
    assert read == [
        {"item": "tea", "cents": cents, "discount": discount}
        for cents, discount in ((10, None), (20, 0.5), (30, None), (40, None))
    ]


@pytest.mark.guarantee("G1")
def test_columns_that_change_meanwhile_are_looked_at(table: Path) -> None:
    """Two shards add the same column, and so does the owner."""

    async def do(first: SinkWriter[Any], second: SinkWriter[Any], former: SinkWriter[Any]) -> None:
        for writer in (first, second, former):
            await writer.write(batch(1, 1))
        DeltaTable(table).alter.add_columns([Field("note", PrimitiveType("string"))])
        await first.write(batch(2, 2))
        with pytest.raises(DeltaTableError, match=r"note \(string\) is not in the records"):
            await former.write(batch(2, 2))
        DeltaTable(table).alter.add_columns([Field("discount", PrimitiveType("double"))])
        await second.write(batch(2, 2))

    async def later(*writers: SinkWriter[Any]) -> None:
        await asyncio.gather(*(writer.write(batch(3, Discounted("tea", 3, 0.5))) for writer in writers))

    merges: Sink[Any] = write_delta(table, Sale, merge_schema=True)

    class Mixed(Sink[Any]):
        async def open_writer(self, one: Any) -> SinkWriter[Any]:
            return await (merges if one.shard < 2 else write_delta(table, Sale)).open_writer(one)

    with_writers(Mixed(), place(0), place(1), place(2), do=do)
    with_writers(write_delta(table, Discounted, merge_schema=True), place(0), place(1), do=later)
    read: list[int] = DeltaTable(table).to_pyarrow_table().column("cents").to_pylist()
    assert sorted(read) == [1, 1, 1, 2, 2, 3, 3]


class Other(msgspec.Struct):
    item: int
    cents: int


@pytest.mark.parametrize("merge", [False, True])
def test_a_table_of_other_columns_is_refused(table: Path, merge: bool) -> None:
    DeltaTable.create(
        table, schema=Schema([Field("item", PrimitiveType("string")), Field("cents", PrimitiveType("long"))])
    )
    with pytest.raises(DeltaTableError, match=r"do not fit .* item is string in the table, and long in the records"):
        write(write_delta(table, Other, merge_schema=merge), batch(1, Other(1, 1)))
    with pytest.raises(DeltaTableError, match="partitioned not at all, and the sink states by item"):
        write(write_delta(table, Sale, partition_by="item", merge_schema=merge), batch(1, 1))
    assert DeltaTable(table).version() == 0
    write(write_delta(table, Sale, merge_schema=merge), batch(1, 1))
    assert cents_in(table) == [1]


def test_columns_of_a_table_may_have_another_order(table: Path) -> None:
    schema = Schema([Field("cents", PrimitiveType("long"), nullable=False), Field("item", PrimitiveType("string"))])
    DeltaTable.create(table, schema=schema)
    write(write_delta(table, Sale), batch(1, 1))
    assert rows_in(table) == [{"cents": 1, "item": "tea"}]


def test_a_table_that_is_not_null_where_a_record_is_refuses_it(table: Path) -> None:
    schema = Schema([
        Field("item", PrimitiveType("string")), Field("cents", PrimitiveType("long")),
        Field("discount", PrimitiveType("double"), nullable=False),
    ])  # fmt: skip
    DeltaTable.create(table, schema=schema)
    with pytest.raises(DeltaTableError):
        write(write_delta(table, Discounted), batch(1, Discounted("tea", 1)))
    assert rows_in(table) == []


def test_partitions_have_all_values(table: Path) -> None:
    items = ["tea", "a/b=c%20 ü", "", "tea"]
    sales = [Sale(item, number) for number, item in enumerate(items)]
    write(write_delta(table, Sale, partition_by=["item"]), batch(1, *sales))
    one = DeltaTable(table)
    assert one.metadata().partition_columns == ["item"]
    read = one.to_pyarrow_table().sort_by("cents").to_pylist()
    # The format has no empty text for a partition.
    assert [row["item"] for row in read] == ["tea", "a/b=c%20 ü", None, "tea"]
    assert sorted(row["cents"] for row in rows_in(table)) == [0, 1, 2, 3]


def test_each_type_of_field_is_a_column(table: Path) -> None:
    when = datetime(2026, 1, 1, 12, tzinfo=UTC)
    wide = Wide(
        at(0), when, date(2026, 1, 1), 3, None, True, b"x", Decimal("1.5"), UUID(int=7), Colour.RED, "a", ["t"],
        {"m": 1}, Inner(4),
    )  # fmt: skip
    write(write_delta(table, Wide, partition_by=["day", "ok"]), batch(1, wide), batch(2, wide))
    expected = {
        "at": when, "when": when, "day": date(2026, 1, 1), "count": 3, "share": None, "ok": True, "raw": b"x",
        "price": "1.5", "key": str(UUID(int=7)), "colour": "red", "kind": "a", "tags": ["t"], "marks": [("m", 1)],
        "inner": {"theValue": 4},
    }  # fmt: skip
    assert DeltaTable(table).to_pyarrow_table().to_pylist() == [expected, expected]


@pytest.mark.guarantee("G2")
def test_a_record_that_cannot_be_encoded_makes_no_table(table: Path) -> None:
    with pytest.raises(TypeError):
        write(write_delta(table, Sale), SinkBatch(1, [(object(), at(1))], batch(1).id, ""))
    assert not table.exists()


@contextmanager
def kept_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The files and folders that a block has waited for."""
    kept = set[int]()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: kept.add(os.fstat(descriptor).st_ino))
        yield kept


def checkpoint_of(table: Path, version: int) -> list[Path]:
    log = table / "_delta_log"
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == version
    return [log / f"{version:020}.checkpoint.parquet", log / "_last_checkpoint"]


def test_a_table_in_a_directory_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what another process wrote, and did not wait for."""
    table = tmp_path / "sales"
    sink = write_delta(table, Sale, partition_by="item")
    with without_syncs():
        write(sink, batch(1, 1), place=place(1))
    with kept_files(monkeypatch) as kept:
        write(sink, batch(1, 10))
    assert {path.stat().st_ino for path in [tmp_path, table, *table.rglob("*")]} <= kept


def test_checkpoints_of_a_directory_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader begins with the newest one. It may be of a commit that the writer has waited for before."""
    table = tmp_path / "sales"

    async def do(writer: SinkWriter[Sale]) -> None:
        with without_syncs():
            await writer.write(batch(1, 1))
            DeltaTable(table).alter.set_table_properties({"delta.checkpointInterval": "5"})
            await writer.write(batch(2, 2))
        with kept_files(monkeypatch) as kept:
            await writer.write(batch(3, 3))
        assert {path.stat().st_ino for path in checkpoint_of(table, 4)} <= kept
        with without_syncs():
            await writer.write(batch(4, 4))
            DeltaTable(table).create_checkpoint()  # as another process does
        with kept_files(monkeypatch) as kept:
            await writer.write(batch(5, 5))
        assert {path.stat().st_ino for path in checkpoint_of(table, 5)} <= kept
        for number, broken in ((6, b""), (7, b"{}"), (8, b"null")):  # a loss of power leaves an empty one
            (table / "_delta_log/_last_checkpoint").write_bytes(broken)
            await writer.write(batch(number, number))

    with_writers(write_delta(table, Sale), place(), do=do)


def test_commits_of_a_minute_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others have written. Older ones are there by themselves."""
    table = tmp_path / "sales"
    with without_syncs():
        write(write_delta(table, Sale), batch(1, 1), place=place(1))
        for number in range(110):
            set_progress(table, {"another": number})
    old, *recent = sorted((table / "_delta_log").glob("*.json"))[2:]
    age(old, 120)
    age(old.with_name(f"{0:020}.json"), 240)
    with kept_files(monkeypatch) as kept:
        write(write_delta(table, Sale), batch(1, 10))
    assert {path.stat().st_ino for path in recent} <= kept
    assert old.with_name(f"{0:020}.json").stat().st_ino not in kept


@pytest.mark.guarantee("G1")
def test_a_disk_that_fails_behind_the_commit_repeats_nothing(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same writer gets the batch again. It has the version with its own commit."""

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    async def do(writer: SinkWriter[Sale]) -> None:
        await writer.write(batch(1, 10))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            for _ in range(2):
                with pytest.raises(FilesError, match="Input/output error"):
                    await writer.write(batch(2, 20))
        await writer.write(batch(2, 20))
        await writer.write(batch(3, 30))

    with_writers(write_delta(table, Sale), place(), do=do)
    assert cents_in(table) == [10, 20, 30]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("lake", Sale), {}, "is no place of files"),
        (("/lake%20", Sale), {}, "the place of a table has no %"),
        (("s3://lake/a#b", Sale), {}, "the place of a table has no #"),
        (("/lake", int), {}, "has fields, and int has none"),
        (("/lake", Result[int | str]), {}, r"value is int \| str, which is no column"),
        (("/lake", Sale), {"partition_by": "colour"}, "by colour: columns of .* are item, cents"),
        (("/lake", Wide), {"partition_by": ["share", "tags"]}, "cannot be partitioned by share, tags"),
        (("/lake", Sale), {"partition_by": ["item", "cents"]}, "or all columns"),
        (("/lake", Wide), {"partition_by": ["day", "day"]}, "names a column twice"),
    ],
)
def test_what_cannot_be_a_table_is_refused_at_once(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write_delta(*arguments, **options)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(UsageError, match=r"install openmillwheel\[delta\], here and on the workers"):
        write_delta("/lake", Sale)
