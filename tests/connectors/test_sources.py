"""What a source and its options must be, what an update may change, and the bounds of reads (4.1, 4.5; G1, G7, G13)."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.connectors import BadRecord, Read, Source, SplitReader, Splits, read_log, reading
from millwheel.model.time import LAST_TIMESTAMP
from millwheel.model.units import ANY_TIMESTAMP_VARIABLE
from millwheel.testing import TopologyHarness
from millwheel.worker.interval.measures import ConnectorMeasures
from tests.connectors.given import NOON, Numbers, World, at, running
from tests.connectors.test_reading import numbers, on_time


class Topic(Source[int, int]):
    """A source whose parameter ``most`` only says how it reads."""

    def __init__(self, name: str, most: int = 3, world: World | None = None) -> None:
        self.name = name
        self.most = most
        self.world = world or World({"a": []}, final=False)

    async def splits(self) -> Splits:
        return await Numbers(self.world, self.most).splits()

    async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
        return await Numbers(self.world, self.most).open_reader(split, position)


class NamedTopic(Topic):
    def identity(self) -> str:
        return f"topic {self.name}"


def reads(source: Any, **options: Any) -> mw.Topology:
    topology = mw.Topology("shop")
    topology.source("numbers", int, source, **options)
    return topology


@pytest.mark.guarantee("G7")
def test_a_split_that_is_found_late_holds_the_watermark() -> None:
    world = World({"a": on_time((1, 5))}, final=False, oldest=mw.MAX_TIMESTAMP)
    with running(numbers(world)) as harness:
        assert harness.watermark("numbers-reader") == at(5)
        world.splits["a"] += on_time((2, 10))
        world.splits["b"] = on_time((3, 5), (4, 6))
        harness.advance_clock(mw.seconds(2))
        found = harness.watermark("numbers-reader")
        assert (found, harness.counts("sums")["late"]) == (at(10), 2)  # "b" was found after "a" was read
        world.splits["a"] += on_time((5, 500))
        harness.advance_clock(mw.seconds(2))
        assert harness.watermark("numbers-reader") == found
        world.splits["b"] += on_time((6, 12))
        harness.advance_clock(mw.seconds(2))
        assert harness.watermark("numbers-reader") == at(12)
        assert harness.counts("sums")["late"] == 2


@pytest.mark.guarantee("G7")
def test_a_split_that_cannot_be_read_holds_the_watermark() -> None:
    class Torn(Topic):
        async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
            if split == "b":
                raise ConnectionError("split b is away")
            return await super().open_reader(split, position)

    world = World({"a": on_time((1, 5))}, final=False, oldest=mw.MAX_TIMESTAMP)
    with running(reads(Torn("bids", 3, world))) as harness:
        world.splits["b"] = on_time((2, 9))
        with pytest.raises(ConnectionError):
            harness.advance_clock(mw.seconds(2))
        world.splits["a"] += on_time((3, 500))
        with pytest.raises(ConnectionError):
            harness.advance_clock(mw.seconds(60))
        assert harness.values("numbers") == [1, 3]
        assert harness.watermark("numbers-reader") == at(5)


@pytest.mark.guarantee("G1", section="4.1")
@pytest.mark.parametrize(
    ("before", "after"),
    [(Topic("bids"), Topic("sales")), (Topic("bids"), NamedTopic("bids")), (NamedTopic("bids"), NamedTopic("sales"))],
)
def test_an_update_to_another_source_is_refused(before: Source[int, int], after: Source[int, int]) -> None:
    with (
        running(reads(before)) as harness,
        pytest.raises(mw.TopologyError, match="give the stream of the other source"),
    ):
        harness.update(reads(after))


def test_an_update_may_change_how_a_source_reads() -> None:
    world = World({"a": on_time((1, 1))}, final=False)
    with running(reads(NamedTopic("bids", 3, world))) as harness:
        harness.update(reads(NamedTopic("bids", 1, world)))
        world.splits["a"] += on_time((2, 2))
        harness.advance_clock(mw.seconds(1))
        assert harness.values("numbers") == [1, 2]


def test_pauses_of_a_split_without_records_grow() -> None:
    world = World({"a": on_time((1, 1))}, final=False)
    with running(reads(Numbers(world))) as harness:
        rings = []
        for _ in range(60):
            rings.append(harness.timers("numbers-reader", "a")["", mw.TimeDomain.PROCESSING_TIME] - harness.now)
            harness.advance_clock(mw.Duration(rings[-1]))
        assert rings[0] == 10_000
        assert rings == sorted(rings)
        assert rings[-1] == 1_000_000


@pytest.mark.guarantee("G13")
def test_a_read_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    class Heedless(Topic):
        async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
            return ThreeAtOnce()

    class ThreeAtOnce(SplitReader[int, int]):
        async def read(self) -> Read[int, int]:
            return Read(on_time((1, 1), (2, 2), (3, 3)), 3, ended=True)

    monkeypatch.setattr(reading, "MAX_RECORDS", 2)
    with pytest.raises(mw.UsageError, match="a read has 3 records: return 2 at most"):
        TopologyHarness(reads(Heedless("bids")))
    monkeypatch.setattr(reading, "MAX_RECORDS", 3)
    monkeypatch.setattr(reading, "MAX_BYTES", 100)
    with pytest.raises(mw.UsageError, match="returns more records than its most_records"):
        TopologyHarness(reads(Heedless("bids")))


@pytest.mark.guarantee("G13")
def test_records_of_too_many_bytes_are_read_in_smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source knows its records only as they are elsewhere. What they become is larger, and maybe much larger."""
    monkeypatch.setattr(reading, "MAX_BYTES", 2_000)
    world, topology = World({"a": []}, final=False), mw.Topology("shop")
    read = topology.source("numbers", int, Numbers(world, most=100))
    read.flat_map(lambda number: [number] * (50 if number == 17 else 1), to=int).named("copies")
    with running(topology) as harness:
        world.splits["a"] += on_time(*((number, number) for number in range(40)))
        with pytest.raises(mw.UsageError, match=r"split 'a': the first \d+ of 40 records of a read have .* bytes"):
            harness.advance_clock(mw.seconds(1))
        for _ in range(9):
            with suppress(mw.UsageError):
                harness.advance_clock(mw.seconds(60))
        assert harness.values("numbers") == list(range(40))
        failures = len(harness.failures)
        world.splits["a"] += on_time(*((number, number) for number in range(40, 80)))
        harness.advance_clock(mw.seconds(60))
        assert harness.values("numbers") == list(range(80))
        assert harness.values("copies").count(17) == 50
        assert len(harness.failures) == failures, "it knows by now how many records fit"


