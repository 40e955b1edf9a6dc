"""The benchmarks of the authority, the master, the cache and of sizes run to their ends, with little of everything."""

from __future__ import annotations

import pytest

from bench.authority import core, service
from bench.authority.pauses import MeasuredShard
from bench.cache import Sizes, measure
from bench.master import measure as measure_master
from bench.report import Figure
from bench.sizes.__main__ import CASES, Case
from bench.sizes.__main__ import measure as measure_sizes
from bench.sizes.feed import batches, chosen_keys


def test_the_authority_alone_is_measured() -> None:
    """It raises if the authority refuses an interval or a report, or broadcasts another value than the least one."""
    found = {one.name: one.value for one in core.measure(2_000, rounds=2)}
    assert found["authority.intervals"] == 2_000
    assert all(value > 0 for name, value in found.items() if "restore" not in name and "base" not in name)


def test_the_steps_of_a_shard_are_measured() -> None:
    """After some rounds, a base is due."""
    shard = MeasuredShard(5_000)
    for _ in range(5):
        shard.round()
    assert len(shard.steps["1,000 reports"]) == 25
    assert shard.steps["a part of a base"]


@pytest.mark.timeout(120)
async def test_the_authority_as_a_service_is_measured() -> None:
    found = {one.name: one.value for one in await service.measure(2_000, 5)}
    assert found["authority.takeover.first_broadcast_s"] >= found["authority.takeover.opened_s"] > 0
    assert found["authority.round_s"] > 0


def test_the_master_gives_all_intervals_other_owners() -> None:
    """It raises if an interval is left with the lost worker, or with none."""
    found = {one.name: one.value for one in measure_master(5_000, 10)}
    assert found["master.intervals"] >= 5_000
    assert found["master.lose.intervals"] > 0
    assert 0 < found["master.lose.put_bytes"] <= found["master.assign.put_bytes"]


def test_a_cache_for_all_keys_reads_nothing() -> None:
    rows = measure(Sizes(400, 20, 1, (0.1, 1.2)))
    found = {one.name: one.value for one in rows if isinstance(one, Figure)}
    for policy in ("watermark", "lru"):
        assert found[f"cache.{policy}.1.2.reads"] == 0
        assert found[f"cache.{policy}.0.1.reads"] > 0


@pytest.mark.timeout(120)
def test_a_case_of_the_sizes_is_measured() -> None:
    found = {one.name: one.value for one in measure_sizes(Case("x", 200, 50, 1_000, consumers=10, zipf=1.2), 0)}
    assert found["sizes.x.records_per_s"] > 0


def test_cases_have_names_of_their_own_and_consumers_that_exist() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.consumers for case in CASES} <= {1, 10, 100}


def test_skewed_keys_prefer_the_first_ones() -> None:
    even, skewed = (chosen_keys(5_000, 100, zipf) for zipf in (0.0, 1.2))
    assert set(even) == set(range(100))
    assert skewed.count(0) > 4 * even.count(0)
    assert [len(batch) for batch in batches(range(25), bytes(100_000))] == [10, 10, 5]
