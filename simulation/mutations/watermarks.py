"""Low watermarks in an interval: the holds, and the senders of the minimum (sections 4.5, 7.2)."""

from __future__ import annotations

from typing import Any

from millwheel.model.time import MAX_TIMESTAMP
from millwheel.model.watermarks import InputWatermark, MinTracker
from millwheel.worker.interval.clocks import OutputWatermark
from millwheel.worker.interval.commits.sealing import Sealer
from millwheel.worker.interval.holds import Hold
from millwheel.worker.interval.hooks.firing import Firing
from simulation.mutations.base import mutation, replace, rewrite, rewriting

__all__: list[str] = []


@mutation("G7", "what is at work holds the watermark")
def unpending() -> None:
    """Uncommitted records and productions without an ACK hold no output watermark.

    The first part alone would be harmless: an uncommitted record has no ACK, and so holds its sender's watermark.
    """
    replace(MinTracker, "min", lambda _: lambda self: MAX_TIMESTAMP)


rewriting(
    "heaps-rebuilt-unread",
    "G7",
    "the smallest timestamp is read from the heap as it was rebuilt",
    MinTracker,
    "heap = self._heap\n            break",
    "break",
    seeds=0,
    test="tests/model/test_watermarks.py::test_min_tracker_passes_many_that_waited_behind_one",
    why="simulated intervals have few timestamps, and no heap of theirs is rebuilt",
)


@mutation("G7", "productions that are not ACKed hold the output watermark")
def productions_hold_nothing() -> None:
    """The output watermark passes productions in flight."""
    rewrite(OutputWatermark.lowest, "if (first := self._productions.min()) < output:", "if False:")


@mutation("G7", "holds of states and of timers hold the output watermark")
def forgotten_holds() -> None:
    """The output watermark passes the holds of states and timers."""
    rewrite(OutputWatermark.lowest, "min(self._holds.stated.min(), self._holds.passing.min())", "output")


@mutation(
    "G7",
    "timers hold the output watermark at their own times",
    seeds=10,
    test="tests/worker/interval/test_far_reading.py::test_a_due_stored_timer_holds_the_watermark_until_it_fires",
    why="timers that are due fire before anything is reported, but for those in the store",
)
def timers_hold_nothing() -> None:
    """The output watermark passes the times of event-time timers."""
    replace(OutputWatermark, "lowest", lambda lowest: lambda self, watermark, *times: lowest(self, watermark))


@mutation(
    "G7",
    "what a commit lets go of holds the watermark until it is in the journal",
    seeds=10,
    test="tests/worker/interval/test_holds.py::test_a_moved_or_cancelled_timer_holds_until_it_is_journaled",
    why="an interval must be lost while a commit is on its way that lets the watermark go on by itself",
)
def released_uncommitted() -> None:
    """Holds and timers end when the commit that ends them is sealed."""

    def make(seal: Any) -> Any:
        def early(self: Sealer, *arguments: Any, stored_first: bool) -> Any:
            sealed = seal(self, *arguments, stored_first=stored_first)
            if sealed.hold is not None:
                sealed.hold.release()
                sealed.hold = None
            return sealed

        return early

    replace(Sealer, "seal", make)


rewriting(
    "holds-lost-in-passing",
    "G7",
    "a hold that takes another one over covers what that one covered",
    Hold.take,
    "self.cover(other.at, other.count)",
    "pass",
    seeds=0,
    test="tests/worker/interval/test_holds_model.py::test_a_hold_ends_once_and_its_replacement_has_its_time",
    why="the timers that a commit ends hold for it, too",
)

rewriting(
    "blocked-timers-hold-nothing",
    "G7",
    "a due timer that waits with its blocked key holds the watermark at its time",
    Firing.postpone,
    "blocked.hold = self._holds.covering(blocked.hold, timer[0])",
    "pass",
    seeds=0,
    test="tests/worker/interval/test_holds.py::test_a_timer_that_fails_is_named_as_what_holds",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "newest-of-a-hold",
    "G7",
    "a hold keeps the watermark at the least timestamp that it covers",
    Hold.cover,
    "at < self.at",
    "not self.count or at > self.at",
    seeds=0,
    test="tests/worker/interval/test_holds_model.py::test_the_output_watermark_is_at_the_oldest_unfinished_work",
    why="seeds were not tried: the test shows it by itself, in seconds",
)

rewriting(
    "holds-end-twice",
    "G7",
    "a hold that has ended cannot end again, where another one stands at its time",
    Hold.release,
    "holds, self._holds = self._holds, None",
    "holds = self._holds",
    seeds=0,
    test="tests/worker/interval/test_holds_model.py::test_a_hold_ends_once_and_its_replacement_has_its_time",
    why="no owner releases twice",
)


@mutation("G7", "the input watermark is the minimum over all groups")
def fastest_sender() -> None:
    """A consumer follows its furthest group."""
    rewrite(InputWatermark, "smallest = min([", "smallest = max([")


@mutation(
    "G8",
    "a sender that is removed lets go of the watermark",
    seeds=0,
    test="tests/model/test_watermarks.py::test_a_removed_sender_holds_nothing",
    why="no computation is removed there",
)
def removed_senders_stay() -> None:
    """A removed sender still holds the watermark."""

    def make(follow: Any) -> Any:
        return lambda self, groups, beside=(): follow(self, self.groups.union(groups), beside)

    replace(InputWatermark, "follow", make)
