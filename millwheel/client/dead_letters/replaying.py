"""The replay of letters, each exactly once: begin, send, confirm (docs/decisions/0033-dead-letters.md).

Invariant: no record of a letter is sent before the log says durably that its replay has begun, and the log says
*replayed* only after the ACK. Any number of replays may run at once, or stop at any point: the receivers know the
letters' ids.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

from millwheel.client.dead_letters.letters import Letter
from millwheel.client.dead_letters.reports import RefusedLetter, ReplayReport
from millwheel.client.dead_letters.states import LetterStates
from millwheel.client.dead_letters.targets import LetterTarget, NoTargetError
from millwheel.model.letters import LetterAction, LetterState

__all__ = ["LETTERS_AT_ONCE", "Replay"]

LETTERS_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 1 << 20
"""A delivery has at most one record more than that: below gRPC's limit for a message."""


class _Book(Protocol):
    """What a replay asks the letters' log for."""

    async def states(self) -> LetterStates:
        """The states of all kept letters."""

    async def change(self, action: LetterAction, offsets: Sequence[int]) -> None:
        """Change letters durably."""


class _Targets(Protocol):
    """What a replay asks the masters for."""

    async def check(self, letter: Letter) -> LetterTarget:
        """The target of a letter. NoTargetError: it has none."""


class _Sender(Protocol):
    """Delivers records."""

    why: str

    async def send(self, target: LetterTarget, letters: Sequence[Letter], batch: int) -> list[int]:
        """Send letters of one batch. Returns the offsets of those that are ACKed."""


class Replay:
    """One run. ``report`` grows while it runs."""

    def __init__(
        self,
        book: _Book,
        targets: _Targets,
        sender: _Sender,
        progress: Callable[[ReplayReport], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            book: The letters' log.
            targets: Where the records go.
            sender: Delivers them.
            progress: Called with the report after each group of letters.
            is_over: Whether there is no time left for another group.
        """
        self.report = ReplayReport()
        self._book = book
        self._targets = targets
        self._sender = sender
        self._progress = progress
        self._is_over = is_over

    async def run(self, letters: AsyncIterator[Letter]) -> ReplayReport:
        """Replay letters in their order.

        It stops behind the first group of which a letter is not confirmed, and when its time is over.
        """
        async for group in _groups(letters):
            await self._replay(group)
            self.report.reached = group[-1].offset
            self._progress(self.report)
            if self.report.unconfirmed or self._is_over():
                return self.report
        self.report.reached = None
        return self.report

    async def _replay(self, letters: Sequence[Letter]) -> None:
        report = self.report
        wanted: list[tuple[LetterTarget, Letter]] = []
        for letter in letters:
            try:
                wanted.append((await self._targets.check(letter), letter))
            except NoTargetError as error:
                report.refused.append(RefusedLetter(letter.offset, str(error)))
        offsets = [letter.offset for _, letter in wanted]
        if not offsets:
            return
        await self._book.change(LetterAction.BEGIN, offsets)
        begun = await self._book.states()
        acked: list[int] = []
        by_target: dict[LetterTarget, list[Letter]] = {}
        for target, letter in wanted:
            if begun.state(letter.offset) is LetterState.IN_REPLAY:
                by_target.setdefault(target, []).append(letter)
        why = ""
        for target, mine in by_target.items():
            taken = await self._sender.send(target, mine, begun.batch)
            acked += taken
            if len(taken) < len(mine):
                why = why or self._sender.why
        await self._confirm(offsets, acked, why)

    async def _confirm(self, offsets: Sequence[int], acked: Sequence[int], why: str) -> None:
        """Note the ACKs. What the log says afterwards is the result.

        A letter that is still in replay when it is confirmed was in replay when its ACK came. So no later batch had
        begun by then, and the ACK says that the record has taken effect.
        """
        report = self.report
        if acked:
            await self._book.change(LetterAction.CONFIRM, acked)
        known, mine = await self._book.states(), frozenset(acked)
        for offset in offsets:
            state = known.state(offset)
            if state is LetterState.REPLAYED and offset in mine:
                report.replayed.append(offset)
            elif state is LetterState.IN_REPLAY:
                report.unconfirmed.append(offset)
                report.why_unconfirmed = why
            else:
                report.elsewhere.append(offset)


async def _groups(letters: AsyncIterator[Letter]) -> AsyncIterator[list[Letter]]:
    group: list[Letter] = []
    size = 0
    async for letter in letters:
        group.append(letter)
        size += len(letter.content.value)
        if len(group) >= LETTERS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group
