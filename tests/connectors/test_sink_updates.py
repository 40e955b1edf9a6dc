"""What waits in a sink as columns, and the values that steps make: as by values, or an error of one record (4.3)."""

from __future__ import annotations

from array import array
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import millwheel as mw
from millwheel.connectors import write_files
from millwheel.connectors.batches import EncodedTable
from millwheel.connectors.collecting import ShardTable
from millwheel.connectors.contents import BatchRecords
from millwheel.connectors.tables import row_columns
from millwheel.errors import NotInstalledError
from millwheel.rpc import columns as columns_module
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.codecs import codec_for
from tests.connectors.files.given import files_in, without_syncs
from tests.connectors.given import at, running
from tests.connectors.tables import COLUMNS, Kept, Trade, by_tables

FIELDS = [(one.name, one.type, one.default) for one in msgspec.structs.fields(Trade)]
NOTE: Any = ("colour", str, "none")
CHANGES: dict[str, list[Any]] = {
    "moved": [FIELDS[1], FIELDS[0], *FIELDS[2:]],
    "inserted": [*FIELDS[:6], NOTE, *FIELDS[6:]],
    "appended": [*FIELDS, NOTE],
    "removed": FIELDS[:-1],
}


def changed(change: str) -> Any:
    """The type of trades after an update."""
    fields = [
        (name, kind) if default is msgspec.NODEFAULT else (name, kind, default)
        for name, kind, default in CHANGES[change]
    ]
    made = msgspec.defstruct("Trade", fields, module=Trade.__module__)
    made.__qualname__ = "Trade"
    return made


def to_sink(kind: Any, sink: Any) -> mw.Topology:
    topology = mw.Topology("shop")
    topology.source("trades", kind).to("table", sink)
    return topology


@pytest.mark.guarantee("G1", section="4.3")
@pytest.mark.parametrize("change", ["moved", "inserted", "appended"])
def test_a_table_before_an_update_is_what_its_values_are(change: str) -> None:
    kind, found = changed(change), []
    for tables in (False, True):
        kept = Kept(kind)
        with by_tables(tables), running(to_sink(Trade, Kept())) as harness:
            sent = [Trade("tea", number, 0.5, True, b"", at(1), "north", 3) for number in range(99)]
            harness.send_all("trades", [(trade, at(1)) for trade in sent])
            harness.update(to_sink(kind, kept))
            harness.advance_clock(mw.seconds(1))
        [batch], [table] = kept.batches, kept.tables
        assert isinstance(batch.records, BatchRecords) is tables
        found.append(([msgspec.to_builtins(value) for value, _ in batch.records], table.to_pylist()))
    assert found[0] == found[1]
    assert {row["item"] for _, rows in found for row in rows} == {"tea"}


def stored(kind: Any) -> BatchRecords[Any]:
    """A table of trades as a batch has it, read as a type."""
    rows = [{**msgspec.structs.asdict(Trade("tea", cents, 0.5, True, b"", at(1)))} for cents in range(3)]
    records = RecordColumns(pa.RecordBatch.from_pylist(rows, COLUMNS), array("q", range(3)))
    return BatchRecords([records], codec_for(kind, "sink").decode_all, kind)


@pytest.mark.guarantee("G1", section="4.3")
@pytest.mark.parametrize("change", CHANGES)
def test_columns_of_a_former_type_are_decoded(change: str) -> None:
    kind = changed(change)
    found = stored(kind)
    [records] = found.parts
    assert isinstance(records, RecordColumns)
    assert [value for value, _ in found] == codec_for(kind, "sink").decode_all(records[:])
    assert found.table(row_columns(kind)).to_pylist() == row_columns(kind).table([one for one, _ in found]).to_pylist()


