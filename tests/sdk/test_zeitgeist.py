"""The example that the interface was designed by works as it is written (figures 2, 3 and 9)."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest

import millwheel as mw
from millwheel.sdk.compiled import compile_computation, consumers_of


class Query(msgspec.Struct):
    text: str


class WindowCount(msgspec.Struct, tag=True):
    query: str
    count: int


class Model(msgspec.Struct, tag=True):
    query: str
    expected: float


class Dip(msgspec.Struct):
    query: str


@dataclass(frozen=True)
class Window:
    start: int

    @property
    def end(self) -> mw.Timestamp:
        return mw.Timestamp(self.start + mw.seconds(1))

    @property
    def id(self) -> str:
        return str(self.start)


class Second:
    def of(self, timestamp: int) -> Window:
        return Window(timestamp - timestamp % mw.seconds(1))


SECOND = Second()


@dataclass
class Counts:
    windows: dict[str, int] = field(default_factory=dict)

    def add(self, window: Window) -> None:
        self.windows[window.id] = self.windows.get(window.id, 0) + 1

    def pop(self, window_id: str) -> int:
        return self.windows.pop(window_id)


class WindowCounter(mw.Computation[Query, Counts]):
    """Counts queries per second; produces a count once its second is complete."""

    def process_record(self, ctx, record):  # type: ignore[no-untyped-def]
        window = SECOND.of(record.timestamp)
        ctx.state.add(window)
        ctx.set_timer(window.end, tag=window.id)

    def process_timer(self, ctx, timer):  # type: ignore[no-untyped-def]
        ctx.produce("windows", WindowCount(ctx.key, ctx.state.pop(timer.tag)), timestamp=timer.timestamp)


class DipDetector(mw.Computation[WindowCount | Model, float]):
    def process_record(self, ctx: mw.Context[float], record: mw.Record[WindowCount | Model]) -> None:
        if isinstance(record.value, Model):
            ctx.state = record.value.expected
        elif record.value.count < ctx.state:
            ctx.produce("dips", Dip(ctx.key))


zeitgeist = mw.Topology("zeitgeist")
zeitgeist.add(WindowCounter, inputs={"queries": mw.key("text")}, outputs=["windows"])
zeitgeist.add(DipDetector, inputs={"windows": mw.key("query"), "models": mw.key("query")}, outputs=["dips"])

# Where its data comes from; the order of the calls is free.
zeitgeist.source("queries", Query)
zeitgeist.source("models", Model)


@pytest.mark.paper(section="fig. 3")
def test_the_example_is_a_valid_topology() -> None:
    assert zeitgeist.validate() == []


def test_the_streams_types_follow_from_what_their_consumers_take() -> None:
    streams = zeitgeist.plan().streams
    assert {name: stream.type_name for name, stream in streams.items()} == {
        "queries": "Query",
        "windows": "WindowCount",
        "models": "Model",
        "dips": "Any",
    }


@pytest.mark.paper(section="fig. 5")
def test_each_consumer_keys_the_stream_in_its_own_way() -> None:
    [(name, extract)] = consumers_of(zeitgeist, "windows")
    assert (name, extract(WindowCount("skating", 3))) == ("dip-detector", b"skating")
    assert consumers_of(zeitgeist, "dips") == []


def test_the_worker_decodes_each_input_by_its_streams_type() -> None:
    counter = compile_computation(zeitgeist, "window-counter")
    detector = compile_computation(zeitgeist, "dip-detector")
    encoded = counter.outputs["windows"](WindowCount("skating", 3))
    assert detector.inputs["windows"](encoded) == WindowCount("skating", 3)
    assert detector.state.new() == 0.0
    assert counter.state.decode(counter.state.encode(Counts({"1": 2}))) == Counts({"1": 2})
    assert (counter.handles_timers, detector.handles_timers) == (True, False)
