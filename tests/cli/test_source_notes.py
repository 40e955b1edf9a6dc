"""What `topology validate` notes of sources."""

from __future__ import annotations

from pathlib import Path

import pytest

import millwheel as mw
from millwheel import connectors
from millwheel.cli.source_notes import source_notes


@pytest.mark.parametrize(("timestamp", "notes"), [(None, 1), (mw.Timestamp, 0)], ids=["without", "with"])
def test_files_without_event_times_are_noted(tmp_path: Path, timestamp: type | None, notes: int) -> None:
    """Regression: nothing said that windows over files without `timestamp=` are of the time of reading."""
    topology = mw.Topology("shop")
    files = connectors.read_files(tmp_path / "*.jsonl", int, format="jsonl")
    topology.source("orders", int, files, timestamp=timestamp)
    found = list(source_notes(topology.plan()))
    assert len(found) == notes
    assert all(one.startswith("source orders has no timestamp=: ") for one in found)


def test_a_source_that_may_say_times_is_not_noted() -> None:
    topology = mw.Topology("shop")
    topology.source("sales", int, connectors.read_log("other/sales", int))
    assert list(source_notes(topology.plan())) == []
