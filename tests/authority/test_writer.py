"""The writing of a shard's base, part by part (7.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from millwheel.authority.base import BaseSnapshot
from millwheel.authority.writer import JournalWriter
from millwheel.store.contract import PartId
from millwheel.store.memory import MemoryStore
from tests.authority.shard import JOURNAL
from tests.patience import patience


class _Stopped(asyncio.SelectorEventLoop):
    """A loop whose time goes on, and jumps while its process is stopped."""

    stopped = 0.0

    def time(self) -> float:
        return super().time() + self.stopped


@dataclass(slots=True)
class _Slow(BaseSnapshot):
    """Two parts. The process is stopped for an hour while the first is encoded."""

    loop: _Stopped = field(kw_only=True)

    def parts(self) -> Iterator[tuple[PartId, bytes]]:
        self.loop.stopped += 3_600.0
        for name in ("first", "second"):
            yield PartId(name, 1, 1), b""


@pytest.mark.guarantee("G13", section="7.2")
def test_a_pause_within_a_part_is_not_slept_once_more() -> None:
    loop, store = _Stopped(), MemoryStore()

    async def written() -> list[PartId]:
        await store.create_journal(JOURNAL)
        await store.fence(JOURNAL, 1)
        snapshot = _Slow(1, 1, [], {}, [], 1_000, loop=loop)
        await asyncio.wait_for(JournalWriter(store, JOURNAL).write_parts(snapshot), 3_600 + patience(10))
        return await store.list_parts(JOURNAL)

    try:
        assert [part.name for part in loop.run_until_complete(written())] == ["first", "second"]
    finally:
        loop.close()
