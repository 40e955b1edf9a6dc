"""Large entries stop no other task for long: all intervals of a worker use one event loop (G8)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import pytest

from millwheel.model.envelope import PIECE_BYTES, unwrap
from millwheel.store.cassandra.journals import Journals
from millwheel.store.contract import Append

PIECES = 12


class Session:
    """It has what was appended, and nothing waits."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    async def settle(self, attempt: Callable[[bool], Awaitable[Any]]) -> Any:
        return await attempt(False)

    async def append(self, statement: object, values: tuple[Any, ...]) -> Any:
        self.values.append(max((one for one in values if isinstance(one, bytes)), key=len))
        return [(True,)]

    async def repeat(self, statement: object, values: object) -> Any:
        return list(enumerate(self.values, 1))


async def turns_during(work: Coroutine[Any, Any, Any]) -> int:
    """How many turns another task had meanwhile."""
    working, turns = asyncio.create_task(work), 0
    while not working.done():
        await asyncio.sleep(0)
        turns += 1
    await working
    return turns


@pytest.mark.guarantee("G8")
async def test_others_have_turns_while_large_entries_go_by() -> None:
    session = Session()
    journals = Journals(cast("Any", session), defaultdict(lambda: cast("Any", None)))
    large, small = b"abcdefgh" * (PIECES * PIECE_BYTES // 8), b"abcdefgh" * (PIECE_BYTES // 16)
    assert await turns_during(journals.append("j", Append(1, 1, 0, (), large, deflate=True))) >= PIECES
    assert await turns_during(journals.append("j", Append(1, 2, 0, (), small, deflate=True))) < 3
    assert [unwrap(value, "j") for value in session.values] == [large, small]
    assert await turns_during(journals.read_entries("j", 1, 1)) >= PIECES
    session.values = session.values[1:] * PIECES
    assert await turns_during(journals.read_entries("j", 1, PIECES)) >= PIECES // 2
    assert await journals.read_entries("j", 1, PIECES) == [small] * PIECES