def test_a_record_that_is_too_large_is_a_bad_one() -> None:
    large = b"x" * ((1 << 20) + 1)
    world = World({"a": [(b"1", at(1)), (large, at(2)), (b"3", at(3))]})
    stops, goes_on = mw.Topology("stops"), mw.Topology("goes-on")
    source: Any = Numbers(world)
    stops.source("blobs", bytes, source)
    goes_on.source("blobs", bytes, source, bad="bad")
    where = r"split 'a', record 2 since the beginning: a record .* limit of 1,048,576[.] Mend the record.*bad=\"NAME\""
    with pytest.raises(mw.MillwheelError, match=where):
        TopologyHarness(stops).close()
    with running(goes_on) as harness:
        assert harness.values("blobs") == [b"1", b"3"]
        (bad,) = harness.values("bad")
        assert (bad.place, len(bad.raw)) == ("record 2 since the beginning", 1_000)


def test_the_error_of_a_bad_record_has_a_bound() -> None:
    """Its function may raise all that it was given, and a record has up to 1 MiB."""

    def time_of(value: int) -> mw.Timestamp:
        raise ValueError("x" * 2_000_000)

    with running(reads(Numbers(World({"a": on_time((1, 1))})), timestamp=time_of, bad="bad")) as harness:
        assert [len(bad.error) for bad in harness.values("bad")] == [10_000]


