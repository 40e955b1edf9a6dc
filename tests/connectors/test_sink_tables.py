"""Sinks that get tables: each record as by values, in the same batches, without an object for it (4.3, 6.1)."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors import write_files
from millwheel.connectors.batches import Collected, EncodedBatch, EncodedTable
from millwheel.connectors.collecting import ShardTable, ShardValues
from millwheel.connectors.contents import BatchRecords
from millwheel.connectors.files.layout import Layout
from millwheel.connectors.files.table_parts import table_parts
from millwheel.connectors.tables import row_columns
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.batches.column_records import whole_fields
from millwheel.sdk.codecs import codec_for
from tests.connectors.files.given import files_in, without_syncs
from tests.connectors.given import Store, Table, at, running
from tests.connectors.tables import COLUMNS, Kept, Trade, by_tables
from tests.worker.interval.calls import let_calls_grow


class Income(msgspec.Struct):
    """What a selection makes of a trade."""

    item: str
    euros: float
    at: mw.Timestamp
    left: int | None


def topology(way: str, sink: Any, shards: int = 1, **options: Any) -> mw.Topology:
    built = mw.Topology("shop")
    trades: Any = built.source("trades", Trade)
    given = {
        "as they are": lambda: trades,
        "filter": lambda: trades.filter(mw.col("cents") > 1).filter(mw.col("item") != "b"),
        "select": lambda: trades.filter(mw.col("cents") > 1).select(Income, euros=mw.col("cents") / 100),
        "function": lambda: trades.filter(lambda trade: trade.cents > 1),
    }[way]()
    keyed = given.key_by("item") if shards > 1 else given
    keyed.to("table", sink, shards=shards, **options)
    return built


texts = st.sampled_from(["", "a", "b", "ü/1", "\N{CAT}" * 40])
trades = st.builds(
    Trade,
    texts,
    st.integers(0, 4) | st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.booleans(),
    st.binary(max_size=3),
    st.integers(0, 10**15).map(mw.Timestamp),
    st.none() | texts,
    st.none() | st.integers(0, 9),
)
deliveries = st.lists(
    st.tuples(st.lists(st.tuples(trades, st.integers(0, 9_000)), min_size=1, max_size=5), st.sampled_from([1, 7, 40])),
    min_size=1,
    max_size=4,
)
ways = pytest.mark.parametrize("way", ["as they are", "filter", "select", "function"])


def send(harness: Any, sent: Any) -> None:
    """Send some trades many times in one delivery, and then the next ones."""
    for records, times in sent:
        harness.send_all("trades", [(trade, at(second)) for trade, second in records * times])


def files_of(sent: Any, way: str, folder: Path, tables: bool, options: Any, **more: Any) -> dict[str, Any]:
    """The tables of the files that a sink writes of these deliveries."""
    kind = Income if way == "select" else Trade
    lake = write_files(folder, kind, format="parquet", **options)
    with (
        by_tables(tables, one_key="shards" not in more or more["shards"] == 1),
        without_syncs(),
        running(topology(way, lake, **more)) as harness,
    ):
        send(harness, sent)
        harness.advance_clock(mw.seconds(1))
    return {name: pq.read_table(pa.BufferReader(content)) for name, content in files_in(folder).items()}


def rows_of(table: Any) -> list[Any]:
    """The rows, with each NaN as the text of it: it is not equal to itself."""
    return [
        {name: str(cell) if isinstance(cell, float) and math.isnan(cell) else cell for name, cell in row.items()}
        for row in table.to_pylist()
    ]


@pytest.mark.guarantee("G1", section="4.3")
@ways
@settings(max_examples=10)
@given(
    sent=deliveries,
    options=st.sampled_from([{}, {"by": "item"}, {"by_time": "hour"}, {"by_time": "day", "by": "left"}]),
    shards=st.sampled_from([1, 1, 2]),
    most=st.sampled_from([3, 60, 1_000]),
)
def test_files_of_tables_are_those_of_values(
    way: str, sent: Any, options: Any, shards: int, most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Names of files and folders, types of columns, and rows in their order."""
    folder = tmp_path_factory.mktemp("lake")
    more = {"shards": shards, "batch_records": most}
    found = files_of(sent, way, folder / "tables", True, options, **more)
    expected = files_of(sent, way, folder / "values", False, options, **more)
    assert {name: rows_of(table) for name, table in found.items()} == {
        name: rows_of(table) for name, table in expected.items()
    }
    assert all(found[name].schema.equals(table.schema, check_metadata=True) for name, table in expected.items())


@pytest.mark.guarantee("G1", section="4.3")
@ways
def test_no_value_is_made_where_columns_say_it(way: str) -> None:
    kept = Kept(Income if way == "select" else Trade)
    sent = [([(Trade("a", cents, 0.5, True, b"", at(1)), cents) for cents in range(4)], 50)]
    with by_tables(), running(topology(way, kept, batch_records=150)) as harness:
        send(harness, sent)
        harness.advance_clock(mw.seconds(1))
    forms = {type(part) for batch in kept.batches for part in getattr(batch.records, "parts", [batch.records])}
    assert forms == {list if way == "function" else RecordColumns}
    cents = [0, 1, 2, 3] * 50 if way == "as they are" else [2, 3] * 50
    assert [second for batch in kept.batches for _, second in batch.records] == [at(one) for one in cents]
    assert pa.concat_tables(kept.tables).num_rows == len(cents)


