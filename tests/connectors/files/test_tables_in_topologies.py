"""From Parquet files to windows and sinks: by columns and row by row, with the same outcome (5.2, 6.1; G1, G7, G12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.connectors import read_files, write_files
from millwheel.connectors.source import BadRecordError
from millwheel.worker.interval import IntervalSettings
from tests.connectors.files.given import files_in, without_syncs
from tests.connectors.files.parquet import write
from tests.connectors.given import at, running
from tests.injectors.by_columns import sent_by_columns

NOW = at(10_000)
FAR = at(500 * 86_400)
COLUMNS = IntervalSettings(columns_from=1)


class Bid(msgspec.Struct):
    auction: str
    cents: int
    at: mw.Timestamp
    bidder: int | None = None
    file: str = ""


class Seen(mw.Computation[Bid, None]):
    """Produces what it gets."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Bid]) -> None:
        ctx.produce("seen", record.value)


def time_of(bid: Bid) -> mw.Timestamp:
    """A function, so each row needs a value."""
    return bid.at


def counted(topology: mw.Topology, pattern: Path, timestamp: Any) -> Any:
    source = read_files(pattern, Bid, file_field="file")
    bids = topology.source("bids", Bid, source, timestamp=timestamp, bad="bad", out_of_order=mw.seconds(5))
    keyed = bids.filter(mw.col("cents") != 7).key_by("auction").window(windows.tumbling(mw.seconds(10)))
    keyed.aggregate("totals", n=agg.count(), t=agg.sum("cents"))
    return bids


def outcome(folder: Path, *, columns: bool, crash_at: frozenset[int] = frozenset(), **options: Any) -> dict[str, Any]:
    """What becomes of the files of a folder."""
    topology = mw.Topology("auctions")
    counted(topology, folder / "*.parquet", "at" if columns else time_of)
    with running(topology, now=NOW, settings=COLUMNS, any_timestamp=False, split_at=["b"], **options) as harness:
        for step in range(6):
            harness.advance_clock(mw.seconds(1))
            if step in crash_at:
                harness.crash()
        splits = [path.name for path in sorted(folder.glob("*.parquet"))]
        states = {name: harness.state("bids-reader", name) for name in splits}
        harness.advance_clock(mw.seconds(60))
        totals = [(msgspec.to_builtins(one.value), one.timestamp) for one in harness.produced("totals")]
        return {
            "totals": sorted(totals, key=repr),
            "bids": sorted(((one.value, one.timestamp) for one in harness.produced("bids")), key=repr),
            "bad": sorted(harness.values("bad"), key=repr),
            "states": {name: (one.position, one.watermark, one.records, one.bad) for name, one in states.items()},
            "counts": harness.counts("totals")["records"],
        }


rows = st.tuples(
    st.sampled_from(["a", "b", "", None]),
    st.one_of(st.integers(0, 9), st.none(), st.just(2**40)),
    st.one_of(st.integers(0, 60).map(at), st.sampled_from([FAR, mw.Timestamp(0)])),
    st.one_of(st.none(), st.integers(0, 3)),
)
good = st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 60).map(at), st.integers(0, 3))
files = st.lists(st.lists(st.one_of(good, good, good, rows), max_size=8), min_size=1, max_size=3)


def write_files_of(folder: Path, content: list[list[Any]]) -> None:
    for number, found in enumerate(content):
        columns: list[Any] = list(zip(*found, strict=True)) or [(), (), (), ()]
        types = (pa.string(), pa.int64(), pa.timestamp("us"), pa.int32())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        names = ("auction", "cents", "at", "bidder")
        write(folder / f"{number}.parquet", dict(zip(names, arrays, strict=True)), group=3)


@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.guarantee("G7", section="5.2")
@settings(max_examples=25)
@given(content=files, crash_at=st.frozensets(st.integers(0, 5)))
@example(content=[[("a", 1, FAR, 1), ("a", 2, at(2), 1)]], crash_at=frozenset())
def test_files_by_columns_have_the_outcome_of_rows(
    tmp_path_factory: pytest.TempPathFactory, content: list[list[Any]], crash_at: frozenset[int]
) -> None:
    folder = tmp_path_factory.mktemp("bids")
    write_files_of(folder, content)
    assert outcome(folder, columns=True, crash_at=crash_at) == outcome(folder, columns=False)


def test_the_rows_of_a_file_stay_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files_of(tmp_path, [[(key, cents, at(cents), 1) for cents in range(20) for key in "abc"]])
    found = sent_by_columns(monkeypatch)
    by_columns = outcome(tmp_path, columns=True)
    assert sum(found) == 60, "each row is journaled once, as columns"
    assert by_columns["counts"] == 60
    found.clear()
    assert outcome(tmp_path, columns=False) == by_columns
    assert found == []


class Income(msgspec.Struct):
    """What a selection makes of a bid."""

    auction: str
    euros: float
    file: str


