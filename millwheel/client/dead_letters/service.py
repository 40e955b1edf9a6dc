"""The dead letters of one topology, for programs and for the command line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from types import TracebackType

from millwheel.client.control import DEFAULT_ADDRESS, ControlClient
from millwheel.client.dead_letters.letters import Letter, LetterFilter, LetterPage
from millwheel.client.dead_letters.replaying import Replay
from millwheel.client.dead_letters.reports import DiscardReport, ReplayReport
from millwheel.client.dead_letters.sending import LetterSender
from millwheel.client.dead_letters.states import LetterBook, LetterStates
from millwheel.client.dead_letters.targets import LetterTargets, NoTargetError
from millwheel.client.subscription import From, Subscription
from millwheel.model.letters import LetterAction, LetterState
from millwheel.model.stream_names import dead_letter_stream
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.sdk.dead_letters import DeadLetter

__all__ = ["DeadLetters"]

_DISCARDED_AT_ONCE = 1_000
DEFAULT_LIMIT = 100


def _silent(report: object) -> None:
    """Show no progress."""


class DeadLetters:
    """The dead letters of one topology: list, show, replay and discard them. Use it with ``async with``.

    Args:
        topology: The topology's name.
        address: A master's address, as host or host:port; several with commas between them.
        patience: Seconds to wait for a cluster that cannot be reached, and for the next ACK of a replay.
        log: The log whose letters are meant, as :attr:`log` of an earlier object. 0: the present one.

    Raises:
        RequestError: When it is entered: the topology is unknown (NOT_FOUND), no worker owns the letters' log, or the
            topology has another log by now (FAILED_PRECONDITION).
    """

    def __init__(self, topology: str, address: str = DEFAULT_ADDRESS, *, patience: float = 60.0, log: int = 0) -> None:
        self.topology = topology
        self.stream = dead_letter_stream(topology)
        self._address = address
        self._patience = patience
        self._control = ControlClient(address)
        self._book = LetterBook(self._control, self.stream, patience, log)

    async def __aenter__(self) -> DeadLetters:
        try:
            await self._book.open()
        except BaseException:
            await self._control.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._control.close()

    @property
    def log(self) -> int:
        """The number of the letters' log. A topology that is submitted again has another log, with other letters.

        Offsets name letters within one log. So does ``LetterPage.following``.
        """
        return self._book.log_number

    async def states(self) -> LetterStates:
        """What people have done with the letters that the log keeps."""
        return await self._book.states()

    async def page(self, wanted: LetterFilter, first: int = 0, limit: int = DEFAULT_LIMIT) -> LetterPage:
        """The first letters that are meant.

        Args:
            wanted: Which letters are meant.
            first: The offset from which on to look. ``LetterPage.following`` of the page before.
            limit: The most letters of the page.
        """
        found: list[Letter] = []
        async with aclosing(self.letters(wanted, first)) as letters:
            async for letter in letters:
                if len(found) >= limit:
                    return LetterPage(found, letter.offset)
                found.append(letter)
        return LetterPage(found, None)

    async def get(self, offset: int) -> Letter:
        """One letter, in any state.

        Raises:
            RequestError: The log does not have it, or not any more (NOT_FOUND).
        """
        page = await self.page(LetterFilter(frozenset({offset}), states=frozenset(LetterState)), limit=1)
        if page.letters:
            return page.letters[0]
        states = await self.states()
        kept = f"it keeps {states.start:,} to {states.end - 1:,}" if states.end > states.start else "it keeps none"
        raise RequestError(
            FailureCode.NOT_FOUND,
            f"topology {self.topology!r} has no dead letter {offset:,} now: {kept}",
            "list them with `millwheel dead-letter list`",
            reason="LETTER_UNKNOWN",
        )

    async def letters(self, wanted: LetterFilter, first: int = 0) -> AsyncGenerator[Letter, None]:
        """The letters that are meant, of those that exist now, in order."""
        states = await self.states()
        for begin, end in wanted.ranges(max(first, states.start), states.end):
            async with aclosing(self._between(begin, end, states)) as letters:
                async for letter in letters:
                    if wanted.takes(letter):
                        yield letter

    async def _between(self, begin: int, end: int, states: LetterStates) -> AsyncGenerator[Letter, None]:
        """The letters ``begin .. end - 1`` that the log still keeps."""
        async with Subscription(
            self.stream,
            start=From.OLDEST,
            offset=begin,
            record_type=DeadLetter,
            address=self._address,
            patience=self._patience,
        ) as subscription:
            async for batch in subscription.below(end):
                for offset, _, content in batch:
                    if offset < end:
                        yield Letter(self.topology, offset, content, states.state(offset) or LetterState.WAITING)

    async def refusals(self, letters: Iterable[Letter]) -> dict[int, str]:
        """Why letters cannot be replayed, by their offsets. Those that can are not in it.

        Raises:
            RequestError: The masters do not answer.
        """
        targets, found = LetterTargets(self._control), dict[int, str]()
        for letter in letters:
            try:
                await targets.check(letter)
            except NoTargetError as error:
                found[letter.offset] = str(error)
        return found

    async def replay(
        self,
        wanted: LetterFilter,
        progress: Callable[[ReplayReport], None] = _silent,
        *,
        within: float | None = None,
    ) -> ReplayReport:
        """Send the records of letters again, each to the computation that failed. Each takes effect once.

        A replay that was killed is completed by the next one. Two at once are no harm.

        Args:
            wanted: Which letters are meant. Those that were replayed or discarded never are.
            progress: Called from time to time.
            within: Seconds after which nothing more is sent. What is left then is left to another replay. None: all
                is sent.

        Returns:
            What became of each letter. Letters that failed again are new letters.

        Raises:
            RequestError: The cluster cannot be reached for long, or refuses a record for good.
        """
        targets = LetterTargets(self._control)
        clock = asyncio.get_running_loop().time
        end = None if within is None else clock() + within
        sender = LetterSender(targets, self._book.log, self._patience, end)
        replay = Replay(self._book, targets, sender, progress, lambda: end is not None and clock() >= end)
        async with aclosing(self.letters(wanted)) as letters:
            return await replay.run(letters)

    async def discard(
        self,
        wanted: LetterFilter,
        *,
        also_in_replay: bool = False,
        progress: Callable[[DiscardReport], None] = _silent,
    ) -> DiscardReport:
        """Give letters up. The log still keeps them for its retention.

        Args:
            wanted: Which letters are meant.
            also_in_replay: Whether also letters whose replay has begun. Their records may have taken effect, or may
                still do so.
            progress: Called from time to time.
        """
        report = DiscardReport()
        offsets: list[int] = []
        async with aclosing(self.letters(wanted)) as letters:
            async for letter in letters:
                offsets.append(letter.offset)
                if len(offsets) >= _DISCARDED_AT_ONCE:
                    await self._discard(offsets, also_in_replay, report)
                    offsets = []
                    progress(report)
        if offsets:
            await self._discard(offsets, also_in_replay, report)
        return report

    async def _discard(self, offsets: list[int], also_in_replay: bool, report: DiscardReport) -> None:
        action = LetterAction.DISCARD_ALSO_IN_REPLAY if also_in_replay else LetterAction.DISCARD
        await self._book.change(action, offsets)
        states = await self._book.states()
        groups = {LetterState.DISCARDED: report.discarded, LetterState.IN_REPLAY: report.in_replay}
        for offset in offsets:
            groups.get(states.state(offset) or LetterState.WAITING, report.elsewhere).append(offset)
