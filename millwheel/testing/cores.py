"""Drives interval cores in virtual time. Each instruction is performed at once, on a memory store.

Nothing waits, and the clock changes only when a caller sets it. An instruction that cannot be performed is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.store.contract import PartId, SequencerRefusedError
from millwheel.store.memory import MemoryStore
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.failures import refuse_result
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Acknowledge,
    Appended,
    AppendEntry,
    AsyncHook,
    CheckSequence,
    CopyParts,
    DeleteEntries,
    DeleteParts,
    Deposed,
    Event,
    FenceJournal,
    FlushStates,
    GiveUp,
    HookFailed,
    HookFinished,
    HooksSlow,
    Opened,
    PartsRead,
    PartsWritten,
    ReadSegments,
    ReadStates,
    ReleasePrepared,
    Report,
    SendDelivery,
    SequenceChecked,
    StatesFlushed,
    StatesRead,
    Tick,
    WriteParts,
)

__all__ = ["HOOK_TIMEOUT_SECONDS", "PERFORMERS", "CoreDriver", "HarnessPeers", "HookTimeoutError", "result_of"]

HOOK_TIMEOUT_SECONDS: Final = 60.0
"""The default limit for an asynchronous hook, in real seconds. It is far more than a hook needs."""

_CLEANUP_SECONDS: Final = 1.0
"""The real seconds that a cancelled hook has for its cleanup."""

T = TypeVar("T")


class HookTimeoutError(TimeoutError):
    """An asynchronous hook did not end in time. Possibly nothing completes what it awaits."""


def result_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits. The coroutines of the memory store do not."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("the memory store waited")


class HarnessPeers(Protocol):
    """The cores' environment except the store. ``journal`` identifies the core that makes the request."""

    def send_batch(self, journal: str, one: SendDelivery) -> None:
        """Deliver a batch to its consumer."""

    def acknowledge(self, journal: str, one: Acknowledge) -> None:
        """Send an answer to a batch's sender."""

    def report(self, journal: str, one: Report) -> None:
        """Receive a report for the authority."""

    def hook_failed(self, journal: str, one: HookFailed) -> None:
        """Record a failed hook."""


