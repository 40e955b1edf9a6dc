"""When a split reads: at a limited rate, and not far ahead of the slowest one (section 8.4; G8, G13)."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.connectors import Read, Source
from millwheel.connectors.pacing import Timing
from tests.connectors.given import NumberReader, Numbers, World, at, running

HOUR = 3_600


@given(
    reads=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 3_000_000)), min_size=1, max_size=30),
    rate=st.floats(1, 1e9),
)
def test_a_rate_holds_over_every_span_of_reads(reads: list[tuple[int, int]], rate: float) -> None:
    """``reads``: how many records each of them gets, and how long it waits for other reasons."""
    timing, now, began = Timing(records_per_second=rate), 0, list[tuple[int, int]]()
    for records, other in reads:
        began.append((now, records))
        now += max(timing.pause_after(records), other)
    for first, (begin, _) in enumerate(began):
        total = 0
        for end, records in began[first:]:
            # Each read but the last has been waited for. A microsecond of rounding for each.
            assert total <= rate * (end - begin + len(began)) / 1e6 + 1e-6
            total += records


@pytest.mark.guarantee("G8", section="8.4")
@given(
    splits=st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=8),
    search=st.integers(-(10**15), 10**15),
    behind=st.integers(0, 10**6),
    skew=st.integers(1, 10**12),
)
def test_some_split_always_reads(splits: list[int], search: int, behind: int, skew: int) -> None:
    """What is broadcast may be older than what is so."""
    timing, of_all = Timing(allowed_skew=skew), min(*splits, search)
    waits = [timing.too_far_ahead(one, of_all, search) for one in splits]
    slowest = splits.index(min(splits))
    assert not waits[slowest] or of_all == search
    assert not all(waits)
    for one, held in zip(splits, waits, strict=True):
        assert held is (of_all < search and one > of_all + skew)
        if held:  # an older broadcast lets no split read that would wait
            assert timing.too_far_ahead(one, of_all - behind, search)


class Reading(msgspec.Struct):
    split: str
    second: int


def hours_of(split: str, hours: int) -> list[tuple[Any, mw.Timestamp | None]]:
    """A reading each minute."""
    return [(Reading(split, second), at(second)) for second in range(0, hours * HOUR, 60)]


def counted(world: World, most: int = 60, **options: Any) -> mw.Topology:
    topology, source = mw.Topology("shop"), cast("Source[Reading, int]", Numbers(world, most))
    stream = topology.source("readings", Reading, source, **options)
    stream.key_by("split").window(windows.tumbling(mw.minutes(1))).aggregate("minutes", n=agg.count())
    return topology


def windows_of(skew: mw.Duration | None) -> int:
    """How many windows of a fast split wait, if another one has given nothing yet."""
    world = World({"fast": hours_of("fast", 48), "slow": [(Reading("slow", 0), at(0))]}, final=True)
    world.splits["slow"] *= 2
    world.slow_splits = {"slow"}
    with running(counted(world, allowed_skew=skew), now=at(100 * HOUR)) as harness:
        for _ in range(60):
            harness.advance_clock(mw.seconds(1))
        assert harness.watermark("readings-reader") <= at(0)
        waiting = len(harness.produced("readings")) - len(harness.produced("minutes"))
        assert harness.state("readings-reader", "fast").waits is (skew is not None)
        world.slow_splits = set()
        for _ in range(100):
            harness.advance_clock(mw.seconds(2))
        assert harness.watermark("readings-reader") == mw.MAX_TIMESTAMP
        assert len(harness.produced("minutes")) == 48 * 60 + 1
    return waiting


@pytest.mark.guarantee("G13", section="8.4")
def test_a_split_waits_for_slower_ones() -> None:
    """Without a limit, the states of windows grow with all that the fast split has."""
    assert windows_of(None) == 48 * 60
    assert windows_of(mw.hours(2)) <= (2 + 1) * 60 + 1  # the skew, and one read


def test_a_skew_that_the_search_makes_stops_no_split() -> None:
    """No read raises the low watermark of the search, so all would wait for ever."""
    world = World({"fast": hours_of("fast", 10)}, final=False, oldest=at(-1))
    with running(counted(world, allowed_skew=mw.minutes(10)), now=at(100 * HOUR)) as harness:
        harness.advance_clock(mw.seconds(20))
        assert harness.watermark("readings-reader") == at(-1)
        assert len(harness.produced("readings")) == 10 * 60


def test_a_rate_spreads_the_reads_of_a_split() -> None:
    world = World({"a": [(number, at(number)) for number in range(100)], "b": [(1, at(1))]}, final=False)
    topology = mw.Topology("shop")
    topology.source("numbers", int, Numbers(world, 10), records_per_second=5)
    with running(topology) as harness:
        counts = [len(harness.produced("numbers"))]
        for _ in range(10):
            harness.advance_clock(mw.seconds(2))
            counts.append(len(harness.produced("numbers")))
    assert counts == [11, 21, 31, 41, 51, 61, 71, 81, 91, 101, 101]


@pytest.mark.parametrize(("rate", "first"), [(None, 6_000), (5, 1_000), (4_000, 4_000)])
def test_a_read_at_a_rate_has_the_records_of_a_second(rate: float | None, first: int) -> None:
    """Otherwise a split rests for long behind a large read, and its connection is closed meanwhile."""
    world = World({"a": [(number, at(0)) for number in range(6_000)]}, final=False)
    topology = mw.Topology("shop")
    topology.source("numbers", int, Numbers(world, 10_000), records_per_second=rate)
    with running(topology) as harness:
        assert len(harness.produced("numbers")) == first


class WatchedReader(NumberReader):
    """Notes how many records each read has."""

    def __init__(self, sizes: list[int], source: Numbers, split: str, position: int) -> None:
        super().__init__(source, split, position)
        self.sizes = sizes

    async def read(self) -> Read[int, int]:
        found = await super().read()
        self.sizes.append(len(found.records))
        return found


class Watched(Numbers):
    def __init__(self, world: World) -> None:
        super().__init__(world, 10_000)
        self.sizes: list[int] = []

    async def open_reader(self, split: str, position: int | None) -> NumberReader:
        return WatchedReader(self.sizes, self, split, position or 0)


@pytest.mark.guarantee("G8", "G13")
@pytest.mark.parametrize(("derived", "sizes"), [(False, [6_000]), (True, [2_000, 2_000, 2_000])])
def test_records_with_derived_streams_come_in_small_reads(derived: bool, sizes: list[int]) -> None:
    """Each is produced by itself, and the loop does nothing else until all of a read are."""
    source, topology = (
        Watched(World({"a": [(number, at(0)) for number in range(6_000)]}, final=False)),
        mw.Topology("shop"),
    )
    numbers = topology.source("numbers", int, source)
    if derived:
        numbers = numbers.flat_map(lambda number: [number] * 2, int).named("copies")
    numbers.key_by(mw.everything).window(windows.tumbling(mw.minutes(1))).aggregate("sums", n=agg.count())
    with running(topology):
        assert [size for size in source.sizes if size] == sizes


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"records_per_second": 0}, "a number from 1 to 1,000,000,000 as records_per_second, not 0"),
        ({"records_per_second": 1e-300}, "a number from 1 .* as records_per_second, not 1e-300"),
        ({"records_per_second": 0.0001}, "a number from 1 .* as records_per_second, not 0.0001"),
        ({"records_per_second": 10**400}, "a number from 1 .* as records_per_second, not 1000"),
        ({"records_per_second": float("nan")}, "a number from 1 .* as records_per_second, not nan"),
        ({"records_per_second": True}, "a number from 1 .* as records_per_second, not True"),
        ({"allowed_skew": 0}, "at least 1 microseconds as allowed_skew, not 0"),
    ],
)
def test_limits_are_positive(options: Any, why: str) -> None:
    with pytest.raises(mw.UsageError, match=why):
        counted(World(), **options)


def test_an_unknown_option_of_a_source_is_named() -> None:
    with pytest.raises(mw.UsageError, match=r"source\('readings'\) has no option 'id_slak' \(did you mean 'id_slack'"):
        mw.Topology("shop").source("readings", Reading, id_slak=mw.hours(1))  # type: ignore[call-overload]