@pytest.mark.guarantee("G13")
def test_a_source_has_a_bound_of_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_SPLITS", 2)
    with pytest.raises(mw.UsageError, match="more than 2 splits by now: let a split have several"):
        TopologyHarness(reads(Numbers(World({"a": [], "b": [], "c": []}))))


def test_idle_after_needs_to_know_what_is_behind() -> None:
    class Silent(Topic):
        async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
            return Empty()

    class Empty(SplitReader[int, int]):
        async def read(self) -> Read[int, int]:
            return Read([], 0)

    with pytest.raises(mw.UsageError, match="idle_after= needs a source"):
        TopologyHarness(reads(Silent("bids"), idle_after=mw.seconds(1)))


@pytest.mark.guarantee("G7")
def test_an_idle_split_follows_the_beginning_of_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may come to the split while a read that has found nothing ends."""
    world = World({"a": on_time((1, 1))}, final=False, oldest=mw.MAX_TIMESTAMP)
    topology = reads(Slow("bids", 3, world), idle_after=mw.seconds(1))
    with running(topology, now=at(100)) as harness:
        harness.advance_clock(mw.seconds(3))
        assert at(101) < harness.watermark("numbers-reader")
        monkeypatch.setattr(Slow, "harness", harness)
        harness.advance_clock(mw.seconds(1))
        assert harness.watermark("numbers-reader") <= at(104)


class Slow(Topic):
    """Time passes while it reads."""

    PASSES = 30_000_000
    harness: Any = None

    async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
        return SlowReader(await super().open_reader(split, position))


class SlowReader(SplitReader[int, int]):
    def __init__(self, reader: SplitReader[int, int]) -> None:
        self.reader = reader

    async def read(self) -> Read[int, int]:
        read = await self.reader.read()
        if Slow.harness is not None:
            driver = vars(Slow.harness)["_cluster"].driver
            driver.now += Slow.PASSES
            for core in driver.cores.values():
                core.state.scope.now += Slow.PASSES
        return read


def test_bad_takes_what_has_no_time_and_what_has_another_type() -> None:
    def time_of(value: int) -> mw.Timestamp:
        if value == 2:
            raise ValueError("no time")
        return at(3)

    world = World({"a": [(1, None), (2, None), ("three", None), (4, None)]})
    with running(reads(Numbers(world, most=9), timestamp=time_of, bad="bad")) as harness:
        assert harness.values("numbers") == [1, 4]
        first, second = harness.values("bad")
    assert first == BadRecord("a", "record 2 since the beginning", "ValueError: no time", b"2")
    assert (second.place, second.raw) == ("record 3 since the beginning", b"'three'")


YEAR_2050 = mw.Timestamp(2_524_608_000_000_000)
YEAR_1975 = mw.Timestamp(157_766_400_000_000)


def test_a_time_that_is_not_likely_makes_a_bad_record() -> None:
    """Regression: injectors refused such times, and a source opened windows of 1975 and of 2050 without a word."""
    world = World({"a": [(1, at(1)), (2, YEAR_1975), (3, YEAR_2050), (4, at(2))]})
    with running(reads(Numbers(world, most=9), bad="bad"), now=at(9), any_timestamp=False) as harness:
        assert harness.values("numbers") == [1, 4]
        old, far = harness.values("bad")
        assert old.place == "record 2 since the beginning"
        meant = "if that is meant, give source(..., any_timestamp=True)"
        assert old.error == f"1975-01-01T00:00:00Z is before 1980; {meant}"
        assert far.error == f"2050-01-01T00:00:00Z is more than a year ahead; {meant}"
    with (
        pytest.raises(Exception, match="split 'a', record 2 since the beginning: 1975-01-01T00:00:00Z is before 1980"),
        running(reads(Numbers(world, most=9)), now=at(9), any_timestamp=False),
    ):
        pass


def test_the_clock_of_a_harness_says_of_no_time_that_it_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: it begins in 2023, and each source with records of today failed in its user's tests."""
    monkeypatch.delenv(ANY_TIMESTAMP_VARIABLE, raising=False)
    world = World({"a": [(1, at(1)), (2, YEAR_2050), (3, YEAR_1975)]})
    with TopologyHarness(reads(Numbers(world, most=9), bad="bad")) as harness:
        assert harness.now < at(1) - mw.days(700)
        assert harness.values("numbers") == [1, 2]
        assert [one.raw for one in harness.values("bad")] == [b"3"]