class CoreDriver:
    """Drives interval cores. Each is identified by its journal."""

    def __init__(
        self, store: MemoryStore, now: int, peers: HarnessPeers, hook_timeout_seconds: float = HOOK_TIMEOUT_SECONDS
    ) -> None:
        """Start without cores.

        Args:
            store: The store of the cores. It outlives them.
            now: The first value of the virtual clock, in microseconds.
            peers: The cores' environment except the store.
            hook_timeout_seconds: The real seconds after which an asynchronous hook fails with a HookTimeoutError.
        """
        self.store = store
        self.now = now
        self.cores: dict[str, IntervalCore] = {}
        self._peers = peers
        self._events: deque[tuple[str, Event]] = deque()
        self._later: list[tuple[int, int, str, Event]] = []
        """A heap of events at future virtual times."""
        self._order = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hook_timeout_seconds = hook_timeout_seconds
        self._timed_out = False
        """Whether a hook has timed out in this call of the test.

        No other hook begins in this call then, because each might take as long.
        """
        self._put_off: list[tuple[str, AsyncHook]] = []
        """Hooks that begin in the next call."""

    def start(self, core: IntervalCore) -> None:
        """Start ``core``, and drive it from now on."""
        journal = core.state.config.journal
        self.cores[journal] = core
        for instruction in core.start():
            self.perform(journal, instruction)

    def clear(self) -> None:
        """Drop all cores, and all events for them."""
        self.cores.clear()
        self._events.clear()
        self._later.clear()
        for _, hook in self._put_off:
            hook.coroutine.close()
        self._put_off.clear()

    def post(self, journal: str, event: Event) -> None:
        """Let a core handle ``event`` after all earlier events. If the core does not exist, the event is dropped."""
        self._events.append((journal, event))

    def post_to_all(self, event: Event) -> None:
        """Let every core handle ``event``."""
        for journal in self.cores:
            self.post(journal, event)

    def post_later(self, delay: int, journal: str, event: Event) -> None:
        """Let a core handle ``event`` after ``delay`` microseconds of virtual time."""
        heapq.heappush(self._later, (self.now + delay, next(self._order), journal, event))

    def run(self) -> None:
        """Handle events until none is left."""
        if not self._timed_out:
            put_off, self._put_off = self._put_off, []
            for journal, hook in put_off:
                self.perform(journal, hook)
        while self._events:
            journal, event = self._events.popleft()
            core = self.cores.get(journal)
            if core is not None:
                for instruction in core.handle(event, self.now):
                    self.perform(journal, instruction)

    def pass_time(self, duration: int) -> None:
        """Advance virtual time by ``duration`` microseconds. Events in that time happen at their own moments."""
        end = self.now + duration
        while (event := self._next_event(end)) is not None:
            at, journal, what = event
            self.now = max(self.now, at)
            self.post(journal, what)
            self.run()
        self.now = end
        self.post_to_all(Tick())
        self.run()

    def end_call(self) -> None:
        """End a call of the test. Postponed hooks may begin in the next one."""
        self._timed_out = False

    def close(self) -> None:
        """Close the event loop of asynchronous hooks."""
        if self._loop is not None:
            if tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=_CLEANUP_SECONDS))
            self._loop.close()
            self._loop = None

    def _next_event(self, end: int) -> tuple[int, str, Event] | None:
        """The next event up to the time ``end`` that only needs time to pass; None if there is none."""
        alarms = [(at, journal) for journal, core in self.cores.items() if (at := core.next_alarm()) is not None]
        first = min(alarms, default=None)
        if self._later and self._later[0][0] <= end and (first is None or self._later[0][0] <= first[0]):
            time, _, journal, event = heapq.heappop(self._later)
            return time, journal, event
        return (*first, Tick()) if first is not None and first[0] <= end else None

    # Instructions.

    def perform(self, journal: str, instruction: Any) -> None:
        """Perform an instruction of the core with this journal. TypeError for an unknown instruction."""
        performer = PERFORMERS.get(type(instruction))
        if performer is None:
            raise TypeError(f"journal {journal}: nothing performs the instruction {instruction!r:.200}: add it here")
        answer = performer(self, journal, instruction)
        if answer is not None:
            self.post(journal, answer)

    def _fence(self, journal: str, one: FenceJournal) -> Event:
        head = result_of(self.store.fence(one.journal, one.sequencer))
        blobs = result_of(self.store.read_parts(one.journal, head.parts))
        entries = result_of(self.store.read_entries(one.journal, head.floor + 1, head.commit))
        return Opened(head, dict(zip(head.parts, blobs, strict=True)), entries)

    def _accept(self, journal: str, one: AcceptSequencer) -> Event:
        return Accepted(MIN_TIMESTAMP)

    def _append(self, journal: str, one: AppendEntry) -> Event:
        try:
            result_of(self.store.append(one.journal, one.append))
        except SequencerRefusedError as error:
            return Deposed(str(error))
        return Appended(one.append.commit)

    def _send(self, journal: str, one: SendDelivery) -> None:
        self._peers.send_batch(journal, one)

    def _acknowledge(self, journal: str, one: Acknowledge) -> None:
        self._peers.acknowledge(journal, one)

    def _report(self, journal: str, one: Report) -> None:
        self._peers.report(journal, one)

    def _hook_failed(self, journal: str, one: HookFailed) -> None:
        self._peers.hook_failed(journal, one)

    def _read_states(self, journal: str, one: ReadStates) -> Event:
        return StatesRead(one.keys, result_of(self.store.read_states(one.computation, one.keys)))

    def _flush(self, journal: str, one: FlushStates) -> Event:
        result_of(self.store.write_states(one.computation, one.journal, one.sequencer, one.rows))
        return StatesFlushed(one.number)

    def _write_parts(self, journal: str, one: WriteParts) -> Event:
        for part, blob in one.parts.items():
            result_of(self.store.write_part(one.journal, part, blob))
        return PartsWritten(one.number)

    def _copy_parts(self, journal: str, one: CopyParts) -> Event:
        for parent, part, copy in one.copies:
            result_of(self.store.write_part(one.journal, copy, self._read_part(parent, part)))
        return PartsWritten(one.number)

    def _read_segments(self, journal: str, one: ReadSegments) -> Event:
        return PartsRead({part: self._read_part(one.elsewhere.get(part, one.journal), part) for part in one.parts})

    def _read_part(self, journal: str, part: PartId) -> bytes:
        return result_of(self.store.read_parts(journal, [part]))[0]

    def _delete_entries(self, journal: str, one: DeleteEntries) -> None:
        result_of(self.store.delete_entries(one.journal, one.below))

    def _delete_parts(self, journal: str, one: DeleteParts) -> None:
        result_of(self.store.delete_parts(one.journal, one.parts))

    def _check_sequence(self, journal: str, one: CheckSequence) -> Event:
        return SequenceChecked(one.sequence, True)

    def _give_up(self, journal: str, one: GiveUp) -> Event:
        return Deposed(one.reason)

    def _release_prepared(self, journal: str, one: ReleasePrepared) -> None:
        raise AssertionError(f"journal {journal}: it was prepared for a release that nothing asked for")

    def _run_hook(self, journal: str, one: AsyncHook) -> Event | None:
        if self._timed_out:
            self._put_off.append((journal, one))
            return None
        try:
            result = self._wait_for(one.coroutine)
            if result is not None:
                refuse_result(getattr(one.coroutine, "__qualname__", "a hook"), result)
        except asyncio.CancelledError:
            return HookFinished(one.hook, RuntimeError("the hook was cancelled"))
        except (Exception, SystemExit) as error:
            return HookFinished(one.hook, error)
        return HookFinished(one.hook, None)

    def _wait_for(self, coroutine: Coroutine[Any, Any, object]) -> object:
        """The result of a hook. A hook that never yields to the event loop cannot be stopped."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        loop, limit = self._loop, self._hook_timeout_seconds
        task = asyncio.ensure_future(coroutine, loop=loop)
        try:
            return _run_until(loop, task, limit)
        except RuntimeError:
            if task.done():
                raise
        self._timed_out = True
        task.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError, SystemExit):
            _run_until(loop, task, _CLEANUP_SECONDS)
        hook = getattr(coroutine, "__qualname__", "the hook")
        raise HookTimeoutError(
            f"{hook} has not ended after {limit:g} s of real time: perhaps nothing ends what it awaits. Virtual time "
            "stands still meanwhile. If it needs longer, write TopologyHarness(..., hook_timeout_seconds=...)"
        )


def _run_until(loop: asyncio.AbstractEventLoop, task: asyncio.Future[Any], seconds: float) -> Any:
    """The task's result; RuntimeError if the task does not end within this many real seconds."""
    alarm = loop.call_later(seconds, loop.stop)
    try:
        return loop.run_until_complete(task)
    finally:
        alarm.cancel()


PERFORMERS: Final[dict[type, Callable[[CoreDriver, str, Any], Event | None]]] = {
    FenceJournal: CoreDriver._fence,
    AcceptSequencer: CoreDriver._accept,
    AppendEntry: CoreDriver._append,
    Acknowledge: CoreDriver._acknowledge,
    SendDelivery: CoreDriver._send,
    ReadStates: CoreDriver._read_states,
    FlushStates: CoreDriver._flush,
    WriteParts: CoreDriver._write_parts,
    ReadSegments: CoreDriver._read_segments,
    CopyParts: CoreDriver._copy_parts,
    ReleasePrepared: CoreDriver._release_prepared,
    CheckSequence: CoreDriver._check_sequence,
    DeleteEntries: CoreDriver._delete_entries,
    DeleteParts: CoreDriver._delete_parts,
    Report: CoreDriver._report,
    AsyncHook: CoreDriver._run_hook,
    GiveUp: CoreDriver._give_up,
    HookFailed: CoreDriver._hook_failed,
    HooksSlow: lambda driver, journal, one: None,
}
"""By type of instruction: the method that performs it, and returns the event that answers it."""
