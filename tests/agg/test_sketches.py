"""Quantiles and numbers of distinct values: within their stated error, and the same in any order and any merges."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from hashlib import blake2b
from math import ceil, inf, nan
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.agg.aggregator import result_type_of
from millwheel.model.time import Timestamp
from millwheel.testing import TopologyHarness


class Call(msgspec.Struct, frozen=True):
    seconds: float
    user: str = ""


def record(call: Call) -> mw.Record[Call]:
    return mw.Record(b"", b"", Timestamp(0), "calls", lambda _: call, False, call)


def added(aggregate: Any, calls: list[Call]) -> Any:
    return reduce(lambda sketch, call: aggregate.add(sketch, record(call)), calls, aggregate.new())


def merged(aggregate: Any, calls: list[Call], chance: Random, cuts: int) -> Any:
    """The accumulator of the records in another order, merged from parts that were stored after each record."""
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(aggregate.accumulator)
    parts = [aggregate.new() for _ in range(cuts)]
    for call in chance.sample(calls, len(calls)):
        place = chance.randrange(cuts)
        parts[place] = decoder.decode(encoder.encode(aggregate.add(parts[place], record(call))))
    chance.shuffle(parts)
    return reduce(aggregate.merge, parts)


def exact(numbers: list[float], hundredths: int) -> float:
    """The smallest number with at least this share of all numbers up to it, in whole numbers only."""
    return sorted(numbers)[max(0, -(-len(numbers) * hundredths // 100) - 1)]


numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
    st.integers(-5, 5).map(float),
    st.sampled_from([0.0, -0.0, 2.0**1023, -(2.0**-1022), 1 - 2.0**-53, 1.7976931348623157e308]),
)


@given(
    found=st.lists(numbers, min_size=1, max_size=40),
    hundredths=st.integers(0, 100),
    error=st.sampled_from([0.5, 0.05, 0.01, 0.003, 0.001]),
)
def test_a_quantile_is_within_its_stated_error(found: list[float], hundredths: int, error: float) -> None:
    aggregate = agg.quantile("seconds", hundredths / 100, error=error).bind(Call)
    result = aggregate.result(added(aggregate, [Call(number) for number in found]))
    expected = exact(found, hundredths)
    assert abs(result - expected) <= abs(expected) * error * (1 + 1e-9)
    assert min(found) <= result <= max(found)


@given(found=st.lists(numbers), seed=st.integers(0, 99), cuts=st.integers(1, 4))
def test_a_quantile_does_not_depend_on_the_order(found: list[float], seed: int, cuts: int) -> None:
    aggregate = agg.quantiles("seconds", [0.5, 0.01, 1]).bind(Call)
    calls = [Call(number) for number in found]
    alone = added(aggregate, calls)
    parts = merged(aggregate, calls, Random(seed), cuts)
    assert parts == alone
    assert aggregate.result(parts) == aggregate.result(alone)
    msgspec.convert(aggregate.result(alone), result_type_of(aggregate))


def test_a_quantile_of_nothing_is_none() -> None:
    aggregate = agg.quantile("seconds", 0.5, where=lambda call: call.seconds > 1).bind(Call)
    assert aggregate.result(added(aggregate, [Call(0.5)])) is None
    assert agg.quantiles("seconds", [0.5, 0.9]).result(aggregate.new()) == []


def test_a_share_is_read_as_it_is_written() -> None:
    """The float 0.07 * 100 is more than 7, which would be the eighth number."""
    aggregate = agg.quantile("seconds", 0.07, error=0.001)
    assert ceil(0.07 * 100) == 8
    assert aggregate.result(added(aggregate, [Call(number) for number in range(1, 101)])) == pytest.approx(7, rel=0.001)


@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_a_quantile_refuses_what_is_no_finite_number(number: float) -> None:
    with pytest.raises(ValueError, match="exclude it, by where="):
        added(agg.quantile("seconds", 0.5), [Call(number)])


@pytest.mark.parametrize("count", [0, 1, 10, 100, 1_000, 1_100, 5_000, 50_000])
@pytest.mark.parametrize("error", [0.25, 0.02, 0.005])
def test_a_number_of_distinct_values_is_near(count: int, error: float) -> None:
    aggregate = agg.distinct("user", exact=False, error=error).bind(Call)
    users = [Call(0, f"user {number}") for number in range(count)]
    result = aggregate.result(added(aggregate, users + users[: count // 2]))
    assert abs(result - count) <= 3 * error * count


@given(
    found=st.lists(st.integers(0, 300), max_size=200),
    error=st.sampled_from([0.25, 0.1, 0.02]),
    seed=st.integers(0, 99),
    cuts=st.integers(1, 4),
)
def test_a_distinct_count_does_not_depend_on_the_order(found: list[int], error: float, seed: int, cuts: int) -> None:
    """With an error of 25% the registers are dense after a few values, so all pairs of both forms are merged."""
    aggregate = agg.distinct("user", exact=False, error=error).bind(Call)
    calls = [Call(0, str(number)) for number in found]
    once = [Call(0, str(number)) for number in sorted(set(found))]
    alone = added(aggregate, once)
    assert added(aggregate, calls) == alone
    assert merged(aggregate, calls, Random(seed), cuts) == alone


@given(
    found=st.lists(st.integers(0, 300), max_size=200),
    errors=st.permutations([0.25, 0.1, 0.02]),
    cut=st.integers(0, 200),
)
def test_sketches_of_two_errors_become_one_of_the_larger(found: list[int], errors: list[float], cut: int) -> None:
    """The merged sketch equals one that had the larger error from its first value."""
    one, other = (agg.distinct("user", exact=False, error=error).bind(Call) for error in errors[:2])
    coarse = one if errors[0] > errors[1] else other
    calls = [Call(0, str(number)) for number in found]
    assert one.merge(added(one, calls[:cut]), added(other, calls[cut:])) == added(coarse, calls)


@given(found=st.lists(numbers, min_size=1, max_size=40), cut=st.integers(0, 40))
def test_quantiles_of_two_errors_are_merged(found: list[float], cut: int) -> None:
    fine, coarse = (agg.quantile("seconds", 0.5, error=error).bind(Call) for error in (0.001, 0.05))
    calls = [Call(number) for number in found]
    merged = fine.merge(added(fine, calls[:cut]), added(coarse, calls[cut:]))
    expected = exact(found, 50)
    assert abs(fine.result(merged) - expected) <= abs(expected) * 0.052


@pytest.mark.parametrize("before", [0.05, 0.02])
def test_an_update_may_change_the_error_of_open_windows(before: float) -> None:
    """An open window keeps its error. Windows that begin after the update have the new one."""

    def version(error: float) -> mw.Topology:
        topology = mw.Topology("calls")
        window = topology.source("calls", Call).key_by(mw.everything).window(windows.tumbling(mw.hours(1)))
        window.aggregate(
            "stats", n=agg.distinct("user", exact=False, error=error), p=agg.quantile("seconds", 0.5, error=error)
        )
        return topology

    harness = TopologyHarness(version(before))
    for number in range(1_000):
        harness.send("calls", Call(number + 1, str(number)), Timestamp(number + 1_700_000_000_000_000))
    harness.update(version(0.07 - before))
    harness.send("calls", Call(1_001, "last"), Timestamp(1_700_000_000_000_000))
    harness.finish()
    (row,) = harness.values("stats")
    assert row.n == pytest.approx(1_001, rel=3 * before)
    assert row.p == pytest.approx(501, rel=before)


def test_equal_numbers_are_one_distinct_value() -> None:
    aggregate = agg.distinct("seconds", exact=False)
    assert aggregate.result(added(aggregate, [Call(1), Call(1.0), Call(1.5)])) == 2


def test_the_hash_of_a_distinct_value_never_changes() -> None:
    """Stored sketches are merged with those of other processes and of later versions."""
    aggregate = agg.distinct("user", exact=False)
    hashed = int.from_bytes(blake2b(b"\xa3ann", digest_size=8).digest(), "big")  # 12 bits, 01 and others
    assert (hashed >> 52, hashed >> 50 & 3) == (2981, 0b01)
    assert added(aggregate, [Call(0, "ann")]).ranks == {2981: 2}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: agg.quantile("seconds", 1.1), "from 0 to 1"),
        (lambda: agg.quantiles("seconds", []), "from 0 to 1"),
        (lambda: agg.quantile("seconds", 0.5, error=0), r"from 0\.001 to 0\.5"),
        (lambda: agg.distinct("user", exact=False, error=0.001), r"from 0\.005 to 0\.25"),
        (lambda: agg.quantile("cost", 0.5).bind(Call), "no field 'cost'"),
        (lambda: agg.distinct("name", exact=False).bind(Call), "no field 'name'"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(mw.UsageError, match=message):
        make()


class Minute(msgspec.Struct, frozen=True):
    users: int
    median: float
    slow: list[float]


@pytest.mark.parametrize("spread", [1, 3])
def test_sketches_are_aggregates_of_windows(spread: int) -> None:
    topology = mw.Topology("calls")
    minutes = topology.source("calls", Call).key_by(lambda call: "all").window(windows.tumbling(mw.minutes(1)))
    minutes.aggregate(
        "minutes",
        Minute,
        spread=spread,
        users=agg.distinct("user", exact=False),
        median=agg.quantile("seconds", 0.5),
        slow=agg.quantiles("seconds", [0.9, 1]),
    )
    harness = TopologyHarness(topology)
    for number in range(1, 101):
        harness.send("calls", Call(number, f"user {number % 10}"), Timestamp(number))
    harness.finish()
    (found,) = harness.values("minutes")
    assert found.users == 10
    assert found.median == pytest.approx(50, rel=0.01)
    assert found.slow == [pytest.approx(90, rel=0.01), 100]
