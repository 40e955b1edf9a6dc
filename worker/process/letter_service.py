"""DeadLetterService: what people have done with the letters of the dead-letter streams whose logs this worker owns."""

from __future__ import annotations

from typing import Any, Final

from millwheel.model.letters import LetterAction
from millwheel.rpc.errors import answering
from millwheel.rpc.v1 import dead_letter_pb2 as wire
from millwheel.rpc.v1.dead_letter_pb2_grpc import DeadLetterServiceServicer
from millwheel.worker.log.letters import LetterChange
from millwheel.worker.log.messages import LetterInfo, LettersAnswer, ListLetters, MarkLetters
from millwheel.worker.process.subscription_requests import LogRequests, invalid

__all__ = ["LetterService"]

_MAX_CHANGES: Final = 1_000
_ACTIONS: Final = frozenset(map(int, LetterAction))


class LetterService(DeadLetterServiceServicer):
    """Passes requests to the cores of logs. It makes no decisions."""

    def __init__(self, requests: LogRequests) -> None:
        """``requests``: those that wait for the answer of a log's core."""
        self._requests = requests

    async def ListLetterMarks(self, request: wire.ListLetterMarksRequest, context: Any) -> wire.ListLetterMarksResponse:
        """What the journal says of the letters that the log keeps."""
        return await answering(context, lambda: self._list(request))

    async def MarkLetters(self, request: wire.MarkLettersRequest, context: Any) -> wire.MarkLettersResponse:
        """Change letters. The answer comes when the change is durable."""
        return await answering(context, lambda: self._mark(request))

    async def _list(self, request: wire.ListLetterMarksRequest) -> wire.ListLetterMarksResponse:
        answer: LettersAnswer = await self._requests.ask(request.stream, request.incarnation, ListLetters)
        return _marks(answer.marks) if answer.marks is not None else wire.ListLetterMarksResponse()

    async def _mark(self, request: wire.MarkLettersRequest) -> wire.MarkLettersResponse:
        if not request.incarnation:
            raise invalid("a change without the log's incarnation", "name the log whose letters are meant")
        if len(request.changes) > _MAX_CHANGES:
            raise invalid(f"{len(request.changes):,} changes in one call", f"send at most {_MAX_CHANGES:,}")
        changes = [_change(one) for one in request.changes]
        if changes:
            await self._requests.ask(request.stream, request.incarnation, lambda asker: MarkLetters(asker, changes))
        return wire.MarkLettersResponse()


def _marks(found: LetterInfo) -> wire.ListLetterMarksResponse:
    response = wire.ListLetterMarksResponse(start_offset=found.start, end_offset=found.end, batch=found.batch)
    for state, first, end in found.runs:
        response.marks.add(state=wire.LetterState.ValueType(state), first_offset=first, end_offset=end)
    return response


def _change(change: wire.LetterChange) -> LetterChange:
    if int(change.action) not in _ACTIONS:
        raise invalid(f"a change with the unknown action {change.action}", "use a LetterAction of this version")
    if change.first_offset >= change.end_offset:
        raise invalid(f"a change of offsets {change.first_offset} to {change.end_offset}", "name at least one letter")
    return change.action, change.first_offset, change.end_offset
