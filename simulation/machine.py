"""The product's embedded store in a simulated world: its code and its group commit run on a disk that may lose power.

Invariant: an answer depends only on what a loss of power cannot undo. A confirmed append exists afterwards (G1, G2). So
do a fence (G3), a part, the state rows for entries below a truncation point (G12), and a head that was once read.

A loss of power ends the store and all processes of the cluster. Clients keep running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from millwheel.model.incarnation import IncarnationId
from millwheel.store.contract import Append, JournalHead, StateRow, StoreError, StoreUnavailableError
from millwheel.store.embedded import EmbeddedStore
from millwheel.store.writer import StoreThread, WriteCall
from simulation.disk_view import DiskView
from simulation.network import Network
from simulation.process import PROCESS
from simulation.remote import Remote
from simulation.rocks import SimulatedBatch, SimulatedRocks
from simulation.store import SimulatedStore, StoreWatch

__all__ = ["SimulatedMachine"]

_IDLE = SimpleNamespace(start=lambda: None, join=lambda: None)


class _SteppedThread(StoreThread):
    """The store thread, whose turns are steps of the simulated loop.

    A turn runs ``pause`` seconds after it is requested.
    """

    def __init__(self, rocks: SimulatedRocks, network: Network, pause: float) -> None:
        self._network = network
        self._pause = pause
        self._wanted = False
        with patch("millwheel.store.writer.threading.Thread", lambda **_: _IDLE):
            super().__init__(cast("Any", rocks))
        if pause:
            self._place.allows = lambda now: False  # type: ignore[method-assign]

    def _enqueue(self, call: WriteCall, *, fail: bool = False) -> None:
        super()._enqueue(call, fail=fail)
        self._want()

    def call_later(self, work: Any) -> None:
        """See :class:`StoreThread`."""
        super().call_later(work)
        self._want()

    def _want(self) -> None:
        if not self._wanted:
            self._wanted = True
            self._network.loop.call_later(self._pause, self._turn, context=self._network.context)

    def _turn(self) -> None:
        """Do what the thread does in one turn."""
        self._wanted = False
        if not self._queue.empty():
            self._collect()
        if self._group:
            self._commit_group()
        if self._sliced:
            self._advance_slice()
        if self._sliced or not self._queue.empty():
            self._want()


class _ReadInPlace(EmbeddedStore):
    """Reads are steps of the loop."""

    async def _read(self, read: Callable[[], Any]) -> Any:
        return read()


class SimulatedMachine(SimulatedStore):
    """The machine of an embedded store. Every process sends its requests over the network."""

    def __init__(self, network: Network, chance: Random, watch: StoreWatch, ways: dict[str, Any]) -> None:
        """Start the store on an empty disk.

        ``ways`` holds ``pause``, the seconds that a slow disk takes for a group (0: groups are committed in place). It
        also holds ``survives``: each write survives at once, because power is never lost in this run.
        """
        super().__init__(network, chance, watch)
        self.remote = Remote(network, "store", chance, StoreUnavailableError, 2.0)
        self.reached = {"groups of several": 0, "writes lost with the power": 0, "writes kept by chance": 0}
        self.lose_power: Callable[[], None] = lambda: None
        """Called when power is lost: it ends the processes of the cluster."""
        self._chance = chance
        self._network = network
        self._pause: float = ways.get("pause", 0.0)
        self._cut_at_sync = False
        self._whose: dict[tuple[str, int], str] = {}
        """The requesting process, by journal and the fence's sequencer, or by journal and the append's object id."""
        self._asked = 0
        """How often rows were sent."""
        self._newest: dict[tuple[str, str], int] = {}
        """By process and journal, the newest sending of rows that has come."""
        self._next: SimulatedRocks | None = None
        """The contents of the disk while there is no power."""
        self.inner = self._view = DiskView()
        self._survives = bool(ways.get("survives"))
        self._start(SimulatedRocks())

    def _start(self, rocks: SimulatedRocks) -> None:
        self.rocks = rocks
        rocks.survives = self._survives
        rocks.before_sync, rocks.on_disk = self._syncing, self._view.take
        thread = _SteppedThread(rocks, self._network, self._pause)
        self._store = _ReadInPlace(cast("Any", rocks), thread, lambda: None)
        heads: Any = self._store.heads
        heads.append, heads.fence, heads.seal = (
            self._appending(heads.append),
            self._fencing(heads.fence),
            self._sealing(heads.seal),
        )
        self._server = self._store

    @contextmanager
    def patched(self) -> Iterator[None]:
        """The store's code writes simulated batches, and its thread never sleeps."""
        sleepless = SimpleNamespace(sleep=lambda seconds: None, perf_counter=lambda: self._network.loop.now)
        with (
            patch("millwheel.store.writer.RowBatch", SimulatedBatch),
            patch("millwheel.store.writer.time", sleepless),
        ):
            yield

    def cut_power(self) -> None:
        """Cut the power after the next group is written and before it is synced."""
        self._cut_at_sync = True

    def calm(self) -> None:
        """Restore power, and cancel a power cut that is still due."""
        self._cut_at_sync = False
        self.return_power()

    def return_power(self) -> None:
        """Start the machine again with the contents of its disk."""
        if self._next is not None:
            self._start(self._next)
            self._next = None
            self.remote.weather.away = False

    def _syncing(self) -> None:
        if self._cut_at_sync:
            self._cut_at_sync = False
            self.remote.weather.away = True
            before = len(self.rocks.log)
            self._next = self.rocks.cut(self._chance)
            self.reached["writes lost with the power"] += len(self.rocks.log)
            self.reached["writes kept by chance"] += before - len(self.rocks.log)
            self.lose_power()

    # Events for checkers. Each is published when its write survives a loss of power.

    def _appending(self, append: Callable[..., bool]) -> Callable[..., bool]:
        def appended(journal: str, asked: Append, batch: SimulatedBatch) -> bool:
            moved = append(journal, asked, batch)
            who = self._whose.get((journal, id(asked)), "")

            def published() -> None:
                # Nothing is left of an entry whose journal was dropped in the same group.
                if self._view.head(journal) is not None:
                    self.watch.appended(who, journal, asked)

            self._on_disk(batch, published)
            return moved

        return appended

    def _fencing(self, fence: Callable[..., JournalHead]) -> Callable[..., JournalHead]:
        def fenced(journal: str, sequencer: int, batch: SimulatedBatch) -> JournalHead:
            head = fence(journal, sequencer, batch)
            who = self._whose.get((journal, sequencer), "")
            self._on_disk(batch, lambda: self.watch.fenced(who, journal, sequencer))
            return head

        return fenced

    def _sealing(self, seal: Callable[..., JournalHead]) -> Callable[..., JournalHead]:
        def sealed(journal: str, sequencer: int, batch: SimulatedBatch) -> JournalHead:
            head = seal(journal, sequencer, batch)
            self._on_disk(batch, lambda: self.watch.sealed("", journal))
            return head

        return sealed

    def _on_disk(self, batch: SimulatedBatch, event: Callable[[], object]) -> None:
        self.reached["groups of several"] += len(batch.events) == 1
        batch.events.append(event)

    # The store's contract.

    async def _ask(
        self, call: Callable[[], Coroutine[Any, Any, Any]], done: Callable[[str], None] | None = None
    ) -> Any:
        return await self.remote.ask(self._watched(call))

    def _watched(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Coroutine[Any, Any, Any]]:
        """A call of the process whose step is running. A checker sees that no process may make it."""
        who = str(PROCESS.get())

        async def work() -> Any:
            try:
                return await call()
            except StoreError:
                raise
            except Exception as error:
                self.watch.misused(who, error)
                raise

        return work

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        """See :class:`StateStore`, here and below."""
        self._whose[journal, sequencer] = str(PROCESS.get())
        head: JournalHead = await self._ask(lambda: self._store.fence(journal, sequencer))
        return head

    async def write_states(
        self, incarnation: IncarnationId, journal: str, sequencer: int, rows: Sequence[StateRow]
    ) -> None:
        # This store is in its process, where calls run in their order. So no attempt that was given up comes after its
        # repetition. It would write a row again that was emptied and deleted since.
        self._asked += 1
        owner, number = (str(PROCESS.get()), journal), self._asked

        async def in_order() -> None:
            if number < self._newest.get(owner, 0):
                raise StoreUnavailableError("a later call came first")
            self._newest[owner] = number
            await self._store.write_states(incarnation, journal, sequencer, rows)

        await self._ask(in_order)

    async def append(self, journal: str, append: Append) -> None:
        self._asks(journal, append)
        await self._ask(lambda: self._store.append(journal, append))

    def append_soon(
        self,
        journal: str,
        append: Append,
        done: Callable[[BaseException | None], None],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """See :class:`AppendQueue`. The process has no task that waits, as beside the real embedded store.

        But it is another process than the store's. So the answer leaves the store's process, after the sync.
        """
        self._asks(journal, append)
        answer: asyncio.Future[None] = self._network.loop.create_future()
        timer = self.remote.post(answer, self._watched(lambda: self._append_soon(journal, append)))

        def ended(answer: asyncio.Future[None]) -> None:
            timer.cancel()
            done(answer.exception())

        answer.add_done_callback(ended)

    async def _append_soon(self, journal: str, append: Append) -> None:
        """The store has the append."""
        outcome: asyncio.Future[BaseException | None] = self._network.loop.create_future()

        def done(error: BaseException | None) -> None:
            self._store.after_sync(lambda: outcome.set_result(error))

        self._store.append_soon(journal, append, done, self._network.loop.call_soon)
        if (error := await outcome) is not None:
            raise error

    def _asks(self, journal: str, append: Append) -> None:
        who = str(PROCESS.get())
        self._whose[journal, id(append)] = who
        self.watch.asked(who, journal, append)
