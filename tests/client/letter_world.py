"""A world in which replays of dead letters run, with every fault: the real log's marks, replays and duplicate check."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from millwheel.client.dead_letters import Letter, LetterState, LetterStates, ReplayReport
from millwheel.client.dead_letters.replaying import Replay
from millwheel.client.dead_letters.states import runs_of
from millwheel.client.dead_letters.targets import LetterTarget
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.model.letters import LetterAction
from millwheel.sdk.dead_letters import DeadLetter, letter_id, letter_query
from millwheel.worker.dedup import BatchIds, Dedup, DeliveryVerdict, Sender
from millwheel.worker.log.letters import LetterMarks

TARGET = LetterTarget(IncarnationId("count.1"), "words/spoken")
QUERY = letter_query("words/dead-letters.log.2")
SENDER = Sender("replay/words/dead-letters.log.2", 0, None, "replay/words/dead-letters.log.2")


@dataclass(slots=True, eq=False)
class Copy:
    """A delivery in the network. It may arrive any number of times, also after its sender has ended."""

    sender: LetterCourier
    batch: int
    offsets: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Receiver:
    """An interval of the computation: its duplicate check, and the records that it has not committed."""

    dedup: Dedup
    pending: list[tuple[Copy, DeliveryVerdict]] = field(default_factory=list)


class LetterWorld:
    """Letters of even and of odd offsets have different keys, which one or two intervals own."""

    def __init__(self, seed: int, letters: int) -> None:
        self.chance = random.Random(seed)
        self.letters = letters
        self.start = 0
        self.marks = LetterMarks()
        self.receivers = [Receiver(Dedup(ALL_KEYS, "j0"))]
        self.journals = 0
        self.network: list[Copy] = []
        self.gates: list[asyncio.Future[None]] = []
        self.effects: Counter[int] = Counter()
        self.given_up: set[int] = set()
        """Letters that were discarded while they waited. They must have no effect."""
        self.reached: Counter[str] = Counter()

    async def pause(self) -> None:
        """What waits here goes on at a random time, or is killed."""
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate

    # The log.

    def change(self, action: LetterAction, offsets: Sequence[int]) -> None:
        before = {offset: self.state(offset) for offset in offsets}
        self.marks.apply([(int(action), first, end) for first, end in runs_of(offsets)], self.start)
        self.marks.check()
        if action is LetterAction.DISCARD:
            self.given_up |= {
                offset
                for offset in offsets
                if before[offset] is LetterState.WAITING and self.state(offset) is LetterState.DISCARDED
            }

    def states(self) -> LetterStates:
        runs = tuple(run for run in self.marks.runs() if run[2] > self.start)
        return LetterStates(self.start, self.letters, self.marks.batch, runs)

    def state(self, offset: int) -> LetterState | None:
        return self.states().state(offset)

    def drop_oldest(self) -> None:
        self.start = min(self.start + 1, self.letters)
        self.marks.apply([], self.start)

    # The receiving intervals.

    def arrive(self, copy: Copy) -> None:
        """A copy reaches the owners of its keys."""
        for number, receiver in enumerate(self.receivers):
            mine = [one for one in copy.offsets if one % len(self.receivers) == number]
            if not mine:
                continue
            ids = BatchIds(QUERY, copy.batch, [letter_id(offset) for offset in mine])
            verdict = receiver.dedup.check(ids, [b""] * len(mine), [0] * len(mine), SENDER)
            duplicates = [mine[index] for index in verdict.duplicates]
            self.reached["duplicates"] += len(duplicates)
            self.reached["copies of records in processing"] += len(verdict.waiting)
            for offset in duplicates:
                copy.sender.acked.add(offset)
                self.reached["ACKs of a former batch"] += copy.batch < self.marks.batch
            if verdict.fresh_indexes:
                part = Copy(copy.sender, copy.batch, tuple(mine))
                receiver.pending.append((part, verdict))

    def commit(self, receiver: Receiver) -> None:
        pending, receiver.pending = receiver.pending, []
        delta = receiver.dedup.take([(verdict, None) for _, verdict in pending])
        receiver.dedup.committed(delta)
        for copy, verdict in pending:
            for index in verdict.fresh_indexes:
                offset = copy.offsets[index]
                self.effects[offset] += 1
                assert self.effects[offset] == 1, f"letter {offset} takes effect twice"
                assert offset not in self.given_up, f"letter {offset} was discarded, and takes effect"
                copy.sender.acked.add(offset)

    def crash(self, receiver: Receiver) -> None:
        receiver.pending = []
        receiver.dedup = Dedup.restore(ALL_KEYS, self._journal(), receiver.dedup.snapshot().blobs, {})

    def reshape(self) -> None:
        """One interval is split, or two are merged. What is not committed is lost, and sent again."""
        parents = [Dedup.restore(ALL_KEYS, "p", one.dedup.snapshot().blobs, {}) for one in self.receivers]
        count = 3 - len(self.receivers)
        self.receivers = [Receiver(Dedup.inherit(ALL_KEYS, self._journal(), parents)) for _ in range(count)]

    def _journal(self) -> str:
        self.journals += 1
        return f"j{self.journals}"


class LetterCourier:
    """One replay's view of the world: its log, its targets and its sender."""

    def __init__(self, world: LetterWorld) -> None:
        self._world = world
        self.acked: set[int] = set()
        self.why = "it gave up"

    async def change(self, action: LetterAction, offsets: Sequence[int]) -> None:
        await self._world.pause()
        self._world.change(action, offsets)
        await self._world.pause()

    async def states(self) -> LetterStates:
        await self._world.pause()
        found = self._world.states()
        await self._world.pause()
        return found

    async def check(self, letter: Letter) -> LetterTarget:
        return TARGET

    async def send(self, target: LetterTarget, letters: Sequence[Letter], batch: int) -> list[int]:
        offsets = {letter.offset for letter in letters}
        for _ in range(4):
            waiting = tuple(sorted(offsets - self.acked))
            if not waiting:
                break
            copy = Copy(self, batch, waiting)
            self._world.network.append(copy)
            await self._world.pause()
            if self._world.chance.random() < 0.7:
                self._world.arrive(copy)
            await self._world.pause()
        return sorted(offsets & self.acked)

    async def replay(self, wanted: frozenset[int], is_over: Callable[[], bool] = lambda: False) -> ReplayReport:
        """Replay these letters, as far as they are unhandled now."""
        return await Replay(self, self, self, lambda report: None, is_over).run(self._letters(wanted))

    async def _letters(self, wanted: frozenset[int]) -> AsyncIterator[Letter]:
        found = await self.states()
        for offset in sorted(wanted):
            state = found.state(offset)
            if state in (LetterState.WAITING, LetterState.IN_REPLAY):
                content = DeadLetter("count", "k", "spoken", 0, b"", "", 1, "", "", b"k", TARGET.incarnation)
                yield Letter("words", offset, content, state)