def test_a_clock_of_another_epoch_says_nothing_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ANY_TIMESTAMP_VARIABLE, raising=False)
    world = World({"a": [(1, mw.Timestamp(5)), (2, YEAR_2050)]})
    with TopologyHarness(reads(Numbers(world, most=9)), now=mw.Timestamp(1_000)) as harness:
        assert harness.values("numbers") == [1, 2]


def test_a_clock_that_is_behind_loses_no_record_of_a_split() -> None:
    """Regression: on a machine whose clock was years behind, each record was a bad one, for good."""
    month = mw.days(30)
    times = [mw.Timestamp(NOON + months * month) for months in (11, 22, 60)]
    world = World({"a": list(zip((1, 2, 3), times, strict=True))})
    with running(reads(Numbers(world, most=1), bad="bad"), now=at(0), any_timestamp=False) as harness:
        assert harness.values("numbers") == [1, 2], "the second is less than a year after the first"
        assert [one.raw for one in harness.values("bad")] == [b"3"]


def test_what_was_checked_before_is_not_checked_again() -> None:
    """Regression: a source that reads a log stopped at the result of a window that ends in some years."""

    class Checked(Numbers):
        _times_are_checked = vars(type(read_log("shop/sales", int)))["_times_are_checked"]

    times = [YEAR_2050, LAST_TIMESTAMP, YEAR_1975, mw.Timestamp(1_767_268_800)]
    world = World({"a": list(enumerate(times))})
    with running(reads(Checked(world, most=9)), now=at(9), any_timestamp=False) as harness:
        assert [one.timestamp for one in harness.produced("numbers")] == times
    stated = reads(Checked(world, most=9), timestamp=lambda value: times[value], bad="bad")
    with (
        pytest.raises(mw.UsageError, match="from_seconds"),
        running(stated, now=at(9), any_timestamp=False) as harness,
    ):
        pass


def test_a_source_may_allow_every_time() -> None:
    world = World({"a": [(1, mw.Timestamp(1_767_268_800)), (2, YEAR_1975), (3, YEAR_2050)]})
    allows = reads(Numbers(world, most=9), any_timestamp=True)
    with running(allows, now=at(9), any_timestamp=False) as harness:
        assert harness.values("numbers") == [1, 2, 3]


class Sale(msgspec.Struct):
    at: datetime


class Sales(Source[Sale, int]):
    """Sales of noon: by their own time, and one without a time zone."""

    async def splits(self) -> Splits:
        return Splits(["a"], final=True)

    async def open_reader(self, split: str, position: int | None) -> SplitReader[Sale, int]:
        class Reader(SplitReader[Sale, int]):
            async def read(self) -> Read[Sale, int]:
                noon = datetime(2026, 1, 1, 12)
                return Read([(Sale(noon.replace(tzinfo=UTC)), None), (Sale(noon), None)], 2, ended=True)

        return Reader()


def test_a_time_may_be_a_datetime_with_a_zone() -> None:
    shop = mw.Topology("shop")
    shop.source("sales", Sale, Sales(), timestamp="at", bad="bad")
    with running(shop) as harness:
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        assert [(one.value, one.timestamp) for one in harness.produced("sales")] == [
            (Sale(noon), mw.from_datetime(noon))
        ]
        (bad,) = harness.values("bad")
    assert "has no time zone" in bad.error


def test_what_is_made_of_records_is_not_counted_as_read() -> None:
    class Counts:
        def __init__(self) -> None:
            self.read: list[int] = []

        def has_read(self, stream: str, split: str, sizes: list[int], behind: int | None, **more: Any) -> None:
            self.read.append(len(sizes))

    world = World({"a": []}, final=False)
    topology = reads(Numbers(world, most=9))
    topology.stream("numbers", int).named("kept")
    counts: Any = Counts()
    with running(topology) as harness:
        for core in vars(harness)["_cluster"].driver.cores.values():
            core.state.scope.connector = counts
        world.splits["a"] += [(1, at(1)), (2, at(2))]
        harness.advance_clock(mw.seconds(5))
        assert harness.values("kept") == [1, 2]
    assert sum(counts.read) == 2


