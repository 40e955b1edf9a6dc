"""The states of a topology's letters, from the owner of their log, and changes of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from millwheel.client.control import ControlClient
from millwheel.client.subscription.cursors import log_owner
from millwheel.model.incarnation import IncarnationId, number_of_incarnation
from millwheel.model.letters import LetterAction, LetterState
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS, PASSING, open_channel, retrying
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import dead_letter_pb2 as wire
from millwheel.rpc.v1.dead_letter_pb2_grpc import DeadLetterServiceStub

__all__ = ["LetterBook", "LetterStates", "runs_of"]

_CHANGES_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class LetterStates:
    """The states of the letters ``start .. end - 1`` at one moment.

    Attributes:
        start: The oldest letter that the log keeps.
        end: The offset of the next letter.
        batch: The batch of the letters in replay. Receivers know their ids together with it.
        runs: (state, first offset, offset after the last) of all letters that do not wait, in order.
    """

    start: int
    end: int
    batch: int
    runs: tuple[tuple[LetterState, int, int], ...]

    def state(self, offset: int) -> LetterState | None:
        """The state of a letter. None: the log does not have it, or not any more."""
        if not self.start <= offset < self.end:
            return None
        at = bisect_right(self.runs, offset, key=lambda run: run[1]) - 1
        return self.runs[at][0] if at >= 0 and offset < self.runs[at][2] else LetterState.WAITING

    def count(self, state: LetterState) -> int:
        """How many of the kept letters have a state."""
        if state is LetterState.WAITING:
            return self.end - self.start - sum(end - max(first, self.start) for _, first, end in self.runs)
        return sum(end - max(first, self.start) for one, first, end in self.runs if one is state)


class LetterBook:
    """What people have done with the letters of one topology. It follows the log to its next owners.

    ``log`` is the log's incarnation id. It never changes: offsets of another log would be other letters.
    """

    def __init__(self, control: ControlClient, stream: str, patience: float, expected: int = 0) -> None:
        """``expected``: the number of the log that is meant. 0: the present one."""
        self.log = IncarnationId("")
        self._expected = expected
        self._control = control
        self._stream = stream
        self._patience = patience

    async def open(self) -> None:
        """Find the log.

        Raises:
            RequestError: The topology is unknown (NOT_FOUND), or no worker owns the log (UNAVAILABLE).
        """
        await self._calling(self._owner)

    @property
    def log_number(self) -> int:
        """The number of the log's incarnation."""
        return int(number_of_incarnation(self.log))

    async def states(self) -> LetterStates:
        """The states of all kept letters. Every change that was answered before is among them."""

        async def ask(stub: Any) -> wire.ListLetterMarksResponse:
            request = wire.ListLetterMarksRequest(stream=self._stream, incarnation=self.log)
            answer: wire.ListLetterMarksResponse = await stub.ListLetterMarks(request, timeout=DEFAULT_DEADLINE_SECONDS)
            return answer

        found = await self._ask(ask)
        marks = ((LetterState(one.state), one.first_offset, one.end_offset) for one in found.marks)
        runs = tuple(run for run in marks if run[2] > found.start_offset)
        return LetterStates(found.start_offset, found.end_offset, found.batch, runs)

    async def change(self, action: LetterAction, offsets: Iterable[int]) -> None:
        """Change letters durably. Those whose state does not allow the change stay as they are."""
        changes = [
            wire.LetterChange(action=wire.LetterAction.ValueType(action), first_offset=first, end_offset=end)
            for first, end in runs_of(offsets)
        ]
        for at in range(0, len(changes), _CHANGES_AT_ONCE):
            request = wire.MarkLettersRequest(
                stream=self._stream, incarnation=self.log, changes=changes[at : at + _CHANGES_AT_ONCE]
            )
            await self._ask(partial(_mark, request))

    async def _ask(self, call: Callable[[Any], Any]) -> Any:
        async def once() -> Any:
            address = await self._owner()
            async with calling(address), open_channel(address) as channel:
                return await call(DeadLetterServiceStub(channel))

        return await self._calling(once)

    async def _calling(self, call: Callable[[], Any]) -> Any:
        return await retrying(call, patience=self._patience, passing=PASSING)

    async def _owner(self) -> str:
        """The address of the log's owner."""
        stream, address, incarnation = await log_owner(self._control, self._stream)
        if not address:
            raise RequestError(FailureCode.UNAVAILABLE, f"stream {stream!r} has no log yet", "try again")
        number = int(number_of_incarnation(incarnation))
        if self.log not in ("", incarnation) or self._expected not in (0, number):
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"the log of stream {stream!r} was replaced: its letters are others",
                "list the letters again",
                reason="STREAM_LOG_REPLACED",
            )
        self.log = incarnation
        return address


async def _mark(request: wire.MarkLettersRequest, stub: Any) -> None:
    await stub.MarkLetters(request, timeout=DEFAULT_DEADLINE_SECONDS)


def runs_of(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first offset, offset after the last) of each run of consecutive offsets, in order."""
    first = end = -1
    for offset in sorted(set(offsets)):
        if offset != end:
            if end >= 0:
                yield first, end
            first = offset
        end = offset + 1
    if end >= 0:
        yield first, end
