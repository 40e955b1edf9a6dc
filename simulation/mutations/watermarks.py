"""Low watermarks in an interval: the holds, and the senders of the minimum (sections 4.5, 7.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millwheel.model.time import MAX_TIMESTAMP
from millwheel.model.watermarks import InputWatermark, MinTracker
from millwheel.worker.interval import core
from millwheel.worker.interval.core import IntervalCore
from millwheel.worker.interval.sealing import Sealer
from simulation.mutations.base import mutation, replace

__all__: list[str] = []


@mutation("G7", "what is at work holds the watermark")
def unpending() -> None:
    """Uncommitted records and productions without an ACK hold no output watermark.

    The first part alone would be harmless: an uncommitted record has no ACK, and so holds its sender's watermark.
    """
    replace(MinTracker, "min", lambda _: lambda self: MAX_TIMESTAMP)


def _unheld(where: Callable[[Any], Any], what: str, step: str) -> None:
    """Hide the tracker ``what`` of ``where(state)`` from the core's method ``step``."""

    def make(original: Any) -> Any:
        def blind(self: IntervalCore, *arguments: Any) -> None:
            place = where(self.state)
            held = getattr(place, what)
            setattr(place, what, MinTracker())
            try:
                original(self, *arguments)
            finally:
                setattr(place, what, held)

        return blind

    replace(IntervalCore, step, make)


@mutation("G7", "productions that are not ACKed hold the output watermark")
def productions_hold_nothing() -> None:
    """The output watermark passes productions in flight."""
    _unheld(lambda state: state.outbox, "pending", "_report")


@mutation("G7", "holds of states and of timers hold the output watermark")
def forgotten_holds() -> None:
    """The output watermark passes the holds of states and timers."""
    _unheld(lambda state: state, "hold_times", "_report")


@mutation(
    "G7",
    "timers hold the output watermark at their own times",
    seeds=10,
    test="tests/interval/test_far_reading.py"
    "::test_g7_a_due_timer_that_is_in_the_store_holds_the_watermark_until_it_has_fired_4_6",
    why="timers that are due fire before anything is reported, but for those in the store",
)
def timers_hold_nothing() -> None:
    """The output watermark passes the times of event-time timers."""
    replace(core, "_before_end", lambda _: lambda at: None)


@mutation(
    "G7",
    "what a commit lets go of holds the watermark until it is in the journal",
    seeds=10,
    test="tests/interval/test_holds.py"
    "::test_g7_a_timer_that_is_moved_or_cancelled_holds_until_the_commit_is_in_the_journal_6_2",
    why="an interval must be lost while a commit is on its way that lets the watermark go on by itself",
)
def released_uncommitted() -> None:
    """Holds and timers end when the commit that ends them is sealed."""

    def make(seal: Any) -> Any:
        def early(self: Sealer, *arguments: Any, stored_first: bool) -> Any:
            sealed = seal(self, *arguments, stored_first=stored_first)
            for hold in sealed.released:
                self.state.hold_times.passing.remove(hold)
            sealed.released = []
            return sealed

        return early

    replace(Sealer, "seal", make)


@mutation("G7", "the input watermark is the minimum over all senders")
def fastest_sender() -> None:
    """A consumer follows its furthest sender."""

    def furthest(self: InputWatermark) -> bool:
        largest = max(self._senders.values(), default=self._value)
        raised, self._value = largest > self._value, max(largest, self._value)
        return raised

    replace(InputWatermark, "_raise", lambda _: furthest)


@mutation(
    "G8",
    "a sender that is removed lets go of the watermark",
    seeds=0,
    test="tests/model/test_watermarks.py::test_g8_a_removed_sender_lets_go",
    why="no computation is removed there",
)
def removed_senders_stay() -> None:
    """A removed sender still holds the watermark."""
    replace(InputWatermark, "remove", lambda _: lambda self, sender: False)
