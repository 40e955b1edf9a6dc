"""What the cluster's benchmark makes of moments, durations and entries, against naive reckoning."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cluster.hops import PARTS, SpanTimes, durations
from bench.cluster.measures import added_lags, longest_gap, percentile, worst_gap
from bench.cluster.recording import Written
from bench.cluster.replay import by_journal
from bench.cluster.stage_latency import cost_of_guarantees, figures
from bench.cluster.targets import TARGETS, verdicts
from bench.cluster.topologies import Ping, name_of
from bench.report import Figure

moments = st.lists(st.integers(0, 1_000), min_size=2, max_size=50, unique=True).map(sorted)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_a_percentile_has_its_share_of_all_values_at_or_below_it(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) <= share * len(values)


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)


@given(moments, st.integers(0, 1_000), st.integers(0, 1_000))
def test_the_longest_gap_is_between_neighbours_reaching_the_span(seen: list[int], one: int, other: int) -> None:
    begin, end = sorted((one, other))
    if not seen[0] < begin or not end <= seen[-1]:
        with pytest.raises(ValueError, match="nothing was seen"):
            longest_gap(seen, begin, end)
        return
    reaching = [(a, b) for a, b in pairwise(seen) if a < end and b >= begin]
    reaching += [(a, b) for a, b in pairwise(seen) if a < end <= b]
    assert longest_gap(seen, begin, end) == max(b - a for a, b in reaching)


def test_an_intervals_absence_is_that_of_its_longest_waiting_key() -> None:
    assert worst_gap({"a": [0, 1, 2, 3, 4], "b": [0, 1, 3.5, 4]}, 1, 3) == 2.5


@pytest.mark.paper(section="8.2")
def test_a_stage_adds_to_the_lag_of_the_one_before_it() -> None:
    samples = [[5.0, 8.0, 20.0], [6.0, 10.0, 15.0], [1.0, 6.0, 16.0]]
    assert added_lags(samples) == [median([3.0, 4.0, 5.0]), median([12.0, 5.0, 10.0])]


@pytest.mark.paper(section="8.1")
def test_a_stage_lasts_from_production_to_receipt_of_the_result() -> None:
    pings = [Ping("u", "p", 0, 1_000_000, 3_000_000, 6_000_000)]
    found = {one.name: one.value for one in figures("strong", pings) if isinstance(one, Figure)}
    assert found["stage_latency.strong.p50_ms"] == 5
    assert found["stage_latency.strong.delivery.p50_ms"] == 2
    assert found["stage_latency.strong.whole.p50_ms"] == 6


def test_the_guarantees_cost_what_strong_takes_over_plain() -> None:
    found = [
        Figure(f"stage_latency.{form}.p50_ms", value, "ms", ()) for form, value in (("strong", 6.0), ("plain", 2.0))
    ]
    (cost,) = cost_of_guarantees(found)
    assert (cost.name, cost.value) == ("stage_latency.strong_over_plain", 3.0)
    assert cost_of_guarantees(found[:1]) == []


@pytest.mark.paper(section="8.1")
def test_the_parts_of_the_way_add_up_to_the_whole() -> None:
    names = list(dict.fromkeys(name for moments in PARTS.values() for name, _ in moments))
    spans = [SpanTimes(b"1", name, 1_000_000 * at, 1_000_000 * at + 400_000) for at, name in enumerate(names)]
    incomplete = [SpanTimes(b"2", names[0], 0, 1)]
    twice = [SpanTimes(b"3", name, 0, 1) for name in [*names, names[1]]]
    found = durations([*spans, *incomplete, *twice])
    whole = found.pop("whole")
    assert len(whole) == 1
    assert sum(value for (value,) in found.values()) == pytest.approx(whole[0])


def test_only_journal_entries_are_replayed_journal_by_journal(tmp_path: Path) -> None:
    written = [Written(journal, 0.0, 0.0, entry) for journal, entry in (
        ("count.1.j1", b"a"), ("authority.0", b"x"), ("count.1.j2", b"b"), ("count.11.j3", b"x"), ("count.1.j1", b"c")
    )]  # fmt: skip
    file = tmp_path / "1.entries"
    file.write_bytes(msgspec.msgpack.encode(written))
    assert by_journal(file, ("count.1",)) == {"count.1.j1": [b"a", b"c"], "count.1.j2": [b"b"]}


def test_verdicts_name_each_figure_with_a_target_and_its_outcome() -> None:
    found = [Figure("group_commit.share_of_bare", 0.39, "", ()), Figure("takeover.first_record_ms", 1_999.0, "ms", ())]
    missed, met = verdicts([*found, Figure("another", 1.0, "ms", ())])
    assert missed.startswith("MISSED")
    assert "0.39 (at least 0.4)" in missed
    assert str(TARGETS["cluster.keyed_count.columns"]) == "at least 500,000"
    assert met.startswith("met")
    assert TARGETS["takeover.first_record_ms"].met(2_000)


def test_keys_are_ordered_as_their_numbers() -> None:
    names = [name_of(number) for number in range(0, 2_000_000, 999)]
    assert names == sorted(names)
