"""Sources: each record once, from the position in the state, and the low watermarks of splits (4.5, 5.2)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.connectors import BadRecord
from tests.connectors.given import Numbers, World, at, bad, running


def numbers(world: World, **options: Any) -> mw.Topology:
    topology = mw.Topology("shop")
    stream = topology.source("numbers", int, Numbers(world), **options)
    stream.key_by(mw.everything).window(windows.tumbling(mw.seconds(10))).aggregate("sums", n=agg.count())
    return topology


def on_time(*records: tuple[int, float]) -> list[tuple[Any, mw.Timestamp | None]]:
    return [(value, at(second)) for value, second in records]


@pytest.mark.guarantee("G1")
@given(
    splits=st.dictionaries(st.sampled_from("abcdef"), st.lists(st.integers(0, 99), max_size=9), max_size=4),
    crashes=st.lists(st.integers(1, 3), max_size=3),
    breaks=st.integers(0, 3),
)
def test_each_record_comes_once(splits: dict[str, list[int]], crashes: list[int], breaks: int) -> None:
    world = World({name: [(value, at(n)) for n, value in enumerate(values)] for name, values in splits.items()})
    world.final = False
    topology = mw.Topology("shop")
    topology.source("numbers", int, Numbers(world))
    with running(topology, split_at=["c"]) as harness:
        for more in crashes:
            harness.crash()
            world.breaks = breaks
            for records in world.splits.values():
                records += [(100 + n, at(20)) for n in range(more)]
            for _ in range(4):
                with suppress(ConnectionError):
                    harness.advance_clock(mw.seconds(1))
        expected = sorted(value for records in world.splits.values() for value, _ in records)
        assert sorted(harness.values("numbers")) == expected
        for name, records in world.splits.items():
            assert harness.state("numbers-reader", name).position == len(records)


@pytest.mark.guarantee("G7")
def test_the_slowest_split_holds_the_watermark() -> None:
    world = World({"a": on_time((1, 1), (2, 25)), "b": on_time((3, 2))}, final=False)
    with running(numbers(world)) as harness:
        assert harness.watermark("numbers-reader") == at(2)
        assert harness.values("sums") == []
        world.splits["b"] += on_time((4, 30))
        harness.advance_clock(mw.seconds(1))
        assert harness.watermark("numbers-reader") == at(25)
        assert [row.n for row in harness.values("sums")] == [2]


def test_the_stream_ends_when_all_splits_have_ended() -> None:
    with running(numbers(World({"a": on_time((1, 1)), "b": []}))) as harness:
        assert harness.watermark("numbers-reader") == mw.MAX_TIMESTAMP
        assert [row.n for row in harness.values("sums")] == [1]


def test_a_source_without_splits_ends() -> None:
    with running(numbers(World({}))) as harness:
        assert harness.watermark("numbers-reader") == mw.MAX_TIMESTAMP


def test_out_of_order_records_are_not_late() -> None:
    world = World({"a": on_time((1, 9), (2, 5), (3, 12), (4, 8.5), (5, 40))}, final=False)
    with running(numbers(world, out_of_order=mw.seconds(4))) as harness:
        assert harness.watermark("numbers-reader") == at(36)
        assert [row.n for row in harness.values("sums")] == [3, 1]
        assert harness.counts("sums")["late"] == 0


def test_a_record_behind_its_split_is_late() -> None:
    world = World({"a": on_time((1, 9), (2, 25), (3, 26))}, final=False)
    with running(numbers(world)) as harness:
        world.splits["a"] += on_time((4, 2))
        harness.advance_clock(mw.seconds(1))
        assert harness.counts("sums")["late"] == 1
        assert harness.watermark("numbers-reader") == at(26)


def test_a_source_may_state_its_watermark() -> None:
    world = World({"a": on_time((1, 9))}, final=False, watermark=at(3))
    with running(numbers(world)) as harness:
        assert harness.watermark("numbers-reader") == at(3)
        world.watermark = at(50)
        harness.advance_clock(mw.seconds(1))
        assert harness.watermark("numbers-reader") == at(50)


def test_the_time_of_a_record_may_be_a_function_of_it() -> None:
    world = World({"a": [(7, None), (8, None)]}, final=False)
    with running(numbers(world, timestamp=lambda value: at(value))) as harness:
        assert [one.timestamp for one in harness.produced("numbers")] == [at(7), at(8)]


def test_a_record_without_a_time_has_that_of_its_read() -> None:
    with running(numbers(World({"a": [(7, None)]}))) as harness:
        assert [one.timestamp for one in harness.produced("numbers")] == [harness.now]


def test_a_time_in_another_unit_is_refused() -> None:
    world = World({"a": []}, final=False)
    with running(numbers(world), any_timestamp=False) as harness:
        world.splits["a"] = [(1, mw.Timestamp(1_767_268_800))]
        with pytest.raises(mw.UsageError, match="write millwheel\\.from_seconds"):
            harness.advance_clock(mw.seconds(1))


def test_an_idle_split_follows_the_clock() -> None:
    now = at(100)
    world = World({"a": on_time((1, 1)), "b": on_time((2, 2))}, final=False, oldest=mw.MAX_TIMESTAMP)
    with running(numbers(world, idle_after=mw.seconds(60), out_of_order=mw.seconds(5)), now=now) as harness:
        harness.advance_clock(mw.seconds(30))
        assert harness.watermark("numbers-reader") == at(-4)
        world.splits["a"] += on_time((3, 200))
        harness.advance_clock(mw.seconds(40))  # "b" has had nothing for 70 seconds, and "a" for 40
        assert at(164) <= harness.watermark("numbers-reader") <= at(165)  # by its last poll


def test_a_split_with_records_is_never_idle() -> None:
    world = World({"a": on_time((1, 1))}, final=False, oldest=mw.MAX_TIMESTAMP)
    with running(numbers(world, idle_after=mw.seconds(60)), now=at(100)) as harness:
        world.breaks = 100  # its store is away, and nothing is known of what waits there
        for _ in range(5):
            with pytest.raises(ConnectionError):
                harness.advance_clock(mw.seconds(60))
        assert harness.watermark("numbers-reader") == at(1)


def test_a_split_that_is_behind_is_never_idle() -> None:
    """It has records, and its reader returns none for long: a bus that is slow."""
    world = World({"a": on_time((1, 1))}, final=False, oldest=mw.MAX_TIMESTAMP)
    with running(numbers(world, idle_after=mw.seconds(2)), now=at(100)) as harness:
        world.slow = True
        world.splits["a"] += on_time((2, 2))
        harness.advance_clock(mw.seconds(9))
        assert harness.watermark("numbers-reader") == at(1)
        world.slow = False
        harness.advance_clock(mw.seconds(1))
        assert harness.watermark("numbers-reader") == at(2)


def test_splits_that_come_later_are_read() -> None:
    world = World({"a": on_time((1, 1))}, final=False, oldest=at(0))
    with running(numbers(world)) as harness:
        world.splits["b"] = on_time((2, 3))
        harness.advance_clock(mw.seconds(2))
        assert sorted(harness.values("numbers")) == [1, 2]
        world.final = True
        harness.advance_clock(mw.seconds(2))
        assert harness.watermark("numbers-reader") == mw.MAX_TIMESTAMP


def test_what_splits_may_come_holds_the_watermark() -> None:
    world = World({"a": on_time((1, 40))}, final=False, oldest=at(7))
    with running(numbers(world)) as harness:
        assert harness.watermark("numbers-reader") == at(7)


@pytest.mark.guarantee("G1")
def test_a_reader_that_stands_elsewhere_is_not_used() -> None:
    world = World({"a": on_time((1, 1), (2, 2), (3, 3), (4, 4))}, final=False)
    with running(numbers(world)) as harness:
        assert world.opened == [("a", None)]
        world.splits["a"] += [(5, at(5)), ("no number", at(6))]
        with pytest.raises(mw.ValueEncodeError):
            harness.advance_clock(mw.seconds(1))
        assert set(world.closed) == {"a"}
        world.splits["a"][-1] = (6, at(6))
        harness.advance_clock(mw.seconds(60))
        assert world.opened[0] == ("a", None)
        assert set(world.opened[1:]) == {("a", 4)}
        assert harness.values("numbers") == [1, 2, 3, 4, 5, 6]


@pytest.mark.guarantee("G1")
def test_a_reader_of_a_former_owner_is_not_used() -> None:
    world = World({"a": on_time((1, 1), (2, 2), (3, 3), (4, 4))}, final=False)
    topology = numbers(world)
    with running(topology) as former:
        assert former.values("numbers") == [1, 2, 3, 4]
        with running(
            topology
        ) as harness:  # it knows nothing of the former cluster, and this process has a reader of it
            assert harness.values("numbers") == [1, 2, 3, 4]
            assert (world.opened, world.closed) == ([("a", None), ("a", None)], ["a"])
    assert world.closed == ["a", "a"]


def test_a_failing_read_is_tried_again_and_shown() -> None:
    world = World({"a": on_time((1, 1))}, final=False)
    with running(numbers(world)) as harness:
        world.breaks = 1
        with pytest.raises(ConnectionError, match="split a is away"):
            harness.advance_clock(mw.seconds(1))
        world.splits["a"] += on_time((2, 2))
        harness.advance_clock(mw.seconds(60))
        assert harness.values("numbers") == [1, 2]


def test_a_bad_record_stops_its_split_and_says_where() -> None:
    world = World({"a": []}, final=False)
    with running(numbers(world)) as harness:
        world.splits["a"] = [(1, at(1)), (bad("a"), None), (3, at(3))]
        with pytest.raises(mw.MillwheelError, match="split 'a', line 2: it is no number"):
            harness.advance_clock(mw.seconds(1))


def test_bad_records_may_have_a_stream() -> None:
    world = World({"a": [(1, at(1)), (bad("a"), None), (3, at(3))]})
    with running(numbers(world, bad="unreadable")) as harness:
        assert harness.values("numbers") == [1, 3]
        assert harness.values("unreadable") == [BadRecord("a", "line 2", "it is no number", b"x")]
        state = harness.state("numbers-reader", "a")
        assert (state.records, state.bad) == (3, 1)


def test_a_split_that_is_mostly_bad_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Regression: a wrong timestamp= sent all records to the stream of bad=, and nothing said so."""
    world = World({"a": on_time(*((number, 1) for number in range(40)))})
    before_1980 = {"timestamp": lambda number: mw.Timestamp(number), "bad": "unreadable"}
    with running(numbers(world, **before_1980), any_timestamp=False) as harness:
        assert len(harness.values("unreadable")) == 40
        assert harness.state("numbers-reader", "a").bad == 40
    (said,) = (one.getMessage() for one in caplog.records if "cannot be read" in one.getMessage())
    assert "source shop/numbers: " in said
    assert "of split 'a' cannot be read, and went to stream 'unreadable'. The last error: 1970-01-01" in said


def test_few_bad_records_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World({"a": [*on_time(*((number, 1) for number in range(40))), *[(bad("a"), None)] * 15]})
    with running(numbers(world, bad="unreadable")) as harness:
        assert harness.state("numbers-reader", "a").bad == 15
    assert not [one for one in caplog.records if "cannot be read" in one.getMessage()]


def test_key_inspect_shows_how_far_a_split_was_read() -> None:
    world = World({"a": on_time((1, 1), (2, 2))}, final=False)
    with running(numbers(world)) as harness:
        state = harness.state("numbers-reader", "a")
    assert (state.position, state.records, state.behind, state.watermark) == (2, 2, 0, at(2))


def test_a_source_has_no_options_of_injectors() -> None:
    with pytest.raises(mw.UsageError, match=r"that is read has no option 'id_slack'\. Its options are allowed_skew"):
        mw.Topology("shop").source("numbers", int, Numbers(World()), id_slack=mw.hours(1))  # type: ignore[call-overload]
