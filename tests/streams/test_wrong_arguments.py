"""A step refuses an argument of a wrong kind when the program is built. Otherwise a hook would fail at each record."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.sdk.compiled import compile_computation
from millwheel.testing import TopologyHarness

HOUR = mw.hours(1)
WRONG: list[Any] = [1.5, object(), -5 * HOUR, [1], windows.each_change, mw.dead_letter, lambda value: value, "text"]
CALLED: list[Any] = [windows.each_change, mw.dead_letter, WRONG[-2]]
NAMES, MARKS = (
    frozenset({"too_late", "excess", "rest", "late"}),
    frozenset({"function", "removes", "otherwise", "ties"}),
)


class Item(msgspec.Struct):
    id: str
    text: str
    number: int = 0
    maybe: int | None = None


Build = Callable[[Any, Any, dict[str, Any]], Any]


def pair(one: Any, other: Any) -> int:
    return 1


def of_window(kind: Any) -> Build:
    return lambda keyed, _, given: keyed.window(kind).aggregate("out", agg.count(), **given)


async def call(item: Any) -> int:
    return 1


STEPS: dict[str, tuple[Build, str]] = {
    "window": (of_window(windows.tumbling(HOUR)), "early allowed_lateness too_late spread"),
    "session": (of_window(windows.session(HOUR)), "early allowed_lateness too_late spread"),
    "spread": (
        lambda keyed, _, given: of_window(windows.tumbling(HOUR))(keyed, _, {"spread": 2, **given}),
        "early allowed_lateness too_late",
    ),
    "any window": (
        lambda keyed, _, given: keyed.window(given["windows"]).aggregate("out", agg.count()),
        "windows",
    ),
    "window join": (
        lambda keyed, other, given: keyed.window(windows.tumbling(HOUR)).join("out", other, pair, **given),
        "outer allowed_lateness too_late",
    ),
    "cogroup": (
        lambda keyed, other, given: keyed.window(windows.tumbling(HOUR)).cogroup("out", other, pair, int, **given),
        "allowed_lateness too_late",
    ),
    "join": (lambda keyed, other, given: keyed.join("out", other, **{"function": pair} | given), "function keep"),
    "join_within": (
        lambda keyed, other, given: keyed.join_within("out", other, pair, **{"after": HOUR} | given),
        "before after allowed_lateness too_late outer",
    ),
    "join_as_of": (
        lambda keyed, other, given: keyed.join_as_of("out", other, pair, **given),
        "outer late on_failure exactly_once strong straggler_delay",
    ),
    "join_latest": (
        lambda keyed, other, given: keyed.join_latest("out", other, pair, **given),
        "outer removes keep",
    ),
    "join_tables": (lambda keyed, other, given: keyed.join_tables("out", other, pair, **given), "outer keep"),
    "join_broadcast": (
        lambda keyed, other, given: keyed.join_broadcast("out", other, pair, **given),
        "as_of removes copies limit",
    ),
    "enrich": (
        lambda keyed, _, given: keyed.enrich("out", call, **given),
        "concurrency timeout retries backoff otherwise",
    ),
    "update": (
        lambda keyed, _, given: keyed.update("out", 0, to=int, **{"function": pair, "keep": HOUR} | given),
        "function keep domain",
    ),
    "deduplicate": (lambda keyed, _, given: keyed.deduplicate("out", **given), "within"),
    "until": (lambda keyed, _, given: keyed.until("out", bool, **given), "keep rest"),
    "throttle": (
        lambda keyed, _, given: keyed.throttle("out", **{"count": 1, "per": HOUR} | given),
        "count per excess",
    ),
    "latest": (lambda keyed, _, given: keyed.latest("out", **given), "keep late on_failure"),
    "timeout": (
        lambda keyed, _, given: keyed.timeout("out", to=int, **{"after": HOUR, "function": bool} | given),
        "after function domain",
    ),
    "count_window": (
        lambda keyed, _, given: keyed.count_window(**{"size": 3} | given).aggregate("out", n=agg.count()),
        "size within",
    ),
    "ordered_by_time": (lambda keyed, _, given: keyed.ordered_by_time(**given).latest("out"), "ties limit"),
}


def built(build: Build, given: dict[str, Any]) -> mw.Topology:
    topology = mw.Topology("t")
    left, right = (topology.source(side, Item).key_by("id") for side in ("left", "right"))
    build(left, right, given)
    return topology


@pytest.mark.parametrize(
    ("step", "argument"), [(step, name) for step, (_, names) in STEPS.items() for name in names.split()]
)
def test_an_argument_of_a_wrong_kind_is_refused(step: str, argument: str) -> None:
    for value in WRONG:
        if (argument in NAMES | {"ties"} and value == "text") or (argument in MARKS and value in CALLED):
            continue  # of the right kind
        try:
            problems: Any = built(STEPS[step][0], {argument: value}).validate()
        except mw.UsageError as error:
            problems = error
        assert problems, f"{step}({argument}={value!r})"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda keyed: of_window(windows.tumbling(HOUR))(keyed, 0, {"early": mw.seconds(5)}), "early= takes windows"),
        (
            lambda keyed: of_window(windows.session(HOUR))(keyed, 0, {"early": windows.each_change}),
            r"early= takes .*windows.each_change\(\), not each_change",
        ),
        (
            lambda keyed: keyed.timeout("quiet", HOUR, bool, domain="wall"),
            "step 'quiet': timeout takes domain= as a mw.TimeDomain, not 'wall'",
        ),
        (lambda keyed: keyed.window(HOUR), "window takes windows= as windows, such as windows.tumbling"),
    ],
)
def test_the_error_says_what_the_argument_takes(build: Any, message: str) -> None:
    keyed = mw.Topology("t").source("items", Item).key_by("id")
    with pytest.raises(mw.UsageError, match=message):
        build(keyed)


@pytest.mark.parametrize("kind", ["sum", "mean", "variance", "quantile", "histogram"])
def test_an_aggregate_of_numbers_takes_no_text(kind: str) -> None:
    make: Any = getattr(agg, kind)
    more: tuple[Any, ...] = {"quantile": (0.5,), "histogram": ([1, 2],)}.get(kind, ())
    keyed = mw.Topology("t").source("items", Item).key_by("id")
    with pytest.raises(mw.UsageError, match=rf"agg.{kind} takes numbers, but 'text' is str"):
        keyed.window(windows.tumbling(HOUR)).aggregate("out", make("text", *more))
    with pytest.raises(mw.UsageError, match=rf"agg.{kind} takes numbers, but 'text' is str"):
        keyed.aggregate("out", n=make("text", *more))
    keyed.aggregate("numbers", n=make("number", *more))


def maybe_of(item: Item) -> int | None:
    return item.maybe


@pytest.mark.parametrize("kind", ["sum", "mean", "variance", "quantile", "histogram"])
def test_an_aggregate_of_numbers_takes_none_only_by_where(kind: str) -> None:
    """Regression: it was submitted, and its hook failed for ever at the first None.

    What was submitted before still loads.
    """
    make: Any = getattr(agg, kind)
    more: tuple[Any, ...] = {"quantile": (0.5,), "histogram": ([1, 2],)}.get(kind, ())
    topology = mw.Topology("t")
    keyed = topology.source("items", Item).key_by("id")
    keyed.window(windows.tumbling(HOUR)).aggregate("days", make("maybe", *more))
    keyed.window(windows.tumbling(HOUR)).aggregate("named", n=make("maybe", *more))
    keyed.aggregate("totals", n=make(maybe_of, *more))
    keyed.aggregate("several", all=agg.several({"n": make("maybe", *more)}))
    keyed.aggregate(
        "numbers",
        some=make("maybe", *more, where=lambda item: item.maybe is not None),
        all=make(lambda item: item.maybe or 0, *more),
    )
    for name in ("days", "named", "totals", "several", "numbers"):
        compile_computation(topology, name)
    advice = r"is int \| None: leave out the records without a number by where="
    wanted = [
        rf"computation 'days': agg.{kind} takes numbers, but 'maybe' {advice}",
        rf"computation 'named': n: agg.{kind} takes numbers, but 'maybe' {advice}",
        rf"computation 'totals': n: agg.{kind} takes numbers, but a value {advice}",
        rf"computation 'several': all: n: agg.{kind} takes numbers, but 'maybe' {advice}",
    ]
    for checked in (topology, topology.named("fork")):
        found = [str(one) for one in checked.validate()]
        assert len(found) == len(wanted)
        assert all(map(re.match, wanted, found)), found
    for refuse in (topology.check, topology.to_spec, lambda: TopologyHarness(topology)):
        with pytest.raises(mw.TopologyError, match=advice):
            refuse()


def test_a_given_type_does_not_hide_none() -> None:
    """Regression: it was submitted, and its hook failed at the first None without an advice."""
    topology = mw.Topology("t")
    topology.source("items", Item).key_by("id").aggregate("totals", n=agg.sum("maybe", int), m=agg.sum(maybe_of, int))
    for name, read in (("n", "'maybe'"), ("m", "a value")):
        wanted = f"{name}: agg.sum takes numbers, but {read} is int | None: leave out"
        assert any(wanted in str(one) for one in topology.validate()), wanted
    agg.sum("absent", int).bind(Item)  # it was submitted, too, and so it loads
    compile_computation(topology, "totals")


def test_an_objection_goes_with_a_step_that_is_declared() -> None:
    """Regression: in a notebook, the objection to a step that was an error stayed for ever."""

    class Sum(msgspec.Struct):
        key: str
        wrong: int

    topology = mw.Topology("t")
    keyed = topology.source("items", Item).key_by("id")
    made: list[Any] = [keyed, keyed.window(windows.tumbling(HOUR)), keyed.count_window(3)]
    for steps in made:
        name, aggregate = f"out{len(topology.plan().computations)}", steps.aggregate
        with pytest.raises(mw.UsageError):
            aggregate(name, Sum, n=agg.sum("maybe"))
        aggregate(name, n=agg.sum("maybe", where=lambda item: item.maybe is not None))
        assert topology.validate() == []


@pytest.mark.parametrize("of", ["maybe", maybe_of])
@pytest.mark.parametrize("kind", ["sum", "mean", "variance", "quantile", "histogram"])
def test_none_among_numbers_says_what_to_do(kind: str, of: Any) -> None:
    """It is so in a topology that was submitted before such aggregates were refused."""
    more: tuple[Any, ...] = {"quantile": (0.5,), "histogram": ([1, 2],)}.get(kind, ())
    aggregator: Any = agg.several({"n": getattr(agg, kind)(of, *more)}).bind(Item)

    def record(maybe: int | None) -> mw.Record[Item]:
        item = Item("a", "", maybe=maybe)
        return mw.Record(b"", b"", mw.Timestamp(0), "items", lambda _: item, False, item)

    counted = aggregator.add(aggregator.new(), record(1))
    with pytest.raises(TypeError, match=rf"None, and agg.{kind} takes numbers, .* by where=, or read a function that"):
        aggregator.add(counted, record(None))


def test_the_least_and_greatest_leave_out_none() -> None:
    topology = mw.Topology("t")
    keyed = topology.source("items", Item).key_by("id")
    keyed.aggregate("ends", low=agg.min("maybe"), high=agg.max("maybe"))
    harness = TopologyHarness(topology)
    for maybe in (None, 3, None, 5):
        harness.send("items", Item("a", "", maybe=maybe), mw.Timestamp(1_700_000_000_000_000))
    assert [(one.low, one.high) for one in harness.values("ends")] == [(None, None), (3, 3), (3, 5)]


@pytest.mark.parametrize("keep", [None, HOUR])
def test_an_update_that_returns_no_pair_says_what_to_return(keep: Any) -> None:
    def add(total: int, item: Item) -> Any:
        return total + item.number

    topology = mw.Topology("t")
    topology.source("items", Item).key_by("id").update("sums", 0, add, int, keep=keep)
    harness = TopologyHarness(topology)
    with pytest.raises(Exception, match=r"add returned 5: .* such as \(state, \[result\]\)"):
        harness.send("items", Item("a", "", 5), mw.Timestamp(1_700_000_000_000_000))


def test_an_aggregate_without_a_name_says_so() -> None:
    keyed: Any = mw.Topology("t").source("items", Item).key_by("id")
    for step in (keyed, keyed.window(windows.tumbling(HOUR))):
        with pytest.raises(mw.UsageError, match=r"a step has a name first, such as aggregate\('counts', ...\)"):
            step.aggregate(agg.count())
