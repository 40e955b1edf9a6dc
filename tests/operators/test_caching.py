"""Results of calls that are kept for a time, compared with a list of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw

SECOND = mw.seconds(1)


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time a test sets."""

    now = 100.0

    def time(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def loop() -> Iterator[Clock]:
    clock = Clock()
    yield clock
    clock.close()


class Service:
    """Numbers its calls. The call for "down" fails."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def ask(self, name: str) -> int:
        self.calls.append(name)
        if name == "down":
            raise ConnectionError(name)
        return len(self.calls)


asked_of = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcd")), max_size=30)


@given(asked=asked_of, keep=st.integers(1, 6), size=st.integers(1, 4))
def test_an_answer_is_kept_for_its_time(loop: Clock, asked: list[tuple[int, str]], keep: int, size: int) -> None:
    service = Service()
    ask = mw.cached(service.ask, keep=mw.seconds(keep), size=size)
    answers: dict[str, tuple[float, int]] = {}
    used: list[str] = []
    for wait, name in asked:
        loop.now += wait
        if name not in answers or answers[name][0] <= loop.now:
            answers[name] = loop.now + keep, len(service.calls) + 1
        used = [*(one for one in used if one != name), name]
        for forgotten in used[:-size]:
            del answers[forgotten]
        used = used[-size:]
        assert loop.run_until_complete(ask(name)) == answers[name][1]


def test_a_failure_is_not_kept(loop: Clock) -> None:
    service = Service()
    ask = mw.cached(service.ask, keep=SECOND)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            loop.run_until_complete(ask("down"))
    assert service.calls == ["down", "down"]


def test_a_step_takes_the_type_of_the_answers() -> None:
    topology = mw.Topology("shop")
    answers: mw.Stream[int] = topology.source("names", str).enrich("answers", mw.cached(Service().ask, keep=SECOND))
    assert answers.record_type is int
    assert topology.validate() == []


def test_wrong_bounds_are_refused() -> None:
    with pytest.raises(mw.UsageError, match="keep must be a positive duration"):
        mw.cached(Service().ask, keep=mw.Duration(0))
    with pytest.raises(mw.UsageError, match="cached takes a positive size, not 0"):
        mw.cached(Service().ask, keep=SECOND, size=0)
