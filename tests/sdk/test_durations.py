"""Durations that only a wrong unit explains are refused where a program states them (section 4.5)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.units import ANY_TIMESTAMP_VARIABLE


def keyed(name: str = "hits") -> Any:
    return mw.Topology("t").source(name, str).key_by(lambda text: text)


def joined(**options: Any) -> mw.Stream[Any]:
    topology = mw.Topology("t")
    left, right = (topology.source(side, str).key_by(lambda text: text) for side in ("left", "right"))
    return left.join_within("pairs", right, lambda one, other: one, str, **options)


async def call(value: str) -> str:
    return value


STATED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "tumbling": (windows.tumbling, "a window's size"),
    "offset": (lambda after: windows.tumbling(mw.hours(1), offset=-after), "a window's offset"),
    "sliding": (lambda after: windows.sliding(mw.minutes(10), after), "a window's every"),
    "session": (windows.session, "a session's gap"),
    "every": (windows.every, "the period of windows.every"),
    "lateness": (
        lambda after: windows.Aggregate(windows.tumbling(mw.hours(1)), agg.count(), allowed_lateness=after),
        "allowed_lateness",
    ),
    "deduplicate": (lambda after: keyed().deduplicate("firsts", after), r"deduplicate\(within\)"),
    "count_window": (lambda after: keyed().count_window(3, within=after).aggregate("n", n=agg.count()), "count_window"),
    "latest": (lambda after: keyed().latest("latest", keep=after), "keep"),
    "timeout": (lambda after: keyed().timeout("silent", after, lambda text: text, str), r"timeout\(after\)"),
    "join_within": (lambda after: joined(after=after), r"join_within\(after=...\)"),
    "enrich": (lambda after: keyed().enrich("called", call, timeout=after), r"enrich\(timeout=...\)"),
}


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ANY_TIMESTAMP_VARIABLE)


@pytest.mark.paper(section="4.5")
@pytest.mark.parametrize(("state", "name"), STATED.values(), ids=STATED)
@pytest.mark.parametrize("wrong", [30, 3_600, 86_400])
def test_a_duration_in_seconds_is_refused(state: Callable[[Any], Any], name: str, wrong: int) -> None:
    with pytest.raises(mw.UsageError, match=rf"{name}.* is {wrong} microseconds: write millwheel.seconds\({wrong}\)"):
        state(wrong)


@pytest.mark.paper(section="4.5")
@pytest.mark.parametrize("meant", [mw.milliseconds(1), mw.milliseconds(60), mw.seconds(1 / 3), mw.seconds(30)])
def test_usual_durations_below_a_second_are_taken(meant: mw.Duration) -> None:
    for state, _ in STATED.values():
        state(meant)


@pytest.mark.paper(section="4.5")
def test_a_short_duration_may_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(mw.UsageError, match=f"If it is meant, set {ANY_TIMESTAMP_VARIABLE}=1"):
        windows.session(mw.Duration(30))
    monkeypatch.setenv(ANY_TIMESTAMP_VARIABLE, "1")
    assert windows.session(mw.Duration(30)).gap == 30


@pytest.mark.paper(section="4.5")
@pytest.mark.parametrize("wrong", [30.0, timedelta(seconds=30), True, "30s"])
def test_what_is_no_number_of_microseconds_is_refused(wrong: Any) -> None:
    with pytest.raises(mw.UsageError, match=r"must be a positive duration such as millwheel.seconds\(1\), not "):
        windows.session(wrong)


@pytest.mark.paper(section="4.5")
def test_validate_names_options_in_another_unit() -> None:
    topology = mw.Topology("t")
    hits = topology.source("hits", str, allowed_skew=mw.Duration(60)).key_by(lambda text: text)
    hits.deduplicate("firsts", on_failure=mw.retry(initial=mw.Duration(5)))
    assert [str(one).partition(": write")[0] for one in topology.validate()] == [
        "computation 'firsts': retry(initial=...) is 5 microseconds",
        "stream 'hits': allowed_skew is 60 microseconds",
    ]
