"""Every operator against its naive model: random orders, late records, crashes and split keys (G1, G6, G7, G14).

The models are the entries from which simulated topologies draw (:mod:`simulation.blocks.operators`). An operator that
gets an entry there is tested here, too.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.testing import TopologyHarness
from simulation.blocks.operators import OPERATORS, Flow, Row, single
from simulation.blocks.records import Item

BEGIN = 1_700_000_000_000_000
TENTH = 100_000
KEYS = "ab"

sending = st.tuples(st.just("send"), st.integers(-3, 12), st.sampled_from(KEYS), st.booleans())
"""A timestamp relative to the watermark."""
rising = st.tuples(st.just("watermark"), st.integers(1, 8), st.just(""), st.just(False))
passing = st.tuples(st.just("clock"), st.integers(1, 9), st.just(""), st.just(False))
crashing = st.tuples(st.just("crash"), st.just(0), st.just(""), st.just(False))
steps_of = st.lists(st.one_of(sending, sending, sending, sending, rising, passing, crashing), max_size=30)

Step = tuple[str, int, str, bool]


@pytest.fixture(autouse=True)
def prompt_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service that is asked answers at once."""
    monkeypatch.setattr(single, "LONGEST_ANSWER", 0)


class Run:
    """An operator in a harness, with the records that it must and must not take."""

    def __init__(self, name: str, arguments: list[Any], two: bool) -> None:
        self.topology = mw.Topology("shop")
        self.streams = ["s0", "s1"][: 2 if two else 1]
        for stream in self.streams:
            self.topology.source(stream, Item)
        self.diverts = OPERATORS[name].has_options
        options = {"late": "late"} if self.diverts else {}
        OPERATORS[name].build(Flow(self.topology, "op", self.streams, "a", options), arguments)
        self.harness = TopologyHarness(self.topology, split_at=["1", "b"])
        self.harness.advance(mw.Timestamp(BEGIN))
        self.watermark = 0
        self.rows: list[Row] = []
        self.late: list[int] = []

    def send(self, offset: int, key: str, right: bool) -> None:
        """Send the next record. It is late if the watermark has passed it."""
        at, number = BEGIN + offset * TENTH, len(self.rows) + len(self.late) + 1
        stream = self.streams[-1] if right else self.streams[0]
        left = stream == "s0" if len(self.streams) == 2 else number % 2 == 0
        if offset < self.watermark and self.diverts:
            self.late.append(number)
        else:
            self.rows.append(Row(at, (number,), key, "", left))
        with suppress(ValueError):  # a hook has failed, and runs again as the clock advances
            self.harness.send(stream, Item([number], key, ""), mw.Timestamp(at))

    def play(self, steps: list[Step]) -> None:
        """Do all steps, and end the input."""
        for kind, number, key, right in steps:
            if kind == "send":
                self.send(self.watermark + number, key, right)
            elif kind == "watermark":
                self.watermark += number
                self.harness.advance(mw.Timestamp(BEGIN + self.watermark * TENTH))
            elif kind == "clock":
                self.harness.advance_clock(mw.Duration(number * TENTH))
            else:
                self.harness.crash()
        for _ in range(3):
            self.harness.advance_clock(mw.seconds(60))
        self.harness.finish()
        self.harness.advance_clock(mw.seconds(60))

    def found(self, key: str) -> list[Row]:
        """The results of a key, in their order."""
        results = [(one.timestamp, one.value) for one in self.harness.produced("op") if one.value.a == key]
        return [Row(at, tuple(item.ids), item.a, item.b, True) for at, item in results]

    def left(self) -> list[tuple[str, str]]:
        """The computations and keys that have a state or a timer."""
        computations = [(name, key) for name in self.topology.plan().computations for key in KEYS]
        return [one for one in computations if self.harness.state(*one) is not None or self.harness.timers(*one)]


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("name", sorted(OPERATORS))
@settings(report_multiple_bugs=False)
@given(steps=steps_of, drawn=st.integers(0, 1_000), two=st.booleans())
def test_an_operator_is_its_naive_model(name: str, steps: list[Step], drawn: int, two: bool) -> None:
    arguments = OPERATORS[name].draw(Random(drawn))
    run = Run(name, arguments, two)
    run.play(steps)
    for key in KEYS:
        mine = [row for row in run.rows if row.a == key]
        assert [*OPERATORS[name].judge(mine, run.found(key), arguments)] == []
    if OPERATORS[name].forgets(arguments):
        assert run.left() == []
    late = [one for item in run.harness.values("late") for one in item.ids] if run.diverts else []
    assert late == run.late
    run.harness.close()