def stored(
    folder: Path, lake: Path, way: str, *, columns: bool, crash_at: frozenset[int] = frozenset()
) -> dict[str, list[Any]]:
    """The rows that a sink writes, by the files that they come from, in the order of its batches. And the totals."""
    topology = mw.Topology("auctions")
    bids: Any = counted(topology, folder / "*.parquet", "at" if columns else time_of)
    if way != "as they are":
        bids = bids.filter(mw.col("cents") > 2)
    if way == "select":
        bids = bids.select(Income, euros=mw.col("cents") / 100)
    kind = Income if way == "select" else Bid
    bids.to("lake", write_files(lake, kind, format="parquet"), batch_records=3, batch_delay=mw.seconds(3))
    # The sink and the first file are in one interval, and the other files are in another.
    with without_syncs(), running(topology, now=NOW, settings=COLUMNS, split_at=["1"]) as harness:
        for step in range(12):
            harness.advance_clock(mw.seconds(1))
            if step in crash_at:
                harness.crash()
        harness.advance_clock(mw.seconds(60))
        found: dict[str, list[Any]] = {"totals": sorted(map(msgspec.to_builtins, harness.values("totals")), key=repr)}
    for _, content in sorted(files_in(lake).items(), key=lambda one: one[0].rpartition("/")[2]):
        for row in pq.read_table(pa.BufferReader(content)).to_pylist():
            found.setdefault(row["file"], []).append(row)
    return found


@pytest.mark.guarantee("G1", section="4.3")
@pytest.mark.guarantee("G15", section="4.3")
@pytest.mark.parametrize("way", ["as they are", "filter", "select"])
@settings(max_examples=12)
@given(content=files, crash_at=st.frozensets(st.integers(0, 11)))
def test_a_sink_of_files_by_columns_has_the_rows(
    way: str, tmp_path_factory: pytest.TempPathFactory, content: list[list[Any]], crash_at: frozenset[int]
) -> None:
    folder = tmp_path_factory.mktemp("bids")
    write_files_of(folder, content)
    found = stored(folder, folder / "columns", way, columns=True, crash_at=crash_at)
    assert found == stored(folder, folder / "rows", way, columns=False)


@pytest.mark.parametrize("way", ["as they are", "filter", "select"])
def test_rows_stay_columns_up_to_a_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    write_files_of(tmp_path, [[(key, cents, at(cents), 1) for cents in range(20) for key in "abc"]])
    found = sent_by_columns(monkeypatch)
    by_columns = stored(tmp_path, tmp_path / "columns", way, columns=True)
    assert len(by_columns["0.parquet"]) == (60 if way == "as they are" else 51)
    assert sum(found) >= 60, "each row is journaled once, as columns"
    found.clear()
    assert stored(tmp_path, tmp_path / "rows", way, columns=False) == by_columns
    assert found == []


def test_a_consumer_whose_key_is_code_gets_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files_of(tmp_path, [[("a", cents, at(cents), 1) for cents in range(20)]])
    found = sent_by_columns(monkeypatch)
    topology = mw.Topology("auctions")
    bids = counted(topology, tmp_path / "*.parquet", "at")
    others = bids.key_by(lambda bid: bid.auction * 2).window(windows.tumbling(mw.minutes(1)))
    others.aggregate("others", agg.count())
    with running(topology, now=NOW, settings=COLUMNS) as harness:
        harness.advance_clock(mw.seconds(10))
        assert harness.counts("totals")["records"] == 20
        assert [(one.key, one.value) for one in harness.values("others")] == [("aa", 20)]
    assert found == []


def test_streams_made_of_the_records_get_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files_of(tmp_path, [[("a", cents, at(cents), 1) for cents in range(5)]])
    found = sent_by_columns(monkeypatch)
    topology = mw.Topology("auctions")
    counted(topology, tmp_path / "*.parquet", "at").map(lambda bid: bid.cents, int).named("cents")
    with running(topology, now=NOW, settings=COLUMNS) as harness:
        harness.advance_clock(mw.seconds(10))
        assert harness.values("cents") == list(range(5))
    assert found == []


def test_hooks_get_the_rows_of_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files_of(tmp_path, [[(key, cents, at(cents), None) for cents in range(5) for key in "ab"]])
    found = sent_by_columns(monkeypatch)
    topology = mw.Topology("auctions")
    source = read_files(tmp_path / "*.parquet", Bid, file_field="file")
    bids = topology.source("bids", Bid, source, timestamp="at")
    bids.key_by("auction").process("see", Seen(), outputs={"seen": Bid})
    with running(topology, now=NOW) as harness:
        harness.advance_clock(mw.seconds(10))
        seen = harness.values("seen")
    assert seen == [Bid(key, cents, at(cents), None, "0.parquet") for key in "ab" for cents in range(5)]
    assert sum(found) == 10


def test_a_bad_row_without_a_place_for_it_stops_its_split(tmp_path: Path) -> None:
    write_files_of(tmp_path, [[("a", 1, at(1), 1), ("a", None, at(2), 1)]])
    topology = mw.Topology("auctions")
    bids = topology.source("bids", Bid, read_files(tmp_path / "*.parquet", Bid), timestamp="at")
    bids.key_by("auction").process("see", Seen(), outputs={"seen": Bid})
    with pytest.raises(BadRecordError, match="row 2: Expected `int`, got `null`"), running(topology, now=NOW):
        pass