@pytest.mark.guarantee("G1", "G15", section="4.3")
@pytest.mark.parametrize("tables", [False, True])
@ways
def test_rows_beyond_one_call_come_with_the_next(way: str, tables: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are read at once, since a filter has dropped nearly all. Then all pass, and a call begins with two."""
    let_calls_grow(monkeypatch)
    kept = Kept(Income if way == "select" else Trade)
    dropped = [(Trade("a", 0, 0.5, True, b"", at(1)), 1)]
    passing = [(Trade("a", 2, 0.5, True, b"", at(1)), second) for second in range(2, 202)]
    with by_tables(tables), running(topology(way, kept)) as harness:
        for _ in range(9):
            send(harness, [(dropped, 300)])
        send(harness, [(passing, 1)])
        harness.advance_clock(mw.seconds(1))
    times = [second for batch in kept.batches for _, second in batch.records]
    assert [one for one in times if one > at(1)] == [at(second) for second in range(2, 202)]
    assert len(times) == 200 + (2_700 if way == "as they are" else 0)


@pytest.mark.guarantee("G1", section="6.1")
@given(
    sent=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    crash_at=st.sets(st.integers(0, 9)),
    before=st.integers(0, 2),
    after=st.integers(0, 2),
)
@settings(max_examples=40)
def test_each_record_of_a_table_is_written_once(sent: list[int], crash_at: set[int], before: int, after: int) -> None:
    """The store compares a batch that comes again with what it has, and each id with the id before."""
    store, numbers = Store(), iter(range(10_000))
    with by_tables(), running(topology("as they are", Table(store), batch_records=70)) as harness:
        store.breaks_before, store.breaks_after = before, after
        for step, count in enumerate(sent):
            records = [(Trade("a", next(numbers), 0.5, True, b"", at(1)), at(step)) for _ in range(count)]
            for action in (harness.crash, lambda records=records: harness.send_all("trades", records)):
                if action is not harness.crash or step in crash_at:
                    with suppress(ConnectionError, TimeoutError):
                        action()
        for step in range(6):
            with suppress(ConnectionError, TimeoutError):
                if step + 5 in crash_at:
                    harness.crash()
            with suppress(ConnectionError, TimeoutError):
                harness.advance_clock(mw.seconds(60))
    assert [trade.cents for trade in store.values()] == list(range(sum(sent)))


@pytest.mark.guarantee("G1", section="4.3")
def test_equal_ids_mean_equal_tables() -> None:
    ids = set()
    for cents in (1, 1, 2):
        kept = Kept()
        with by_tables(), running(topology("as they are", kept, batch_records=90)) as harness:
            harness.send_all("trades", [(Trade("a", cents, 0.5, True, b"", at(1)), at(1))] * 90)
        ids.add(kept.batches[0].id)
    assert len(ids) == 2


@pytest.mark.guarantee("G7", section="4.5")
def test_a_table_holds_the_watermark_at_its_oldest_record() -> None:
    kept = Kept()
    records = [(Trade("a", 1, 0.5, True, b"", at(1)), at(second)) for second in (9, 4, 7)] * 40
    with by_tables(), running(topology("as they are", kept)) as harness:
        harness.send_all("trades", records)
        harness.advance(at(60))
        assert (harness.watermark("table"), kept.batches) == (at(4), [])
        harness.advance_clock(mw.seconds(1))
        assert harness.watermark("table") == at(60)


ByName: Any = msgspec.defstruct(
    "ByName", [(one.name, one.type) for one in msgspec.structs.fields(Trade)], kw_only=True, module=__name__
)
"""The same fields. The constructor takes none by its place."""


@pytest.mark.guarantee("G1", section="4.3")
@pytest.mark.parametrize("kind", [Trade, ByName])
@given(values=st.lists(trades, max_size=4))
def test_values_of_a_table_are_those_that_are_decoded(kind: Any, values: list[Trade]) -> None:
    codec, rows = codec_for(kind, "sink 'table'"), [msgspec.to_builtins(one, builtin_types=(bytes,)) for one in values]
    given = [kind(**msgspec.structs.asdict(one)) for one in values]
    batch = pa.RecordBatch.from_pylist(rows, COLUMNS)
    records = RecordColumns(batch, array("q", range(len(rows))))
    found = [one for one, _ in BatchRecords([records], codec.decode_all, kind)]
    assert list(map(codec.verify, found)) == list(records) == list(map(codec.encode, given))
    assert {type(one) for one in found} <= {kind}


def columns(*texts: str) -> RecordColumns:
    return RecordColumns(pa.record_batch({"text": list(texts)}), array("q", range(len(texts))))


@pytest.mark.guarantee("G15", section="4.3")
def test_values_and_tables_keep_their_order_in_a_batch() -> None:
    class Text(msgspec.Struct):
        text: str

    codec, pending = codec_for(Text, "sink 'table'"), Collected[Text]()
    for number in range(6):
        names = [f"{number}-{at}" for at in range(number + 1)]
        encoded = [codec.encode(Text(name)) for name in names]
        some: Any = ShardTable(columns(*names)) if number % 2 else ShardValues(encoded, range(len(names)))
        assert len(some) == len(names)
        some.put(pending, 0, len(names))
    batch = EncodedBatch[Text]("0", 1, 1, "", "", pending.values, pending.times, tables=pending.tables)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=EncodedBatch[Text])
    found = BatchRecords(list(stored.parts(codec)), codec.decode_all, Text)
    assert [one.text for one, _ in found] == [f"{number}-{at}" for number in range(6) for at in range(number + 1)]
    assert found.table(row_columns(Text)).column("text").to_pylist() == [one.text for one, _ in found]
    assert list(found.times) == [time for _, time in found]
    assert (stored.count, pending.count, len(found)) == (21, 21, 21)
    assert Counter(map(type, found.parts)) == {list: 3, RecordColumns: 3}


@pytest.mark.guarantee("G15", section="4.3")
def test_rows_of_a_folder_keep_their_order() -> None:
    """Also of values that share a folder: an empty text, and none at all."""
    names, times = ["a", "", None, "b", "a", None, ""] * 9, array("q", range(0, 63 * 10**9, 10**9))
    layout = Layout("parquet", by_time="hour", by="note")
    table = pa.table({"note": names, "row": range(63)})
    found = table_parts(layout, table, times, Trade)
    expected: dict[str, list[int]] = {}
    for row, (name, time) in enumerate(zip(names, times, strict=True)):
        folder = layout.folder_of({"note": name}, mw.Timestamp(time))
        expected.setdefault(folder, []).append(row)
    assert found is not None
    assert {folder: part.column("row").to_pylist() for folder, part in found.items()} == expected
    assert len(expected) > 20


@pytest.mark.guarantee("G13", section="4.3")
def test_few_records_and_long_names_go_as_values() -> None:
    """Each table has its schema, and a reader refuses names that would be too long in all records."""
    assert (ShardTable(columns("a")).stays, ShardTable(columns(*["a"] * 200)).stays) == (False, True)
    for length, stays in ((1_000, True), (9_000, False)):
        table = RecordColumns(pa.record_batch({"x" * length: [True] * 4_096}), array("q", range(4_096)))
        assert ShardTable(table).stays is stays
        if stays:
            assert len(EncodedTable.of(table, 0).records()) == 4_096
        else:
            with pytest.raises(ValueError, match="names of columns"):
                EncodedTable.of(table, 0).records()


@pytest.mark.guarantee("G13", section="4.3")
@given(st.lists(st.text(max_size=50), min_size=1, max_size=90), st.integers(0, 20), st.integers(1, 20))
def test_the_size_of_a_table_is_at_least_that_of_its_columns(names: list[str], start: int, count: int) -> None:
    table = columns(*names)
    some, end = ShardTable(table), min(len(names), start + count)
    if start < end:
        part = EncodedTable.of(RecordColumns(table.batch.slice(start, end - start), table.timestamps[start:end]), 0)
        schema = table.batch.schema.serialize().size
        assert len(part.columns) <= some.size(start, end) + schema + 60
        assert some.size(start, end) <= 3 * len(part.columns)


def test_a_type_whose_encoding_leaves_fields_out_goes_by_values() -> None:
    class Short(msgspec.Struct, omit_defaults=True):
        item: str
        cents: int = 0

    class Renamed(msgspec.Struct, rename="camel"):
        the_item: str
        cents: int | None = 0

    class Empty(msgspec.Struct):
        """A table has at least one column."""

    assert all(isinstance(whole_fields(kind), str) for kind in (Short, dict[str, int], Empty))
    found = whole_fields(Renamed)
    assert found[:2] == (["theItem", "cents"], [("the_item", str), ("cents", int)])


@pytest.mark.parametrize("size", [400_000, (1 << 20) - 400])
def test_a_record_that_is_too_large_fails_alone(size: int) -> None:
    kept = Kept()
    small = [(Trade("a", number, 0.5, True, b"", at(1)), at(1)) for number in range(80)]
    large = [(Trade("a", 80, 0.5, True, b"x" * size, at(1)), at(1))]
    with by_tables(), running(topology("as they are", kept)) as harness:
        harness.send_all("trades", small)
        if size < 1 << 19:
            harness.send_all("trades", [*large, *small])
            harness.advance_clock(mw.seconds(1))
            assert sum(len(batch.records) for batch in kept.batches) == 161
        else:
            with pytest.raises(mw.TooLargeError, match="a record for the sink 'shop/table'"):
                harness.send_all("trades", [*large, *small])
