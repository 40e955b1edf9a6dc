"""The outputs of windows are known before a run. Wrong names and types are reported at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any, TypeVar

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.sdk.plan import Plan
from millwheel.testing import TopologyHarness
from millwheel.windows.computation import Panes

R = TypeVar("R")
SECOND = windows.tumbling(mw.seconds(1))
BY_PAGE = {"hits": mw.key("page")}


class Hit(msgspec.Struct):
    page: str
    size: int = 1


class Visit(msgspec.Struct):
    page: str


def topology_of(computation: Any, **added: Any) -> mw.Topology:
    topology = mw.Topology("hits")
    topology.source("hits", Hit)
    topology.add(computation, name="windowed", inputs=BY_PAGE, **added)
    return topology


def plan_of(computation: Any, **added: Any) -> Plan:
    return topology_of(computation, **added).plan()


def problems_of(computation: Any, **added: Any) -> list[str]:
    return [str(problem) for problem in topology_of(computation, **added).validate()]


def result_of(type_: Any) -> Any:
    return windows.Result[type_]


AGGREGATORS: dict[str, tuple[agg.Aggregator[Any, Any], Any]] = {
    "count": (agg.count(), int),
    "total": (agg.sum(lambda hit: hit.size), int | float),
    "total of ints": (agg.sum(lambda hit: hit.size, int), int),
    "mean": (agg.mean(lambda hit: hit.size), float),
    "largest": (agg.max(lambda hit: hit.page, str), str),
    "smallest": (agg.min(lambda hit: hit.size), int | float),
    "collect": (agg.collect(lambda hit: hit.page, str), list[str]),
}


@pytest.mark.parametrize("name", AGGREGATORS)
def test_an_aggregate_declares_its_output_and_its_states_type(name: str) -> None:
    aggregator, result = AGGREGATORS[name]
    plan = plan_of(windows.Aggregate(SECOND, aggregator))
    assert plan.streams["windows"].type == result_of(result)
    panes: Any = Panes[aggregator.accumulator]  # type: ignore[name-defined]
    assert plan.computations["windowed"].state_type == panes


@pytest.mark.parametrize("name", AGGREGATORS)
def test_what_is_produced_is_of_the_declared_type(name: str) -> None:
    aggregator, result = AGGREGATORS[name]
    harness = TopologyHarness(topology_of(windows.Aggregate(SECOND, aggregator)))
    harness.send("hits", Hit("a", 3), mw.Timestamp(1))
    harness.finish()
    (found,) = harness.values("windows")
    assert msgspec.convert(found.value, result, strict=True) == found.value


def test_sessions_declare_their_output() -> None:
    plan = plan_of(windows.SessionAggregate(windows.session(mw.seconds(1)), agg.count()))
    assert plan.streams["sessions"].type == windows.Result[int]
    assert plan.computations["windowed"].state_type == list[tuple[int, int, int, int, int]]


def test_two_phases_declare_their_outputs() -> None:
    topology = mw.Topology("hits")
    topology.source("hits", Hit)
    mean = agg.mean(lambda hit: hit.size)
    windows.two_phase(
        topology, "m", source="hits", key_of=lambda hit: hit.page, windows=SECOND, aggregator=mean, output="means"
    )
    streams = topology.plan().streams
    assert streams["means"].type == windows.Result[float]
    assert streams["m-partials"].type == windows.Result[tuple[int, int | float]]


def test_outputs_that_fit_may_be_stated() -> None:
    count = windows.Aggregate(SECOND, agg.count())
    for outputs in (["windows"], {"windows": windows.Result[int]}, {"windows": windows.Result}, {"windows": Any}):
        assert problems_of(count, outputs=outputs) == []


def test_a_wrong_name_in_outputs_is_reported_with_the_right_one() -> None:
    (problem,) = problems_of(windows.Aggregate(SECOND, agg.count(), output="counts"), outputs=["count"])
    assert problem == (
        "computation 'windowed', output 'count': outputs= names it, but the computation produces to 'counts' alone "
        "(did you mean 'counts'?): correct outputs= or leave it out, or change the name that the computation was given"
    )


def test_a_wrong_type_in_outputs_is_reported_with_the_right_one() -> None:
    count = windows.Aggregate(SECOND, agg.count())
    (problem,) = problems_of(count, outputs={"windows": windows.Result[str]})
    assert problem == (
        "computation 'windowed', output 'windows': outputs= says that it carries Result[str], but the computation "
        "produces Result[int]: correct outputs= or leave it out, or change the computation's parameters"
    )


def test_a_consumer_of_another_type_is_reported() -> None:
    class Reader(mw.Computation[windows.Result[str]]):
        def process_record(self, ctx: Any, record: Any) -> None: ...

    topology = topology_of(windows.Aggregate(SECOND, agg.count()))
    topology.add(Reader, inputs={"windows": mw.key("key")})
    (problem,) = topology.validate()
    assert "it takes Result[str], but the stream carries Result[int] (declared_outputs() of" in problem.message


def test_a_declared_stream_of_another_type_is_reported() -> None:
    topology = topology_of(windows.Aggregate(SECOND, agg.count()))
    topology.stream("windows", windows.Result[str])
    (problem,) = topology.validate()
    assert "has two types: Result[str] by stream(), and Result[int] by declared_outputs() of" in problem.message


def test_too_late_records_go_to_a_stream_of_the_inputs_type() -> None:
    count = windows.Aggregate(SECOND, agg.count(), too_late="late")
    assert plan_of(count).streams["late"].type == Hit
    assert problems_of(count, outputs={"late": Hit, "windows": windows.Result[int]}) == []
    (problem,) = problems_of(count, outputs={"late": Visit})
    assert problem == (
        "computation 'windowed', input 'hits': the computation passes on Hit, but stream 'late' carries Visit"
    )


def test_late_records_may_be_diverted_beside_what_is_declared() -> None:
    count = windows.Aggregate(SECOND, agg.count())
    assert problems_of(count, outputs={"late": Hit}, late=mw.divert("late")) == []


def test_one_stream_cannot_carry_results_and_records() -> None:
    with pytest.raises(mw.UsageError, match="both name stream 'windows'"):
        windows.Aggregate(SECOND, agg.count(), too_late="windows")
    with pytest.raises(mw.UsageError, match="both name stream 'sessions'"):
        windows.SessionAggregate(windows.session(mw.seconds(1)), agg.count(), too_late="sessions")


# Custom aggregators.


def add(values: list[float], record: mw.Record[Hit]) -> list[float]:
    return [*values, record.value.size]


def merge(a: list[float], b: list[float]) -> list[float]:
    return a + b


def annotated(values: list[float]) -> float:
    return median(values)


def generic(values: list[R]) -> R:
    return values[0]


class Called:
    def __call__(self, values: list[float]) -> float:
        return median(values)


class Median(agg.Aggregator[list[float], float]):
    def __init__(self) -> None:
        super().__init__(list[float], list, add, merge, median)


def unnamed(values: Any) -> Any:
    return median(values)


STATED: dict[str, Callable[[], Any]] = {
    "by an argument": lambda: agg.Aggregator(list[float], list, add, merge, lambda values: median(values), float),
    "by generics": lambda: agg.Aggregator[list[float], float](list[float], list, add, merge, lambda v: median(v)),
    "by a subclass": Median,
    "by an annotation": lambda: agg.Aggregator(list[float], list, add, merge, annotated),
    "by a partial function": lambda: agg.Aggregator(list[float], list, add, merge, partial(annotated)),
    "by an annotated object": lambda: agg.Aggregator(list[float], list, add, merge, Called()),
}


@pytest.mark.parametrize("how", STATED)
def test_an_aggregator_of_ones_own_states_its_results_type(how: str) -> None:
    assert plan_of(windows.Aggregate(SECOND, STATED[how]())).streams["windows"].type == windows.Result[float]


def test_a_class_as_result_function_is_its_type() -> None:
    aggregator = agg.Aggregator(list[float], list, add, merge, tuple)
    assert plan_of(windows.Aggregate(SECOND, aggregator)).streams["windows"].type == result_of(tuple)


@pytest.mark.parametrize("result", [lambda values: median(values), generic, unnamed, sorted])
def test_an_aggregator_without_a_declared_result_type_is_refused(result: Any) -> None:
    aggregator: Any = agg.Aggregator(list[float], list, add, merge, result)
    with pytest.raises(mw.UsageError, match=r"does not state the type of its results: add result_type=\.\.\., write"):
        windows.Aggregate(SECOND, aggregator)


# Custom computations.


class Declaring(mw.Computation[Hit]):
    def __init__(self, outputs: Any) -> None:
        self.said = outputs

    def process_record(self, ctx: Any, record: Any) -> None: ...

    def declared_outputs(self) -> Mapping[str, Any] | None:
        return self.said()  # type: ignore[no-any-return]


def test_any_computation_may_declare_its_outputs() -> None:
    plan = plan_of(Declaring(lambda: {"names": str, "copies": mw.SAME_AS_INPUT}))
    assert {name: plan.streams[name].type for name in ("names", "copies")} == {"names": str, "copies": Hit}


def test_a_broken_declaration_of_outputs_is_reported() -> None:
    (problem,) = problems_of(Declaring(lambda: 1 // 0))
    assert "declared_outputs() failed with ZeroDivisionError: " in problem
    (problem,) = problems_of(Declaring(lambda: ["names"]))
    assert "declared_outputs() must return a mapping from streams to types, or None, not ['names']" in problem
    assert problems_of(Declaring(lambda: {"Names": str})) != []
