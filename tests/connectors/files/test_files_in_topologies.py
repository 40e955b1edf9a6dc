"""Topologies that read files and write them (5.2, 6.1)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.connectors import BadRecord, FilesError, read_files, write_files
from millwheel.connectors.source import BadRecordError
from millwheel.model.time import to_datetime
from tests.connectors.files.given import records_in, small_reads, without_syncs
from tests.connectors.given import NOON, at, running


class Bid(msgspec.Struct):
    auction: str
    cents: int
    at: mw.Timestamp


def line(auction: str, cents: int, second: int) -> str:
    return f'{{"auction":"{auction}","cents":{cents},"at":{NOON + second * 1_000_000}}}\n'


@pytest.mark.guarantee("G1", section="5.2")
@settings(max_examples=15)
@given(
    files=st.lists(st.lists(st.integers(0, 99), max_size=12), min_size=1, max_size=4),
    crash_at=st.sets(st.integers(0, 6)),
    read_bytes=st.integers(1, 200),
)
def test_each_line_is_in_the_other_folder_once(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], crash_at: set[int], read_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("bids")
    for number, cents in enumerate(files):
        (folder / f"{number}.jsonl").write_text("".join(line(f"a{number}", one, 0) for one in cents))
    topology = mw.Topology("auctions")
    bids = topology.source("bids", Bid, read_files(folder / "*.jsonl", Bid), timestamp="at")
    bids.to("lake", write_files(folder / "lake", Bid, by="auction"), batch_records=3)
    with small_reads(read_bytes), without_syncs(), running(topology) as harness:
        for step in range(7):
            harness.advance_clock(mw.seconds(1))
            if step in crash_at:
                harness.crash()
        harness.advance_clock(mw.seconds(60))
    expected = [(f"a{number}", one) for number, cents in enumerate(files) for one in cents]
    assert sorted((row["auction"], row["cents"]) for row in records_in(folder / "lake")) == sorted(expected)


@pytest.mark.guarantee("G7")
def test_files_that_come_later_are_found(tmp_path: Path) -> None:
    topology = mw.Topology("auctions")
    bids = topology.source("bids", Bid, read_files(tmp_path / "*.jsonl", Bid, watch=True), timestamp="at")
    bids.key_by("auction").window(windows.tumbling(mw.minutes(1))).aggregate("best", cents=agg.max("cents"))
    with running(topology, now=at(0)) as harness:
        for number, cents in enumerate((3, 4)):
            # Before it is found, the clock may not pass its records: they would be late.
            (tmp_path / f"{number}.jsonl").write_text(line("lamp", cents, 60 * number + 10))
            harness.advance_clock(mw.minutes(1))
        harness.advance_clock(mw.minutes(1))
        assert [row.cents for row in harness.values("best")] == [3, 4]


def test_files_may_begin_with_those_of_a_time(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(line("lamp", number, 0))
        os.utime(tmp_path / f"{number}.jsonl", (NOON / 1_000_000 + number,) * 2)

    def auctions(start: Any) -> mw.Topology:
        topology = mw.Topology("auctions")
        topology.source("bids", Bid, read_files(tmp_path / "*.jsonl", Bid, watch=True, start=start), timestamp="at")
        return topology

    with running(auctions(at(1))) as harness:
        harness.advance_clock(mw.seconds(2))
        assert sorted(bid.cents for bid in harness.values("bids")) == [1, 2]
        harness.update(auctions("earliest"))  # those that were read are not read again
        harness.advance_clock(mw.seconds(2))
        assert sorted(bid.cents for bid in harness.values("bids")) == [0, 1, 2]
    once = mw.Topology("once")
    once.source("bids", Bid, read_files(tmp_path / "*.jsonl", Bid, start=to_datetime(at(9))), timestamp="at")
    with pytest.raises(FilesError, match="was changed since start=, 2026-01-01T12:00:09Z"), running(once):
        pass


@pytest.mark.guarantee("G8")
def test_a_line_that_is_no_record_stops_its_file_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line("lamp", 3, 0) + "{\n" + line("lamp", 5, 0))
    (tmp_path / "b.jsonl").write_text(line("lamp", 4, 0))

    def auctions(bad: str | None) -> mw.Topology:
        topology = mw.Topology("auctions")
        bids = topology.source("bids", Bid, read_files(tmp_path / "*.jsonl", Bid), timestamp="at", bad=bad)
        bids.map(lambda bid: bid.cents, to=int).named("cents")
        return topology

    with pytest.raises(Exception, match=r"split 'a\.jsonl', line 2: no record"), running(auctions(None)) as harness:
        harness.advance_clock(mw.seconds(5))
    with running(auctions("unreadable")) as harness:
        harness.advance_clock(mw.seconds(5))
        assert sorted(harness.values("cents")) == [3, 4, 5]
        (one,) = harness.values("unreadable")
        assert (one.split, one.place, one.raw) == ("a.jsonl", "line 2", b"{")


def test_a_line_whose_time_fails_is_named_as_broken_ones(tmp_path: Path) -> None:
    """Regression: its place was its number since the beginning, which is no line where there are empty ones."""
    (tmp_path / "a.jsonl").write_text(line("lamp", 3, 0) + "\n{\n" + line("vase", 4, 0) + line("lamp", 5, 0))

    def time_of(bid: Bid) -> mw.Timestamp:
        if bid.auction == "vase":
            raise ValueError("no time")
        return bid.at

    topology = mw.Topology("auctions")
    topology.source("bids", Bid, read_files(tmp_path / "*.jsonl", Bid), timestamp=time_of, bad="unreadable")
    with running(topology) as harness:
        harness.advance_clock(mw.seconds(5))
        assert [one.cents for one in harness.values("bids")] == [3, 5]
        assert [one.place for one in harness.values("unreadable")] == ["line 3", "line 4"]


def test_more_files_than_a_stream_can_have_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.connectors.files.source.MAX_FILES", 2)
    for number in range(3):
        (tmp_path / f"{number}.jsonl").touch()
    topology = mw.Topology("auctions")
    topology.source("bids", Bid, read_files(tmp_path / "*.jsonl", Bid), timestamp="at")
    with pytest.raises(FilesError, match=r"3 files match .*, and a stream reads 2 at most"), running(topology):
        pass


@pytest.mark.parametrize("kind", [BadRecord, BadRecord | int])
def test_bad_records_in_a_file_are_records_and_others_are_not(tmp_path: Path, kind: Any) -> None:
    """Regression: a stream of BadRecords took what could not be read for one of its records, and bad= got nothing."""
    kept = BadRecord("a", "line 2", "it is no number", b"x")
    (tmp_path / "a.jsonl").write_bytes(msgspec.json.encode(kept) + b"\n{}\n")

    def made(**options: Any) -> mw.Topology:
        topology = mw.Topology("again")
        topology.source("unread", kind, read_files(tmp_path / "*.jsonl", kind), **options)
        return topology

    with running(made(bad="unreadable")) as harness:
        assert harness.values("unread") == [kept]
        (other,) = harness.values("unreadable")
        assert (other.split, other.place, other.raw) == ("a.jsonl", "line 2", b"{}")
    with running(made(bad="unreadable", timestamp=lambda bad: at(1))) as harness:
        assert [len(harness.values(name)) for name in ("unread", "unreadable")] == [1, 1]
    with pytest.raises(BadRecordError, match=r"split 'a\.jsonl', line 2"), running(made()):
        pass
