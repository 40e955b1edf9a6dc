"""What the core of an interval gets of the worker's settings."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.catalog import OwnedInterval
from millwheel.model.formats import COLUMNS, DEFLATED_ENTRIES, RESULT_COLUMNS
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.compiled import compile_computation
from millwheel.worker.interval import IntervalCore, IntervalSettings
from millwheel.worker.interval.hook_meter import BatchTime
from millwheel.worker.interval.measures import IntervalMeasures
from millwheel.worker.process.building import Builder


def builder(number: int, settings: IntervalSettings) -> Builder:
    """It has a catalog of that format with one computation, which counts in windows."""
    topology = mw.Topology("t")
    windowed: Any = topology.source("words", str).key_by(str).window(windows.tumbling(mw.seconds(1)))
    windowed.aggregate("counted", agg.count())
    found = catalog.TopologyRecord(), topology_pb2.ComputationSpec(name="counted")
    known = SimpleNamespace(
        format=number,
        log_of=lambda _: None,
        removed_computation=lambda _: None,
        computation=lambda _: found,
        groups_of=lambda _: (),
        stream=lambda _: None,
    )
    programs = SimpleNamespace(
        has=lambda _: True, compile=lambda code, name, computation: compile_computation(topology, computation)
    )
    routing = SimpleNamespace(bind=lambda *_, tables: SimpleNamespace(derived=()), locate=None)
    doubles = cast("Any", known), cast("Any", programs), cast("Any", routing)
    return Builder(*doubles, settings, lambda _: IntervalMeasures(), BatchTime())


def built(by: Builder, journal: str) -> IntervalCore:
    interval = catalog.IntervalRecord(journal=journal, sequencer=4)
    made = by.build(OwnedInterval(IncarnationId("counted.1"), interval))
    assert made is not None
    assert isinstance(made.core, IntervalCore)
    return made.core


def test_columns_wait_for_their_format_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Workers of an earlier version read no entries with columns."""
    caplog.set_level(logging.INFO, "millwheel.worker")
    old, new = (builder(number, IntervalSettings(columns_from=16)) for number in (COLUMNS - 1, COLUMNS))
    assert [built(old, journal).state.settings.columns_from for journal in ("j1", "j2")] == [0, 0]
    (said,) = caplog.messages
    assert "worker.columns has no effect: the cluster has format 2" in said
    assert "tables by columns 4. Raise cluster.format (start-dev: --cluster-format) to 4" in said
    assert built(new, "j1").state.settings.columns_from == 16
    assert built(builder(1, IntervalSettings()), "j1").state.settings.columns_from == 0
    assert len(caplog.messages) == 1


def test_results_are_stored_as_columns_from_their_format_on() -> None:
    """Workers of an earlier version read no such entries."""
    made = [built(builder(number, IntervalSettings()), "j1") for number in (RESULT_COLUMNS - 1, RESULT_COLUMNS)]
    assert [core.state.config.result_columns for core in made] == [False, True]


def test_entries_are_deflated_from_their_format_on() -> None:
    """Workers of an earlier version read no such values."""
    made = [built(builder(number, IntervalSettings()), "j1") for number in (DEFLATED_ENTRIES - 1, DEFLATED_ENTRIES)]
    appends = [core.state.journal.append(1, b"entry", 5, lambda: 0).append for core in made]
    assert [append.deflate for append in appends] == [False, True]