@pytest.mark.guarantee("G1", section="4.3")
def test_a_default_that_a_function_makes_is_made_once() -> None:
    numbers = iter(range(99))
    kind = msgspec.defstruct("Trade", [*FIELDS[:2], ("id", int, msgspec.field(default_factory=numbers.__next__))])
    found = stored(kind)
    assert found.table(row_columns(kind)).column("id").to_pylist() == [one.id for one, _ in found] == [0, 1, 2]


def test_records_of_a_table_are_compared_as_a_list_is() -> None:
    found = stored(Trade)
    assert found == [(Trade("tea", cents, 0.5, True, b"", at(1)), cents) for cents in range(3)]
    assert found == stored(Trade)
    assert (found != [], found != 3, repr(found)) == (
        True,
        True,
        "BatchRecords(Trade, records=3)",
    )


class Sold(msgspec.Struct):
    item: str
    left: int


@pytest.mark.guarantee("G1", section="4.3")
@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_none_that_select_takes_over_fails_before_its_batch(tables: bool, empty: bool) -> None:
    """No batch has a value that does not decode, and no table has None in a field that is never None."""
    kept, topology = Kept(Sold), mw.Topology("shop")
    topology.source("trades", Trade).select(Sold).to("table", kept)
    sent = [
        Trade("a", number, 0.5, True, b"", at(1), left=None if empty and number == 50 else 1) for number in range(99)
    ]
    with by_tables(tables), running(topology) as harness:
        with pytest.raises(mw.ValueEncodeError, match="Expected `int`, got `None`") if empty else nullcontext():
            harness.send_all("trades", [(trade, at(1)) for trade in sent])
        for _ in range(20):
            with suppress(mw.ValueEncodeError):
                harness.advance_clock(mw.seconds(60))
    assert [value.left for batch in kept.batches for value, _ in batch.records] == [1] * (50 if empty else 99)
    assert empty or [isinstance(batch.records, BatchRecords) for batch in kept.batches] == [tables]


class Ping(msgspec.Struct):
    """It has no field."""


class Pings(Kept):
    async def write(self, batch: Any) -> None:
        self.batches.append(batch)


@pytest.mark.guarantee("G1", section="4.3")
def test_records_without_fields_are_no_table() -> None:
    kept = Pings(Ping)
    with by_tables(), running(to_sink(Ping, kept)) as harness:
        harness.send_all("trades", [(Ping(), at(1))] * 99)
        harness.advance_clock(mw.seconds(1))
    assert [[value for value, _ in batch.records] for batch in kept.batches] == [[Ping()] * 99]
    none = RecordColumns(pa.record_batch({"x": [1] * 99}).select([]), array("q", range(99)))
    assert (none.why_unreadable[:12], ShardTable(none).stays) == ("columns need", False)


def test_a_worker_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    [records] = stored(Trade).parts
    assert isinstance(records, RecordColumns)
    table = EncodedTable.of(records, 0)
    assert list(table.records()) == list(records)
    with pytest.raises(ValueError, match="no columns of records"):
        RecordColumns.from_stored(b"\xff")
    monkeypatch.setattr(columns_module, "has_columns", lambda: False)
    with pytest.raises(NotInstalledError, match=r"install openmillwheel\[arrow\] on all workers"):
        table.records()


class Counted(msgspec.Struct):
    cents: float


@pytest.mark.guarantee("G1", section="4.3")
def test_the_folder_of_a_row_is_that_of_its_record(tmp_path: Path) -> None:
    """The sink's type has the field as another number: a record with 5 is in the folder of 5, not in that of 5.0."""
    folders = []
    for tables in (False, True):
        place = tmp_path / str(tables)
        lake = write_files(place, Counted, format="parquet", by="cents")
        with by_tables(tables), without_syncs(), running(to_sink(Trade, lake)) as harness:
            harness.send_all("trades", [(Trade("a", 5, 0.5, True, b"", at(1)), at(1))] * 99)
            harness.advance_clock(mw.seconds(1))
        folders.append({name.split("/")[0] for name in files_in(place)})
    assert folders == [{"cents=5"}] * 2
