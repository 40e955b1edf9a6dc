"""Interval cores in virtual time: their instructions are performed at once, on a memory store.

Nothing here waits, and the clock moves only when it is set. Each instruction is performed, or it is an error.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from millwheel.core.time import MIN_TIMESTAMP
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
    Send,
    SequenceChecked,
    StatesFlushed,
    StatesRead,
    Tick,
    WriteParts,
)

__all__ = ["PERFORMERS", "CoreDriver", "Peers", "result_of"]

T = TypeVar("T")


def result_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as the memory store's are."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("the memory store waited")


class Peers(Protocol):
    """What the cores need of the world beside the store. ``journal`` names the core that asks."""

    def send_batch(self, journal: str, one: Send) -> None:
        """Bring a batch to its owner."""

    def acknowledge(self, journal: str, one: Acknowledge) -> None:
        """Bring an answer to a batch's sender."""

    def report(self, journal: str, one: Report) -> None:
        """Take a report for the authority."""

    def hook_failed(self, journal: str, one: HookFailed) -> None:
        """Take note of a failed hook."""


class CoreDriver:
    """Drives interval cores, each known by its journal."""

    def __init__(self, store: MemoryStore, now: int, peers: Peers) -> None:
        """``now``: the virtual clock's first value, in microseconds."""
        self.store = store
        self.now = now
        self.cores: dict[str, IntervalCore] = {}
        self._peers = peers
        self._events: deque[tuple[str, Event]] = deque()
        self._later: list[tuple[int, int, str, Event]] = []
        """Events at a virtual time to come, as a heap."""
        self._order = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, core: IntervalCore) -> None:
        """Drive ``core`` from now on."""
        journal = core.state.config.journal
        self.cores[journal] = core
        for instruction in core.start():
            self.perform(journal, instruction)

    def clear(self) -> None:
        """Lose the cores, and all that is on its way to them."""
        self.cores.clear()
        self._events.clear()
        self._later.clear()

    def post(self, journal: str, event: Event) -> None:
        """Have a core handle ``event`` after everything posted before. A core that is gone handles nothing."""
        self._events.append((journal, event))

    def post_to_all(self, event: Event) -> None:
        """Have every core handle ``event``."""
        for journal in self.cores:
            self.post(journal, event)

    def post_later(self, delay: int, journal: str, event: Event) -> None:
        """Have a core handle ``event`` once ``delay`` microseconds have passed."""
        heapq.heappush(self._later, (self.now + delay, next(self._order), journal, event))

    def run(self) -> None:
        """Handle events until none is left."""
        while self._events:
            journal, event = self._events.popleft()
            core = self.cores.get(journal)
            if core is not None:
                for instruction in core.handle(event, self.now):
                    self.perform(journal, instruction)

    def pass_time(self, duration: int) -> None:
        """Let virtual time pass: what is due on the way happens at its own moment."""
        end = self.now + duration
        while (event := self._next_event(end)) is not None:
            at, journal, what = event
            self.now = max(self.now, at)
            self.post(journal, what)
            self.run()
        self.now = end
        self.post_to_all(Tick())
        self.run()

    def close(self) -> None:
        """Release the event loop that asynchronous hooks ran on."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _next_event(self, end: int) -> tuple[int, str, Event] | None:
        """What happens next, up to the time ``end``, if only time passes."""
        alarms = [(at, journal) for journal, core in self.cores.items() if (at := core.next_alarm()) is not None]
        first = min(alarms, default=None)
        if self._later and self._later[0][0] <= end and (first is None or self._later[0][0] <= first[0]):
            time, _, journal, event = heapq.heappop(self._later)
            return time, journal, event
        return (*first, Tick()) if first is not None and first[0] <= end else None

    # Performing.

    def perform(self, journal: str, instruction: Any) -> None:
        """Perform an instruction of the core of ``journal``. TypeError for one that is not known here."""
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

    def _send(self, journal: str, one: Send) -> None:
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

    def _run_hook(self, journal: str, one: AsyncHook) -> Event:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            result = self._loop.run_until_complete(one.coroutine)
            if result is not None:
                refuse_result(getattr(one.coroutine, "__qualname__", "a hook"), result)
        except asyncio.CancelledError:
            return HookFinished(one.hook, RuntimeError("the hook was cancelled"))
        except (Exception, SystemExit) as error:
            return HookFinished(one.hook, error)
        return HookFinished(one.hook, None)


PERFORMERS: Final[dict[type, Callable[[CoreDriver, str, Any], Event | None]]] = {
    FenceJournal: CoreDriver._fence,
    AcceptSequencer: CoreDriver._accept,
    AppendEntry: CoreDriver._append,
    Acknowledge: CoreDriver._acknowledge,
    Send: CoreDriver._send,
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
"""By instruction: what performs it, and returns the event that answers it."""
