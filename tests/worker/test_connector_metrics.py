"""What a worker counts of sources and sinks, and how Prometheus gets it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.model.keys import KeyInterval
from millwheel.worker.process.connector_metrics import ConnectorCollector, splits_within
from millwheel.worker.process.tallies import Tallies
from tests.worker.interval.driver import IntervalDriver

SOURCE, SINK = ("shop", "bids-reader"), ("shop", "bids-table")


class Nothing(mw.Computation[tuple[str, str], int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Any]) -> None: ...


def values(tallies: Tallies) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    """The samples by name. Of a histogram only the count and the sum."""
    samples = [one for family in ConnectorCollector(tallies).collect() for one in family.samples]
    found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for one in samples:
        if not one.name.endswith("_bucket"):
            found.setdefault(one.name, []).append((tuple(one.labels.values()), one.value))
    return found


def test_reads_are_counted_and_splits_only_where_they_are() -> None:
    tallies = Tallies()
    counts = tallies.measures_of(SOURCE).connector
    for split, behind in (("a", 5), ("b", 7), ("x", 900)):
        counts.has_read("shop/bids", split, [10, 20], behind, ended=False)
    tallies.enter("j1", SOURCE, IntervalDriver(Nothing(), keys=KeyInterval(b"", b"m")).core)
    where = (*SOURCE, "shop/bids")
    found = values(tallies)
    assert found["millwheel_source_read_records_total"] == [(where, 6)]
    assert found["millwheel_source_read_bytes_total"] == [(where, 90)]
    assert found["millwheel_source_splits"] == [(where, 2)], "x went to another worker"
    assert found["millwheel_source_behind_records"] == [(where, 12)]
    assert found["millwheel_source_most_behind_records"] == [(where, 7)]
    assert found["millwheel_source_lost_records_total"] == [(where, 0)]
    counts.has_read("shop/bids", "b", [], 0, ended=True, lost=4, bad=3)
    counts.has_read("shop/bids", "a", [], None, ended=False)
    found = values(tallies)
    assert found["millwheel_source_splits"] == [(where, 1)]
    assert found["millwheel_source_lost_records_total"] == [(where, 4)]
    assert found["millwheel_source_bad_records_total"] == [(where, 3)]
    assert "millwheel_source_behind_records" not in found, "the source does not say"


@given(bounds=st.lists(st.tuples(st.text("abc", max_size=2), st.text("abc", max_size=2)), max_size=5))
def test_the_splits_of_any_intervals_are_found(bounds: list[tuple[str, str]]) -> None:
    """Also while an interval and its children are here."""
    intervals = [KeyInterval(start.encode(), end.encode() if end > start else None) for start, end in bounds]
    splits = [one + two for one in ("", "a", "b", "c") for two in ("", "a", "b", "c")]
    assert list(splits_within(intervals, splits)) == [
        split for split in splits if any(split.encode() in one for one in intervals)
    ]


def test_a_scrape_looks_at_each_split_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may have thousands of splits, in hundreds of intervals."""
    tallies, names = Tallies(), [f"{number:02}" for number in range(20)]
    for name in names:
        tallies.measures_of(SOURCE).connector.has_read("shop/bids", name, [10], 1, ended=False)
        keys = KeyInterval(name.encode(), name.encode() + b"x")
        tallies.enter(name, SOURCE, IntervalDriver(Nothing(), keys=keys).core)
    looks = itertools.count()
    contains = KeyInterval.__contains__
    monkeypatch.setattr(KeyInterval, "__contains__", lambda one, key: next(looks) >= 0 and contains(one, key))
    assert values(tallies)["millwheel_source_splits"] == [((*SOURCE, "shop/bids"), 20)]
    assert next(looks) <= len(names)


def test_writes_are_counted_with_their_times() -> None:
    tallies = Tallies()
    tallies.measures_of(SINK).connector.has_written(3, 60, 0.5)
    tallies.measures_of(SINK).connector.has_written(1, 40, 1.5)
    found = values(tallies)
    assert found["millwheel_sink_written_records_total"] == [(SINK, 4)]
    assert found["millwheel_sink_written_bytes_total"] == [(SINK, 100)]
    assert found["millwheel_sink_write_seconds_count"] == [(SINK, 2)]
    assert found["millwheel_sink_write_seconds_sum"] == [(SINK, 2.0)]


def test_other_computations_have_no_such_series() -> None:
    tallies = Tallies()
    tallies.measures_of(("shop", "count"))
    assert values(tallies) == {}
