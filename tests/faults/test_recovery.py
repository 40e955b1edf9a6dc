"""Outstanding results, and the length of a fault, are read from the events of a run."""

from __future__ import annotations

import pytest

from tests.faults.history import Advanced, Event, Mended, Received, Sent, Struck
from tests.faults.program import WINDOW
from tests.faults.progress import Arrival, Progress
from tests.faults.recovery import Delays, recoveries

SECOND = 1_000_000
SLOW = 100 * SECOND
"""When the fault begins."""


def one_record(at: int, delay: int) -> list[Event]:
    """A record, and ``delay`` later what two stages made of it."""
    sent = Sent(at, "s", at // SECOND, ["k"], ["g"], [at])
    return [
        sent,
        Advanced(at + 1, "s", at),
        Received(at + delay, "totals", 0, [["g", 1, "s", sent.first]]),
        Received(at + delay, "passed", 0, [["g", "s", sent.first]]),
    ]


def test_what_is_under_way_is_known_until_it_has_come() -> None:
    progress = Progress()
    sent, promised, total, passed = one_record(3 * SECOND, 5)
    assert progress.since() is None
    assert progress.take(sent) == progress.take(promised) == []
    assert progress.take(total) == [Arrival(3 * SECOND + 5, 5)]
    assert progress.take(total) == [], "it came before"
    assert progress.since() == 3 * SECOND
    progress.take(passed)
    assert progress.since() is None, "its window is not due"
    progress.take(Advanced(9 * SECOND, "s", 3 * SECOND + WINDOW))
    assert progress.since() == 9 * SECOND
    window = Received(9 * SECOND + 7, "windows", 0, [["k", 3 * SECOND + WINDOW, 1, 1]])
    assert progress.take(window) == [Arrival(9 * SECOND + 7, 7)]
    assert progress.since() is None


def test_a_window_is_due_once_its_last_source_has_promised() -> None:
    progress = Progress()
    for source in "ab":
        progress.take(Sent(1, source, 0, ["k"], ["g"], [0]))
    progress.take(Advanced(2, "a", None))
    assert progress.take(Received(3, "windows", 0, [["k", WINDOW, 2, 1]])) == [Arrival(3, 0)]
    progress.take(Sent(4, "b", 1, ["k"], ["g"], [WINDOW]))
    progress.take(Advanced(6, "b", 2 * WINDOW))
    assert progress.take(Received(9, "windows", 0, [["k", 2 * WINDOW, 2, 1]])) == [Arrival(9, 3)]


@pytest.mark.parametrize("recovered", [True, False])
def test_a_recovery_says_how_long_it_took(recovered: bool) -> None:
    times = range(90 * SECOND, 110 * SECOND, SECOND)
    rows = [event for at in times for event in one_record(at, 4 * SECOND if at == SLOW + SECOND else 300_000)]
    faults: list[Event] = [Struck(SLOW, "cut", "all"), Mended(SLOW + 2 * SECOND, "cut", False)]
    if recovered:
        faults.append(Mended(SLOW + 8 * SECOND, "cut", True))
    (found,) = recoveries(sorted([*rows, *faults], key=lambda event: event.at))
    assert (found.fault, found.text, found.lasted, found.recovered) == ("cut", "all", 2.0, recovered)
    assert found.records == Delays(0.3, 4.0, 5.0)
    assert found.silent == 2.0
