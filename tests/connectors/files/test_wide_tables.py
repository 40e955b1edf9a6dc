"""Files of many columns, and streams of many consumers, by columns (5.2, 6.2; G12, G13)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.connectors import read_files, reading
from millwheel.worker.interval import IntervalSettings
from tests.connectors.files.parquet import write
from tests.connectors.given import at, running
from tests.injectors.by_columns import sent_by_columns

NOW = at(10_000)
READINGS = [(f"reading_{number:04}", float) for number in range(1_300)]
Wide = msgspec.defstruct("Wide", [("k", str), ("at", mw.Timestamp), *READINGS])
Narrow = msgspec.defstruct("Narrow", [("k", str), ("at", mw.Timestamp)])


def rows_from(folder: Path, kind: Any, count: int) -> tuple[mw.Topology, Any]:
    """A topology with a stream of the rows of a file, by their key."""
    columns: dict[str, Any] = {one.name: [1.5] * count for one in msgspec.structs.fields(kind)}
    times = [int(at(number % 20)) for number in range(count)]
    write(folder / "a.parquet", {**columns, "k": ["a"] * count, "at": times})
    topology = mw.Topology("readings")
    source = read_files(folder / "*.parquet", kind)
    rows = topology.source("rows", kind, source, timestamp="at", out_of_order=mw.seconds(30))
    return topology, rows.key_by("k").window(windows.tumbling(mw.seconds(10)))


@pytest.mark.guarantee("G12", section="6.2")
def test_a_reader_of_a_wide_type_survives_a_crash(tmp_path: Path) -> None:
    """Its schema is larger than any reader of a journal takes. So its rows are no columns there."""
    topology, rows = rows_from(tmp_path, Wide, 20)
    rows.aggregate("totals", n=agg.count())
    with running(topology, now=NOW, settings=IntervalSettings(columns_from=1)) as harness:
        harness.crash()
        harness.advance_clock(mw.seconds(60))
        assert sum(one.n for one in harness.values("totals")) == 20


@pytest.mark.guarantee("G13", section="5.2")
def test_a_read_has_fewer_rows_for_many_consumers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology, rows = rows_from(tmp_path, Narrow, 2_000)
    for number in range(12):
        rows.aggregate(f"counts-of-all-readings-{number:02}", n=agg.count())
    monkeypatch.setattr(reading, "MAX_BYTES", 1 << 18)
    found = sent_by_columns(monkeypatch)
    with running(topology, now=NOW) as harness:
        assert harness.counts("counts-of-all-readings-07")["records"] == 2_000
    assert sum(found) == 2_000
    assert max(found) < 400
