"""The state of a key as people see it: the times of its type are texts."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec
import pytest

import millwheel as mw
from millwheel.connectors.reading import SplitState
from millwheel.operators.joins import Waiting
from millwheel.windows.computation import Pane, Panes
from millwheel.worker.process.state_text import shown_state, state_text

NOON = mw.Timestamp(1_767_268_800_000_000)
TEXT = "2026-01-01T12:00:00Z"


class Visit(NamedTuple):
    at: mw.Timestamp
    page: str


class Visits(msgspec.Struct, rename="camel"):
    first_at: mw.Timestamp | None = None
    number: int = NOON
    """It looks like a time, and is none."""
    last: list[Visit] = []
    by_page: dict[tuple[str, int], mw.Timestamp] = {}


class Tagged(msgspec.Struct, tag="t", array_like=True):
    at: mw.Timestamp


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        ({(NOON, NOON + 60_000_000): Pane(0, 5)}, Panes[int],
         {f"{TEXT}/2026-01-01T12:01:00Z": {"revision": 0, "accumulator": 5, "early_at": 0}}),
        (Waiting(left_times=[NOON], left=[NOON]), Waiting[int, str],
         {"left_times": [TEXT], "right_times": [], "left": [NOON], "right": [], "left_found": [], "right_found": []}),
        (Visits(NOON, last=[Visit(NOON, "/")], by_page={("/", 1): NOON}), Visits,
         {"firstAt": TEXT, "number": NOON, "last": [{"at": TEXT, "page": "/"}], "byPage": {'["/", 1]': TEXT}}),
        ([("a", NOON)], list[tuple[str, mw.Timestamp]], [["a", TEXT]]),
        ((NOON, NOON), tuple[mw.Timestamp, ...], [TEXT, TEXT]),
        (NOON, mw.Timestamp, TEXT),
    ],
    ids=["windows", "a join", "fields", "pairs", "a tuple", "a time"],
)  # fmt: skip
def test_times_of_the_type_are_texts(value: Any, kind: Any, shown: Any) -> None:
    assert json.loads(shown_state(value, kind)) == shown


def test_a_position_of_a_source_says_when_it_was_read() -> None:
    state = json.loads(shown_state(SplitState(7, read_at=NOON), SplitState[int]))
    assert (state["position"], state["read_at"], state["watermark"]) == (7, TEXT, "-inf")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (NOON, int),
        ({"a": [NOON]}, dict[str, list[int]]),
        (None, Visits | None),
        (object(), object),
        (NOON, None),
        ([Tagged(NOON)], list[Tagged]),
    ],
    ids=["a number", "numbers", "none", "no JSON", "unknown", "a tag"],
)
def test_a_state_without_known_times_is_as_it_is(value: Any, kind: Any) -> None:
    assert shown_state(value, kind) == ""
    assert state_text(value)
