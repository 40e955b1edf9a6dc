"""The driver of one term of a leading master: the core's I/O, from the election to the loss of the leadership."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, assert_never, cast

from millwheel.coordination.contract import CompactedError, Coordinator, CoordinatorError
from millwheel.coordination.election import Leadership
from millwheel.master.core import MasterCore
from millwheel.master.messages import (
    Answer,
    CreateJournals,
    Drop,
    Fail,
    JournalsCreated,
    LoadsMeasured,
    MasterEffect,
    MasterEvent,
    NumbersReserved,
    Observe,
    Progress,
    ProgressObserved,
    Reload,
    Reply,
    Request,
    RequestReceived,
    ReserveNumbers,
    RevisionArrived,
    SnapshotLoaded,
    StateDropped,
    StepDown,
    StoreFailed,
    Tick,
    Transact,
    TransactionEnded,
)
from millwheel.master.settings import MasterSettings
from millwheel.model.catalog import Catalog
from millwheel.model.time import Timestamp
from millwheel.rpc.caller import present_caller
from millwheel.rpc.failures import NOT_LEADING, FailureCode, RequestError
from millwheel.store.contract import JournalExistsError, StateStore, StoreError
from millwheel.store.sequencer_allocation import reserve_sequencers

__all__ = ["Term"]

_MAX_SLEEP_SECONDS: Final = 0.2
"""Maximum seconds until the wall clock is read again. It may have been set back."""
_PAUSE_SECONDS: Final = 0.2
_log = logging.getLogger(__name__)

ReadProgress = Callable[[Catalog, str], Awaitable[Progress]]
"""Requests the progress of a topology from its workers and the authority."""
ForgetGroup = Callable[[Catalog, str, int], Awaitable[None]]
"""Makes the authority forget a group. A sequencer other than 0 limits it: nothing is forgotten if the authority has
accepted a larger one."""


class Term:
    """Performs the core's effects and reports their outcome to it. ``run`` ends with the leadership.

    It has many attributes: what a term needs from outside, and what it has begun and not ended.
    """

    def __init__(
        self,
        leadership: Leadership,
        coordinator: Coordinator,
        store: StateStore,
        settings: MasterSettings,
        read_progress: ReadProgress,
        forget: ForgetGroup,
        clock: Callable[[], Timestamp],
    ) -> None:
        """Create the term of ``leadership``.

        ``clock`` returns the wall time.
        """
        self.core = MasterCore(leadership.compare, settings)
        self.number = leadership.term
        self._leadership = leadership
        self._coordinator = coordinator
        self._store = store
        self._read_progress = read_progress
        self._forget = forget
        self._clock = clock
        self._tickets = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._observing: set[str] = set()
        self._reported_damaged: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._ready = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def catalog(self) -> Catalog:
        """The coordinator's contents, as far as this term has received them."""
        return self.core.catalog

    @property
    def is_over(self) -> bool:
        """Whether another term has begun, or may have begun."""
        return self._over.is_set()

    async def ready(self) -> None:
        """Return once the catalog has been read, or the term is over."""
        if not (self._ready.is_set() or self.is_over):
            await _first(self._ready.wait(), self._over.wait())

    async def changed(self) -> None:
        """Return at the next change of the catalog, or when the term is over."""
        await self._changed.wait()

    def check(self) -> None:
        """Raise RequestError (UNAVAILABLE) if another term has begun, or may have begun."""
        if self.is_over:
            raise _over()

    async def ask(self, request: Request) -> Answer:
        """Return the core's answer; raises the core's RequestError. Cancelling this call does not undo the request."""
        ticket = next(self._tickets)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self.is_over:
            raise _over()
        self._asked[ticket] = future
        try:
            self._step(RequestReceived(ticket, request, present_caller()))
            return await future
        finally:
            self._asked.pop(ticket, None)

    async def run(self) -> None:
        """Lead until the leadership is lost or this task is cancelled."""
        follow, tick = asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._tick())
        try:
            await _first(self._leadership.lost(), self._over.wait(), follow, tick)
            for task in (follow, tick):
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            self._end()
            await _cancelled(follow, tick, *self._tasks)

    def _end(self) -> None:
        self._over.set()
        self._changed.set()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(_over())

    # Activities without a request.

    async def _follow(self) -> None:
        """Pass every change of the coordinator to the core, in order. Read everything again after a gap."""
        while True:
            try:
                snapshot = await self._coordinator.list("")
                self._follow_step(SnapshotLoaded(snapshot))
                self._ready.set()
                watch = cast("Any", self._coordinator.watch("", snapshot.revision))
                async with aclosing(watch):
                    async for changes in watch:
                        self._follow_step(RevisionArrived(changes))
            except (CompactedError, CoordinatorError) as error:
                _log.warning("the coordinator's changes cannot be followed, trying again: %s", error)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _tick(self) -> None:
        while True:
            at = self.core.next_deadline()
            delay = _MAX_SLEEP_SECONDS if at is None else (at - self._clock()) / 1e6
            await asyncio.sleep(min(max(delay, 0.0), _MAX_SLEEP_SECONDS))
            self._step(Tick())

    def take_loads(self, loads: Mapping[str, float]) -> None:
        """Pass the cost of intervals, by journal and in cores, to the core."""
        self._step(LoadsMeasured(loads))

    def _step(self, event: MasterEvent) -> None:
        self.perform(self.core.step(event, self._clock()))

    def _follow_step(self, event: SnapshotLoaded | RevisionArrived) -> None:
        """Bring the core a change of the coordinator, and wake those who follow the catalog."""
        effects = self.core.step(event, self._clock())
        damaged = dict(self.catalog.damaged)
        for key, why in damaged.items() - self._reported_damaged.items():
            _log.error("the coordinator's value %s is damaged, and nothing is done with it: %s", key, why)
        self._reported_damaged = damaged
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self.perform(effects)

    # Effects of the core.

    def perform(self, effects: Sequence[MasterEffect]) -> None:
        """Perform the effects of an event, in their order."""
        for effect in effects:
            match effect:
                case Reply() | Fail():
                    self._answer(effect)
                case StepDown(reason):
                    _log.warning("term %d is over: %s", self.number, reason)
                    self._end()
                case Transact():
                    self._spawn(self._transact(effect))
                case ReserveNumbers(operation, above):
                    self._spawn(self._reserve(operation, above))
                case CreateJournals(operation, journals):
                    self._spawn(self._create(operation, journals))
                case Drop():
                    self._spawn(self._drop(effect))
                case Reload(operation):
                    self._spawn(self._reload(operation))
                case Observe(topology):
                    if topology not in self._observing:
                        self._observing.add(topology)
                        self._spawn(self._observe(topology))
                case _:
                    assert_never(effect)

    def _answer(self, effect: Reply | Fail) -> None:
        future = self._asked.get(effect.ticket)
        if future is None or future.done():
            return
        if isinstance(effect, Reply):
            future.set_result(effect.answer)
        else:
            future.set_exception(effect.error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An exception here is a fault in the master itself.

        The term ends, because the core's state is no longer reliable.
        """
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("term %d ends by a fault", self.number, exc_info=task.exception())
            self._end()

    async def _transact(self, wanted: Transact) -> None:
        try:
            outcome = await self._coordinator.transact(wanted.compares, wanted.puts, wanted.deletes)
        except CoordinatorError as error:
            _log.warning("whether a transaction took effect is unknown: %s", error)
            self._step(TransactionEnded(wanted.operation, None))
        else:
            self._step(TransactionEnded(wanted.operation, outcome))

    async def _reserve(self, operation: int, above: int) -> None:
        try:
            block = await reserve_sequencers(self._store, above)
        except StoreError as error:
            self._step(StoreFailed(operation, str(error), retry=False))
        else:
            self._step(NumbersReserved(operation, block.first, block.last))

    async def _create(self, operation: int, journals: tuple[str, ...]) -> None:
        try:
            for journal in journals:
                await self._store.create_journal(journal)
        except JournalExistsError as error:
            self._step(StoreFailed(operation, str(error), retry=True))
        except StoreError as error:
            self._step(StoreFailed(operation, str(error), retry=False))
        else:
            self._step(JournalsCreated(operation))

    async def _drop(self, wanted: Drop) -> None:
        try:
            # The authority comes first. While it is unavailable, no other step is done, so none is repeated.
            for incarnation in wanted.incarnations:
                await self._forget(self.catalog, incarnation, 0)
            for group, sequencer in wanted.injectors:
                await self._forget(self.catalog, group, sequencer)
            for journal in wanted.journals:
                await self._store.drop_journal(journal)
            for incarnation in wanted.incarnations:
                await self._store.drop_incarnation(incarnation)
        except (StoreError, RequestError) as error:
            _log.warning("removed state could not be dropped, trying again later: %s", error)
            self._step(StoreFailed(wanted.operation, str(error), retry=False))
        else:
            self._step(StateDropped(wanted.operation))

    async def _reload(self, operation: int) -> None:
        try:
            snapshot = await self._coordinator.list("")
        except CoordinatorError:
            # The core repeats the effect after some time.
            return
        self._follow_step(SnapshotLoaded(snapshot, operation))

    async def _observe(self, topology: str) -> None:
        try:
            progress = await self._read_progress(self.catalog, topology)
        finally:
            self._observing.discard(topology)
        self._step(ProgressObserved(progress))


def _over() -> RequestError:
    return RequestError(
        FailureCode.UNAVAILABLE,
        "this master has just lost the leadership",
        "the request may or may not have taken effect: repeat it with the same request id",
        reason=NOT_LEADING,
    )


async def _first(*works: Awaitable[Any]) -> None:
    """Return when the first of ``works`` is done. The coroutines among them are cancelled then."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancelled(*(task for task, work in zip(tasks, works, strict=True) if task is not work))


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
