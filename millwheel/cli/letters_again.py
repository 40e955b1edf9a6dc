"""Which replayed letters have failed again: for `millwheel dead-letter replay`, which says so."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from millwheel.client.dead_letters import LetterFilter, LetterPage, LetterState
from millwheel.model.wording import counted
from millwheel.rpc.failures import RequestError

__all__ = ["again_text", "failed_again"]

_LOOKS_SECONDS: Final = (0.0, 0.2, 0.8)
"""The waits before the looks. A letter comes into its log shortly after the ACK of the record that failed again."""
_MAX_LETTERS: Final = 10_000
"""The most letters of one look."""


class _Letters(Protocol):
    """What it asks the letters of a topology for."""

    async def page(self, wanted: LetterFilter, first: int = 0, limit: int = 100) -> LetterPage:
        """The first letters that are meant."""


async def failed_again(
    letters: _Letters, replayed: Collection[int], pauses: Sequence[float] = _LOOKS_SECONDS
) -> list[int]:
    """Return those of ``replayed`` of which a new letter says that the record has failed again.

    A letter that comes later than a second after the replay is not noticed.

    Args:
        letters: The letters of the topology.
        replayed: The replayed ones.
        pauses: The seconds before each look.
    """
    found: set[int] = set()
    if not replayed:
        return []
    in_any_state = LetterFilter(states=frozenset(LetterState))
    for pause in pauses:
        await asyncio.sleep(pause)
        try:
            page = await letters.page(in_any_state, max(replayed) + 1, _MAX_LETTERS)
        except RequestError:  # the replay is done, and its report must not be lost
            break
        again = {one.content.replay_of for one in page.letters}
        found = {offset for offset in replayed if offset in again}
        if len(found) == len(replayed):
            break
    return sorted(found)


def again_text(topology: str, count: int, version: int) -> str:
    """Say that ``count`` letters have failed again with the code of ``version``, and what to do."""
    which = f"{counted(count, 'letter')} failed again with the code that runs (version {version})"
    return f"{which}: mend it by `millwheel topology update`; `millwheel dead-letter list {topology}` has the new ones"
