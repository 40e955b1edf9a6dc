"""A step refuses an option that it does not have: none that is misspelt is dropped without a word."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.errors import MillwheelError
from millwheel.streams.declaring import StepOptions
from millwheel.streams.enriching import CallOptions
from millwheel.streams.sinking import WriteOptions

HOUR = mw.hours(1)


def streams() -> list[Any]:
    """One of each kind of stream, with and without windows."""
    source = mw.Topology("t").source("numbers", int)
    keyed = source.key_by(mw.everything)
    return [source, keyed, keyed.ordered_by_time(), keyed.window(windows.tumbling(HOUR)), keyed.count_window(3)]


def steps_with_options() -> list[tuple[int, str]]:
    """All methods of a stream that take ``**options``: the place of the stream, and the method's name."""
    found = []
    for place, stream in enumerate(streams()):
        for name in dir(type(stream)):
            method = getattr(type(stream), name)
            parameters = signature(method).parameters if callable(method) and not name.startswith("_") else {}
            if "options" in parameters and parameters["options"].kind is Parameter.VAR_KEYWORD:
                found.append((place, name))
    return found


STEPS = steps_with_options()


def options_of(place: int, name: str) -> set[str]:
    parameters = signature(getattr(streams()[place], name)).parameters.values()
    shared: Any = {"enrich": CallOptions, "to": WriteOptions}.get(name, StepOptions)
    return {one.name for one in parameters if one.kind is Parameter.KEYWORD_ONLY} | set(shared.__optional_keys__)


def test_all_steps_with_options_are_tried() -> None:
    assert {"process", "join_within", "throttle", "cogroup", "enrich", "join_broadcast"} <= {name for _, name in STEPS}


@given(step=st.sampled_from(STEPS), data=st.data())
def test_a_misspelt_option_is_refused_by_each_step(step: tuple[int, str], data: st.DataObject) -> None:
    place, name = step
    known = options_of(place, name)
    right = data.draw(st.sampled_from(sorted(known)))
    cut = data.draw(st.integers(1, len(right) - 1))
    wrong = right[:cut] + right[cut + 1 :]
    with pytest.raises(mw.UsageError, match=f"step 'it'.*{name} has no option '{wrong}'") as caught:
        getattr(streams()[place], name)("it", **{wrong: None})
    assert all(option in str(caught.value).partition("Its options are ")[2] for option in known)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda stream: stream.process("it", object, {}, on_failur=mw.stop()), "'on_failur' .did you mean 'on_failure"),
        (
            lambda stream: stream.join_within("it", stream, max, int, allowed_latness=HOUR),
            "'allowed_latness' .did you mean 'allowed_lateness'",
        ),
        (lambda stream: stream.throttle("it", 3, HOUR, domain=mw.TimeDomain.PROCESSING_TIME), "'domain'.*excess"),
        (
            lambda stream: stream.window(windows.tumbling(HOUR)).cogroup("it", stream, zip, int, early=None),
            "cogroup has no option 'early'.*too_late",
        ),
        (lambda stream: stream.join("it", stream, max, int, outer="left"), "join has no option 'outer'.*keep"),
        (
            lambda stream: stream.aggregate("it", n=agg.count(), options={"on_failur": mw.stop()}),
            "step 'it' has no option 'on_failur' .did you mean 'on_failure'",
        ),
        (
            lambda stream: stream.window(windows.tumbling(HOUR)).aggregate("it", agg.count(), options={"lat": "x"}),
            "step 'it' has no option 'lat' .did you mean 'late'",
        ),
    ],
)
def test_the_error_names_the_options_that_there_are(build: Any, message: str) -> None:
    with pytest.raises(MillwheelError, match=message):
        build(streams()[1])
