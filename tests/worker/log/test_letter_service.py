"""DeadLetterService over gRPC: states and changes of letters, and requests that it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.model.letters import LetterAction, LetterState
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import RequestError
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1 import catalog_pb2
from millwheel.rpc.v1 import dead_letter_pb2 as wire
from millwheel.rpc.v1.dead_letter_pb2_grpc import DeadLetterServiceStub, add_DeadLetterServiceServicer_to_server
from millwheel.worker.log import DEAD_LETTER_RETENTION, DEFAULT_RETENTION
from millwheel.worker.process.building import retention_of
from millwheel.worker.process.letter_service import LetterService
from millwheel.worker.process.subscription_requests import LogRequests
from tests.worker.log.driver import LogDriver, fill

STREAM = "shop/dead-letters"


class Host:
    """The log of STREAM. It commits each event at once."""

    def __init__(self) -> None:
        self.driver = LogDriver(stream=STREAM)
        fill(self.driver, 0, 4)

    def post(self, event: Any) -> None:
        self.driver.handle(event)
        self.driver.run()
        while self.driver.letter_answers:
            answer = self.driver.letter_answers.pop()
            answer.asker.settle(answer)


@pytest.fixture
async def stub() -> AsyncIterator[Any]:
    host, server = Host(), create_server()
    requests = LogRequests(lambda stream, incarnation: host if stream == STREAM else None)
    add_DeadLetterServiceServicer_to_server(LetterService(requests), server)
    address = bind(server)
    await server.start()
    try:
        async with open_channel(address) as channel:
            yield DeadLetterServiceStub(channel)
    finally:
        await server.stop(None)


def change(action: int, first: int, end: int) -> wire.LetterChange:
    return wire.LetterChange(action=wire.LetterAction.ValueType(action), first_offset=first, end_offset=end)


async def mark(stub: Any, *changes: wire.LetterChange, stream: str = STREAM) -> None:
    request = wire.MarkLettersRequest(stream=stream, incarnation=IncarnationId(f"{stream}.log.1"), changes=changes)
    async with calling("the worker"):
        await stub.MarkLetters(request)


async def test_a_change_names_the_log_that_is_meant(stub: Any) -> None:
    with pytest.raises(RequestError, match="without the log's incarnation"):
        async with calling("the worker"):
            await stub.MarkLetters(wire.MarkLettersRequest(stream=STREAM, changes=[change(LetterAction.BEGIN, 0, 1)]))


async def test_changes_are_seen_in_the_states(stub: Any) -> None:
    await mark(stub, change(LetterAction.BEGIN, 0, 2), change(LetterAction.DISCARD, 3, 4))
    await mark(stub, change(LetterAction.CONFIRM, 0, 1))
    found = await stub.ListLetterMarks(wire.ListLetterMarksRequest(stream=STREAM))
    assert (found.start_offset, found.end_offset, found.batch) == (0, 4, 1)
    assert [(LetterState(one.state), one.first_offset, one.end_offset) for one in found.marks] == [
        (LetterState.REPLAYED, 0, 1),
        (LetterState.IN_REPLAY, 1, 2),
        (LetterState.DISCARDED, 3, 4),
    ]


@pytest.mark.parametrize(
    ("changes", "stream", "reason", "text"),
    [
        ([change(9, 0, 1)], STREAM, "INVALID_ARGUMENT", "unknown action 9"),
        ([change(1, 2, 2)], STREAM, "INVALID_ARGUMENT", "offsets 2 to 2"),
        ([change(1, 0, 1)] * 1_001, STREAM, "INVALID_ARGUMENT", "1,001 changes"),
        ([change(1, 0, 5)], STREAM, "OUT_OF_RANGE", "no letter 4"),
        ([change(1, 0, 1)], "other/dead-letters", "NOT_OWNER", "does not own the log"),
    ],
)
async def test_a_wrong_change_is_refused(
    stub: Any, changes: list[wire.LetterChange], stream: str, reason: str, text: str
) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        await mark(stub, *changes, stream=stream)
    assert refused.value.reason == reason


def test_dead_letters_are_kept_for_people() -> None:
    assert retention_of(catalog_pb2.StreamLogRecord(stream=STREAM)) == DEAD_LETTER_RETENTION
    assert retention_of(catalog_pb2.StreamLogRecord(stream="shop/bills")) == DEFAULT_RETENTION