def test_bad_records_are_counted_with_their_stream_and_error() -> None:
    def time_of(value: int) -> mw.Timestamp:
        raise ValueError(f"no time in {value}")

    world = World({"a": []}, final=False)
    measures = ConnectorMeasures()
    with running(reads(Numbers(world, most=9), timestamp=time_of, bad="bad")) as harness:
        for core in vars(harness)["_cluster"].driver.cores.values():
            core.state.scope.connector = measures
        world.splits["a"] += [(1, at(1)), (2, at(2))]
        harness.advance_clock(mw.seconds(5))
    assert (measures.read_records, measures.bad_records) == (2, 2)
    assert (measures.bad_stream, measures.last_error) == ("bad", "ValueError: no time in 2"), "short names, as all here"


def test_an_endless_source_does_not_hang_a_test() -> None:
    class Endless(SplitReader[int, int]):
        position = 0

        async def read(self) -> Read[int, int]:
            self.position += 1
            return Read([(self.position, at(self.position))], self.position)

    class Forever(Topic):
        async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
            return Endless()

    with running(reads(Forever("bids"))) as harness:
        assert len(harness.values("numbers")) == 100
        harness.advance_clock(mw.Duration(200_000))
        assert 100 < len(harness.values("numbers")) <= 300


def test_a_test_may_feed_what_a_source_would_read() -> None:
    world = World({"a": on_time((7, 1))})
    with running(numbers(world), fed=["numbers"]) as harness:
        harness.send("numbers", 1, at(2))
        harness.crash()
        harness.send("numbers", 2, at(3))
        harness.update(numbers(world))
        harness.finish()
        assert [row.n for row in harness.values("sums")] == [2]
    assert world.opened == []
    with pytest.raises(mw.UsageError, match=r"no source reads stream 'number' \(did you mean 'numbers'\?\): fed="):
        TopologyHarness(numbers(world), fed=["number"])
    with running(numbers(world)) as harness, pytest.raises(mw.UsageError, match="fed="):
        harness.send("numbers", 1, at(2))


class Bid(msgspec.Struct):
    cents: int
    at: mw.Timestamp


@pytest.mark.parametrize(
    ("source", "options", "why"),
    [
        (Topic, {}, r"write Topic\(\.\.\.\)"),
        ("topic", {}, "an instance of a connectors.Source, not 'topic'"),
        (Topic("bids"), {"out_of_order": -1}, "at least 0 microseconds as out_of_order, not -1"),
        (Topic("bids"), {"idle_after": 0}, "at least 1 microseconds as idle_after, not 0"),
        (Topic("bids"), {"find_every": 0}, "at least 1 microseconds as find_every, not 0"),
        (Topic("bids"), {"timestamp": "when"}, "'when' is no field of its records: .*cents"),
        (Topic("bids"), {"timestamp": 7}, "the name of a field as timestamp"),
        (Topic("bids"), {"out_of_ordr": 1}, r"no option 'out_of_ordr' \(did you mean 'out_of_order'"),
    ],
)
def test_a_mistake_is_shown_when_the_source_is_declared(source: Any, options: Any, why: str) -> None:
    with pytest.raises(mw.UsageError, match=why):
        mw.Topology("shop").source("bids", Bid, source, **options)


def test_a_long_name_is_refused_with_the_length_that_fits() -> None:
    topology = mw.Topology("shop")
    topology.source("b" * 56, int, Topic("bids"))
    topology.check()
    with pytest.raises(mw.UsageError, match="give it 56 characters at most"):
        topology.source("b" * 57, int, Topic("bids"))


def test_an_identity_is_a_text() -> None:
    class Nameless(Topic):
        def identity(self) -> Any:
            return None

    with pytest.raises(mw.UsageError, match=r"Nameless\.identity\(\) returns 1 to 512 characters, not None"):
        reads(Nameless("bids"))
