"""A step that a stream does not have names the step to call first."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel import windows
from millwheel.streams.keyed import KeyedStream
from millwheel.streams.missing_steps import NAMES_ELSEWHERE, ORDERED_STEPS, STATEFUL_STEPS, STATELESS_STEPS
from millwheel.streams.ordered import OrderedStream
from millwheel.streams.stream import Stream
from millwheel.streams.windowed import WindowedStream

PLUMBING = {"declare", "input", "is_side", "step"}
"""What the steps themselves call."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - PLUMBING


def test_the_lists_have_all_steps() -> None:
    assert {*ORDERED_STEPS} == public(OrderedStream)
    assert {*STATEFUL_STEPS} == public(KeyedStream) - public(Stream)
    assert {*STATELESS_STEPS} == public(Stream) - public(KeyedStream)


@pytest.mark.parametrize("name", STATEFUL_STEPS)
def test_a_stateful_step_needs_a_key(name: str) -> None:
    stream: Any = mw.Topology("t").source("numbers", int)
    with pytest.raises(AttributeError, match=rf"Stream has no {name}: key_by first"):
        getattr(stream, name)


@pytest.mark.parametrize("name", sorted(public(KeyedStream) - public(OrderedStream)))
def test_ordered_records_have_fewer_steps(name: str) -> None:
    ordered: Any = mw.Topology("t").source("numbers", int).key_by(mw.everything).ordered_by_time()
    with pytest.raises(AttributeError, match=rf"OrderedStream has no {name}: ordered_by_time .*aggregate.*key_by"):
        getattr(ordered, name)


@pytest.mark.parametrize("name", STATELESS_STEPS)
def test_a_stateless_step_comes_before_the_key(name: str) -> None:
    keyed: Any = mw.Topology("t").source("numbers", int).key_by(mw.everything)
    with pytest.raises(AttributeError, match=rf"KeyedStream has no {name}: .*before key_by"):
        getattr(keyed, name)


def test_any_other_name_is_as_in_any_object() -> None:
    stream: Any = mw.Topology("t").source("numbers", int)
    assert not hasattr(stream, "update")
    with pytest.raises(AttributeError, match=r"^'Stream' object has no attribute 'keyed'$"):
        _ = stream.keyed


@pytest.mark.parametrize(
    ("name", "here"),
    [("keyBy", "key_by"), ("connect", "join_latest"), ("windowAll", "mw.everything"), ("interval_join", "join_within")],
)
def test_a_name_of_another_system_names_what_it_is_here(name: str, here: str) -> None:
    stream: Any = mw.Topology("t").source("numbers", int)
    for each in (stream, stream.key_by(mw.everything)):
        with pytest.raises(AttributeError, match=rf"has no {name}: write .*{here}"):
            getattr(each, name)


@pytest.mark.parametrize(("name", "here"), [("sum", "agg.sum"), ("trigger", "early="), ("latest", "aggregate")])
def test_a_windowed_stream_says_what_follows_it(name: str, here: str) -> None:
    keyed: Any = mw.Topology("t").source("numbers", int).key_by(mw.everything)
    for windowed in (keyed.window(windows.tumbling(mw.hours(1))), keyed.count_window(3)):
        with pytest.raises(AttributeError, match=rf"WindowedStream has no {name}: .*{here}"):
            getattr(windowed, name)


def test_no_name_of_another_system_is_one_of_ours() -> None:
    kinds = (Stream, KeyedStream, OrderedStream, WindowedStream)
    ours = {name.lower().replace("_", "") for kind in kinds for name in public(kind)}
    assert not ours & {*NAMES_ELSEWHERE}
