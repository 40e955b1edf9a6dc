"""Look-ups of states (section 4.4)."""

from __future__ import annotations

from typing import Any

from millwheel.worker.process.owned_states import OwnedStates
from millwheel.worker.process.state_service import FreshHeads, StateService
from simulation.mutations.base import mutation, replace, rewrite, rewriting

__all__: list[str] = []

_TESTS = "tests/worker/test_state_service.py::"


rewriting(
    "lookups-by-anyone",
    "G3",
    "a look-up is answered only if the journal has the owner's sequencer",
    StateService,
    "if head.sequencer != journal.sequencer:",
    "if False:",
    test=_TESTS + "test_a_deposed_owner_answers_no_lookup",
    seeds=10,
    why="an owner is deposed for milliseconds, and seldom asked meanwhile",
)


@mutation(
    "G2",
    "a look-up shows a state after its commit",
    test=_TESTS + "test_a_lookup_waits_for_the_commit_in_flight",
    seeds=10,
    why="nearly every commit succeeds, so that the state is right though it came too early",
)
def lookups_ahead_of_commits() -> None:
    """Look-ups show states whose commit is in flight."""

    async def at_once(self: OwnedStates, core: Any, sealed: int) -> None:
        return None

    replace(OwnedStates, "committed", lambda _: at_once)


@mutation(
    "G3",
    "the head is read after the states",
    test=_TESTS + "test_a_head_that_was_read_before_the_lookup_proves_nothing",
    seeds=10,
    why="a takeover would have to end during the read",
)
def lookups_share_an_earlier_read() -> None:
    """A look-up takes the head from a read that began before it."""
    rewrite(
        FreshHeads, "read = self._next.get(journal)", "read = self._reading.get(journal) or self._next.get(journal)"
    )


rewriting(
    "lookups-of-large-states-end",
    "G8",
    "the first key of a look-up is always answered",
    StateService,
    " and keys[0] not in chunk",
    "",
    test=_TESTS + "test_the_first_key_is_answered_beside_large_states",
    seeds=10,
    why="states of the simulator are small",
)
