"""The checker reports lost, repeated, early, reordered and wrong records, and nothing else (G1, G5, G6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faults import history
from tests.faults.checking import check
from tests.faults.history import Advanced, Event, History, Mended, Received, Sent, Struck, Subscribed
from tests.faults.program import BELL, WINDOW, Numbered, Rung, WindowCount

RECORDS = 60
LATER = 10 * WINDOW


def clean() -> list[Event]:
    """Two keys and two groups; every record takes effect once; windows close when the watermark has passed them."""
    sent = [Sent(at, "s", at, [_key(at)], [_group(at)], [at * WINDOW // 20]) for at in range(RECORDS)]
    numbers: Counter[str] = Counter()
    came: dict[str, list[Any]] = {"numbered": [], "totals": [], "passed": [], "rung": [], "windows": []}
    windows: Counter[tuple[str, int]] = Counter()
    for at in range(RECORDS):
        key, group = _key(at), _group(at)
        numbers.update((key, group))
        came["numbered"].append(Numbered(key, numbers[key], group, "s", at))
        came["totals"].append(Numbered(key, numbers[group], group, "s", at))
        came["passed"].append(came["numbered"][-1])
        windows[key, at // 20 * WINDOW + WINDOW] += 1
        if numbers[key] % BELL == 0:
            came["rung"].append(Rung(key, numbers[key], LATER - 1, LATER))
    orders: Counter[str] = Counter()
    for (key, end), count in sorted(windows.items(), key=lambda one: one[0][1]):
        orders[key] += 1
        came["windows"].append(WindowCount(key, end, count, orders[key]))
    rows = [
        Received(LATER + number, stream, number, [msgspec.to_builtins(value)])
        for stream, values in came.items()
        for number, value in enumerate(values)
    ]
    return [*sent, Advanced(LATER, "s", None), *rows]


def _key(position: int) -> str:
    return f"k{position % 2}"


def _group(position: int) -> str:
    return f"g{position % 3 % 2}"


@dataclass(frozen=True)
class Place:
    """One receipt in the history."""

    stream: str
    offset: int

    def find(self, events: list[Event]) -> int:
        return next(
            index
            for index, event in enumerate(events)
            if isinstance(event, Received) and (event.stream, event.first) == (self.stream, self.offset)
        )


def lose(events: list[Event], place: Place) -> None:
    """The record is missing, and the next one has its offset."""
    del events[place.find(events)]
    for index, event in enumerate(events):
        if isinstance(event, Received) and event.stream == place.stream and event.first > place.offset:
            events[index] = Received(event.at, event.stream, event.first - 1, event.values)


def skip(events: list[Event], place: Place) -> None:
    """The cursor leaves it out."""
    del events[place.find(events)]


def repeat(events: list[Event], place: Place) -> None:
    """The record is delivered again, at its offset."""
    events.insert(place.find(events) + 1, events[place.find(events)])


def swap(events: list[Event], place: Place) -> None:
    """The next one is given before it."""
    at, after = place.find(events), Place(place.stream, place.offset + 1).find(events)
    events[at], events[after] = events[after], events[at]


def appear_twice(events: list[Event], place: Place) -> None:
    """The record took effect twice, so the stream has it twice."""
    last = max(event.first for event in events if isinstance(event, Received) and event.stream == place.stream)
    original = events[place.find(events)]
    assert isinstance(original, Received)
    events.append(Received(LATER * 2, place.stream, last + 1, original.values))


def alter(field: int, change: Callable[[Any], Any]) -> Callable[[list[Event], Place], None]:
    """One of its fields is another."""

    def altered(events: list[Event], place: Place) -> None:
        at = place.find(events)
        event = events[at]
        assert isinstance(event, Received)
        values = [list(value) for value in event.values]
        values[0][field] = change(values[0][field])
        events[at] = Received(event.at, event.stream, event.first, values)

    return altered


def test_nothing_is_wrong_with_a_history_in_which_all_went_well() -> None:
    assert check(clean()) == []


@pytest.mark.parametrize("stream", ["numbered", "totals", "passed", "rung", "windows"])
@pytest.mark.parametrize(
    ("breaking", "kind"),
    [(lose, "lost"), (skip, "lost"), (repeat, "repeated"), (swap, "reordered"), (appear_twice, "repeated")],
)
def test_loss_repetition_and_reordering_are_seen_on_every_stream(
    stream: str, breaking: Callable[[list[Event], Place], None], kind: str
) -> None:
    events = clean()
    breaking(events, Place(stream, 2))
    assert kind in {one.kind for one in check(events)}


@pytest.mark.parametrize(
    ("stream", "change", "kind"),
    [
        ("numbered", alter(1, lambda number: number + 100), "lost"),
        ("numbered", alter(4, lambda position: 10_000), "invented"),
        ("numbered", alter(0, lambda key: "another"), "wrong"),
        ("totals", alter(2, lambda group: "another"), "wrong"),
        ("passed", alter(0, lambda key: "another"), "wrong"),
        ("windows", alter(2, lambda count: count - 1), "wrong"),
        ("windows", alter(3, lambda order: order + 7), "lost"),
        ("rung", alter(2, lambda due: LATER + 1), "early"),
        ("rung", alter(1, lambda number: number + 1), "invented"),
    ],
)
def test_what_is_wrong_is_seen(stream: str, change: Callable[[list[Event], Place], None], kind: str) -> None:
    events = clean()
    change(events, Place(stream, 1))
    assert kind in {one.kind for one in check(events)}


@pytest.mark.guarantee("G5", section="4.6")
def test_windows_closed_in_another_order_are_seen() -> None:
    events = clean()
    alter(3, lambda order: 2)(events, Place("windows", 0))
    alter(3, lambda order: 1)(events, Place("windows", 2))
    assert "reordered" in {one.kind for one in check(events)}


@pytest.mark.guarantee("G6", section="4.6")
def test_a_window_before_its_watermark_is_early() -> None:
    events = clean()
    at = next(index for index, event in enumerate(events) if isinstance(event, Advanced))
    events.append(events.pop(at))
    assert {one.kind for one in check(events)} == {"early"}


@pytest.mark.guarantee("G6", section="4.6")
def test_an_early_bell_is_a_fault_unless_clocks_were_wrong() -> None:
    events = clean()
    early = alter(2, lambda due: LATER * 2)
    later = alter(3, lambda now: LATER * 2)
    early(events, Place("rung", 0))
    later(events, Place("rung", 0))
    assert {one.kind for one in check(events)} == {"early"}
    excused: list[Event] = [Struck(LATER - 2, "clock", clock=True), Mended(LATER - 1, "clock", True)]
    at = Place("numbered", 0).find(events)
    assert check([*events[:at], *excused, *events[at:]]) == []


def test_a_restarted_subscriber_may_see_only_unacked_again() -> None:
    events = clean()
    at = Place("totals", 5).find(events)
    again = events[at - 2 : at]
    restart: list[Event] = [Subscribed(LATER, "totals", 3)]
    assert check([*events[:at], *restart, *again, *events[at:]]) == []
    restart = [Subscribed(LATER, "totals", 4)]
    shown = check([*events[:at], *restart, *again, *events[at:]])
    assert {one.kind for one in shown} == {"repeated"}


def test_a_history_that_is_written_is_read_as_it_was(tmp_path: Path) -> None:
    written = History(tmp_path / "history.jsonl")
    for event in clean():
        written.add(event)
    written.close()
    assert list(history.read(tmp_path / "history.jsonl")) == clean()
