"""The store of a simulated cluster: the memory store's rules behind a network, and a record of who wrote what."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any

from millwheel.model.incarnation import IncarnationId
from millwheel.store.contract import (
    Append,
    JournalHead,
    PartId,
    SequencerRefusedError,
    StateRow,
    StateStore,
    StoreError,
    StoreUnavailableError,
)
from millwheel.store.memory import MemoryStore
from millwheel.worker.interval.commits.divided import joined
from simulation.network import Network
from simulation.process import PROCESS
from simulation.remote import Remote

__all__ = ["SimulatedStore", "StoreWatch", "finished", "whole_entry"]


class StoreWatch:
    """Called for everything that changes journals.

    Checkers override what they need. ``who``: the requesting process.
    """

    def fenced(self, who: str, journal: str, sequencer: int) -> None:
        """A journal was fenced."""

    def unfenced(self, who: str, journal: str, sequencer: int, error: SequencerRefusedError) -> None:
        """A journal was not fenced: a newer owner has it, or it is sealed."""

    def sealed(self, who: str, journal: str) -> None:
        """A journal was sealed."""

    def asked(self, who: str, journal: str, append: Append) -> None:
        """A process sends an append to the store."""

    def appended(self, who: str, journal: str, append: Append) -> None:
        """An entry was appended."""

    def refused(self, who: str, journal: str, append: Append, error: SequencerRefusedError) -> None:
        """An entry was not appended: another owner has the journal, or the entry is there already."""

    def misused(self, who: str, error: Exception) -> None:
        """A process made a call that no process may make."""


class SimulatedStore:
    """A :class:`~millwheel.store.contract.StateStore`; every process uses the same one."""

    def __init__(self, network: Network, chance: Random, watch: StoreWatch) -> None:
        self.inner = MemoryStore()
        """The stored data, for checkers."""
        self._server: StateStore = self.inner
        """The store that executes requests."""
        self.remote = Remote(network, "store", chance, StoreUnavailableError, 2.0)
        self.watch = watch
        self.reached: dict[str, int] = {}
        """How often the store has chosen each of its special behaviours."""

    def open(self) -> StateStore:
        """The store for the process whose step is running."""
        return self

    def patched(self) -> AbstractContextManager[object]:
        """The patches of the product's code that this store needs."""
        return nullcontext()

    def calm(self) -> None:
        """End the faults that the store itself causes."""

    async def _ask(
        self, call: Callable[[], Coroutine[Any, Any, Any]], done: Callable[[str], None] | None = None
    ) -> Any:
        who = str(PROCESS.get())

        def work() -> Any:
            try:
                result = finished(call())
            except StoreError:
                raise
            except Exception as error:
                self.watch.misused(who, error)
                raise
            if done is not None:
                done(who)
            return result

        return await self.remote.ask(work)

    async def create_journal(self, journal: str, commit: int = 0) -> None:
        """See :class:`StateStore`, here and below."""
        await self._ask(lambda: self._server.create_journal(journal, commit))

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        who = str(PROCESS.get())

        async def attempt() -> JournalHead:
            try:
                return await self._server.fence(journal, sequencer)
            except SequencerRefusedError as error:
                self.watch.unfenced(who, journal, sequencer, error)
                raise

        head: JournalHead = await self._ask(attempt, lambda _: self.watch.fenced(who, journal, sequencer))
        return head

    async def seal(self, journal: str, sequencer: int) -> JournalHead:
        head: JournalHead = await self._ask(
            lambda: self._server.seal(journal, sequencer), lambda who: self.watch.sealed(who, journal)
        )
        return head

    async def read_head(self, journal: str) -> JournalHead:
        head: JournalHead = await self._ask(lambda: self._server.read_head(journal))
        return head

    async def append(self, journal: str, append: Append) -> None:
        who = str(PROCESS.get())

        async def attempt() -> None:
            try:
                await self._server.append(journal, append)
            except SequencerRefusedError as error:
                self.watch.refused(who, journal, append, error)
                raise

        self.watch.asked(who, journal, append)
        await self._ask(attempt, lambda _: self.watch.appended(who, journal, append))

    async def read_entries(self, journal: str, first: int, last: int) -> list[bytes]:
        found: list[bytes] = await self._ask(lambda: self._server.read_entries(journal, first, last))
        return found

    async def delete_entries(self, journal: str, below: int) -> None:
        await self._ask(lambda: self._server.delete_entries(journal, below))

    async def write_part(self, journal: str, part: PartId, blob: bytes) -> None:
        await self._ask(lambda: self._server.write_part(journal, part, blob))

    async def read_parts(self, journal: str, parts: Sequence[PartId]) -> list[bytes]:
        found: list[bytes] = await self._ask(lambda: self._server.read_parts(journal, parts))
        return found

    async def list_parts(self, journal: str) -> list[PartId]:
        found: list[PartId] = await self._ask(lambda: self._server.list_parts(journal))
        return found

    async def delete_parts(self, journal: str, parts: Sequence[PartId]) -> None:
        await self._ask(lambda: self._server.delete_parts(journal, parts))

    async def write_states(
        self, incarnation: IncarnationId, journal: str, sequencer: int, rows: Sequence[StateRow]
    ) -> None:
        await self._ask(lambda: self._server.write_states(incarnation, journal, sequencer, rows))

    async def read_states(self, incarnation: IncarnationId, keys: Sequence[bytes]) -> list[StateRow | None]:
        found: list[StateRow | None] = await self._ask(lambda: self._server.read_states(incarnation, keys))
        return found

    async def list_states(self, incarnation: IncarnationId, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        found: list[bytes] = await self._ask(lambda: self._server.list_states(incarnation, start, end, limit))
        return found

    async def drop_journal(self, journal: str) -> None:
        await self._ask(lambda: self._server.drop_journal(journal))

    async def drop_incarnation(self, incarnation: IncarnationId) -> None:
        await self._ask(lambda: self._server.drop_incarnation(incarnation))

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


def whole_entry(store: MemoryStore, journal: str, commit: int, entry: bytes) -> bytes:
    """The bytes of an interval's entry; a divided entry is in parts. CorruptValueError if a part is missing."""
    return joined(entry, commit, store.journals[journal].parts, f"entry {commit} of journal {journal}")


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("the memory store waited for something")
