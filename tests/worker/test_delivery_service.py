"""Deliveries between workers over loopback gRPC: connections, service and hosts, through breaks (6.1.1)."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import grpc
import pyarrow as pa
import pytest

from millwheel.model.catalog import Catalog
from millwheel.model.deliveries import PositionIds, Sender
from millwheel.rpc.channel import open_channel
from millwheel.rpc.columns import RecordColumns
from millwheel.rpc.deliveries import decode_delivery, encode_delivery
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1 import delivery_pb2_grpc
from millwheel.worker.messages import Acknowledged, AnswerDelivery, Delivery, DeliveryOrder, Resend
from millwheel.worker.process import delivery_service
from millwheel.worker.process.delivery_service import DeliveryService
from millwheel.worker.process.destinations import HostChannel
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.peers import PeerConnection
from millwheel.worker.process.quotas import RecordQuotas
from millwheel.worker.process.run_queue import RunQueue
from tests.faulty_store import FaultyStore
from tests.patience import patience, until
from tests.serving import LoopbackServer
from tests.worker.doubles import ScriptedCore, ScriptedPeers, delivery

ACKED, FULL = wire.DELIVERY_OUTCOME_ACKED, wire.DELIVERY_OUTCOME_REFUSED_FULL


def hosted(react: Callable[[Any], Sequence[Any]] = lambda event: (), journal: str = "c.1.j1") -> CoreHost:
    queue = RunQueue(asyncio.get_running_loop()).share("t")
    return CoreHost(journal, ScriptedCore(react), FaultyStore(), ScriptedPeers(), queue)


def core_of(host: CoreHost) -> ScriptedCore:
    assert isinstance(host.core, ScriptedCore)
    return host.core


async def unprepared(request: wire.PrepareRecordsRequest) -> wire.PrepareRecordsResponse:
    """No test of this module asks for keys."""
    raise AssertionError(request)


@dataclass
class Here:
    """An interval that runs here."""

    host: CoreHost
    topology: str = "t"
    known_senders: dict[str, int] = field(default_factory=dict)


def delivering(
    hosts: dict[str, CoreHost], port: int = 0, quotas: RecordQuotas | None = None
) -> AbstractAsyncContextManager[str]:
    """A worker's delivery service."""
    service = DeliveryService(
        {name: Here(host) for name, host in hosts.items()}, unprepared, quotas or RecordQuotas(Catalog())
    )
    return LoopbackServer(partial(delivery_pb2_grpc.add_DeliveryServiceServicer_to_server, service), port=port)


async def test_batches_reach_the_core_whole_and_acks_come_back() -> None:
    receiver = hosted(lambda event: [AnswerDelivery(event, ACKED)])
    sender = hosted(journal="u.1.j1")
    async with delivering({"c.1.j1": receiver}) as address:
        peer = PeerConnection(address, open_channel)
        channel = HostChannel(sender)
        for token in range(1, 101):
            peer.send(delivery(token, 3), channel)
        await until(lambda: len(core_of(sender).events) >= 100)
        await peer.close()
    assert {event.token for event in core_of(sender).of(Acknowledged)} == set(range(1, 101))
    got = core_of(receiver).of(Delivery)
    assert [one.keys for one in got] == [[b"k0", b"k1", b"k2"]] * 100
    assert [one.timestamps for one in got] == [delivery(1, 3).timestamps] * 100
    assert got[4].sender == delivery(5, 3).sender


async def test_answers_in_parts_all_reach_the_sender() -> None:
    """Some records are refused, some ACKed at once, and some later. Only the refused ones are sent again."""

    def react(event: Any) -> Sequence[Any]:
        if type(event) is not Delivery:
            return ()
        return [
            AnswerDelivery(event, FULL, message="full", only=[2]),
            AnswerDelivery(event, ACKED, [1, 2]),
            AnswerDelivery(event, ACKED, [2]),
        ]

    receiver, sender = hosted(react), hosted(journal="u.1.j1")
    async with delivering({"c.1.j1": receiver}) as address:
        peer = PeerConnection(address, open_channel)
        peer.send(delivery(7, 3), HostChannel(sender))
        await until(lambda: len(core_of(sender).events) >= 3)
        await peer.close()
    acked = [list(event.remaining) for event in core_of(sender).of(Acknowledged)]
    assert acked == [[1, 2], [2]]
    assert [event.tokens for event in core_of(sender).of(Resend)] == [[7]]


async def test_acks_of_whole_batches_share_messages_overtaking_nothing() -> None:
    """Ten batches arrive before the first answer. Three of the answers are partial."""
    held: list[Delivery] = []

    def react(event: Any) -> Sequence[Any]:
        held.append(event)
        if len(held) < 10:
            return ()
        answers = [AnswerDelivery(one, ACKED) for one in held]
        answers[4:5] = [AnswerDelivery(held[4], FULL, message="full", only=[1]), AnswerDelivery(held[4], ACKED, [1])]
        answers[8] = AnswerDelivery(held[7], ACKED, (), "had taken effect before")
        answers.insert(7, AnswerDelivery(held[6], ACKED, [2]))
        return answers

    async with delivering({"c.1.j1": hosted(react)}) as address, open_channel(address) as channel:

        async def ten() -> AsyncIterator[wire.DeliverRequest]:
            for token in range(1, 11):
                yield encode_delivery(delivery(token, 3), token)

        call = delivery_pb2_grpc.DeliveryServiceStub(channel).Deliver(ten())
        answers = [
            (answer.outcome, answer.token, list(answer.also), list(answer.indexes), answer.message)
            async for answer in call
        ]
    assert answers == [
        (ACKED, 1, [2, 3, 4], [], ""),
        (FULL, 5, [], [1], "full"),
        (ACKED, 5, [], [1], ""),
        (ACKED, 6, [], [], ""),
        (ACKED, 7, [], [2], ""),
        (ACKED, 7, [], [], ""),
        (ACKED, 8, [], [], "had taken effect before"),
        (ACKED, 9, [10], [], ""),
    ]


async def test_an_absent_or_draining_interval_is_answered_for_at_once() -> None:
    receiver, sender = hosted(), hosted(journal="u.1.j1")
    async with delivering({"c.1.j1": receiver}) as address:
        peer = PeerConnection(address, open_channel)
        channel = HostChannel(sender)
        peer.send(delivery(1, journal="elsewhere.1.j1"), channel)
        peer.send(delivery(2), channel)
        await until(lambda: core_of(sender).of(Resend))
        assert core_of(sender).of(Resend)[0].tokens == [1]
        await until(lambda: core_of(receiver).events)
        await receiver.close()
        await until(lambda: len(core_of(sender).of(Resend)) == 2)
        await peer.close()
    assert core_of(sender).of(Resend)[1].tokens == [2]


@pytest.mark.guarantee("G1")
async def test_unanswered_batches_are_sent_again_after_a_broken_stream() -> None:
    receiver, sender = hosted(), hosted(journal="u.1.j1")
    async with delivering({"c.1.j1": receiver}) as address:
        peer = PeerConnection(address, open_channel)
        channel = HostChannel(sender)
        for token in (1, 2):
            peer.send(delivery(token), channel)
        await until(lambda: len(core_of(receiver).events) == 2)

    def send_again(event: Any) -> Sequence[Any]:
        if type(event) is Resend:
            for token in event.tokens or ():
                peer.send(delivery(token), channel)
        return ()

    core_of(sender).react = send_again
    core_of(receiver).react = lambda event: [AnswerDelivery(event, ACKED)] if type(event) is Delivery else ()
    await until(lambda: core_of(sender).of(Resend))
    assert core_of(sender).of(Resend)[0].tokens == [1, 2]
    async with delivering({"c.1.j1": receiver}, int(address.rpartition(":")[2])):
        await until(lambda: {event.token for event in core_of(sender).of(Acknowledged)} == {1, 2})
        await peer.close()


@pytest.mark.guarantee("G1")
async def test_unanswered_batches_are_sent_again_after_a_disconnect() -> None:
    """A silent worker loses its intervals, and its connection is closed.

    Regression: batches on the way to it were never sent to the next owners.
    """
    receiver, sender = hosted(), hosted(journal="u.1.j1")
    async with delivering({"c.1.j1": receiver}) as address:
        peer = PeerConnection(address, open_channel)
        peer.send(delivery(1), HostChannel(sender))
        await until(lambda: core_of(receiver).events)
        peer.send(delivery(2), HostChannel(sender))
        await peer.close()
        await until(lambda: {token for event in core_of(sender).of(Resend) for token in event.tokens} == {1, 2})


@pytest.mark.guarantee("G13")
async def test_what_exceeds_a_connections_queue_is_sent_later() -> None:
    sender = hosted(journal="u.1.j1")
    peer = PeerConnection("127.0.0.1:1", open_channel)
    channel = HostChannel(sender)
    for token in range(1, 1_101):
        peer.send(delivery(token), channel)
    await until(lambda: core_of(sender).of(Resend))
    assert set(range(1_001, 1_101)) <= set(core_of(sender).of(Resend)[0].tokens)
    await peer.close()


async def test_a_call_ends_when_its_sender_ended_and_all_is_answered() -> None:
    held: list[Delivery] = []

    def react(event: Any) -> Sequence[Any]:
        if type(event) is not Delivery:
            return [AnswerDelivery(one, ACKED, [0]) for one in held]
        held.append(event)
        return [AnswerDelivery(event, FULL, message="full", only=[0])]

    receiver = hosted(react)
    async with delivering({"c.1.j1": receiver}) as address, open_channel(address) as channel:

        async def one() -> AsyncIterator[wire.DeliverRequest]:
            yield encode_delivery(delivery(1, 2), 1)

        call = delivery_pb2_grpc.DeliveryServiceStub(channel).Deliver(one())
        answers = []

        async def read() -> None:
            async for answer in call:
                answers.append((answer.outcome, list(answer.indexes)))

        reading = asyncio.create_task(read())
        await until(lambda: len(answers) == 1)
        assert not reading.done()
        receiver.post(Resend())
        await asyncio.wait_for(reading, patience(5))
    assert answers == [(FULL, [0]), (ACKED, [0])]


async def test_a_sender_is_judged_once_for_each_sequencer() -> None:
    """A refusal is not remembered: the catalog may come at any moment."""
    receiver = hosted(lambda event: [AnswerDelivery(event, ACKED)])
    answers, judged = iter([False, True]), list[int]()

    def knows(host: Any, sender: Sender) -> bool:
        judged.append(sender.sequencer)
        return next(answers)

    service = DeliveryService({"c.1.j1": Here(receiver)}, unprepared, RecordQuotas(Catalog()), knows)
    add = partial(delivery_pb2_grpc.add_DeliveryServiceServicer_to_server, service)
    async with LoopbackServer(add) as address:
        sender = hosted(journal="u.1.j1")
        peer, channel = PeerConnection(address, open_channel), HostChannel(sender)
        for token in (1, 2, 3):
            peer.send(delivery(token, 3), channel)
            await until(lambda token=token: len(core_of(sender).events) == token)  # type: ignore[misc]
        await peer.close()
    assert [event.token for event in core_of(receiver).of(Delivery)] == [2, 3]
    assert len(judged) == 2


async def test_a_fault_of_the_worker_ends_the_call(caplog: pytest.LogCaptureFixture) -> None:
    """All batches that its sender has for this worker would wait in the call, and there is no word of a reason."""

    def knows(host: Any, sender: Sender) -> bool:
        raise LookupError("a fault")

    service = DeliveryService({"c.1.j1": Here(hosted())}, unprepared, RecordQuotas(Catalog()), knows)
    add = partial(delivery_pb2_grpc.add_DeliveryServiceServicer_to_server, service)
    async with LoopbackServer(add) as address, open_channel(address) as channel:
        stub: Any = delivery_pb2_grpc.DeliveryServiceStub(channel)
        call = stub.Deliver(timeout=patience(5))
        await call.write(encode_delivery(delivery(1, 2), 1))
        with pytest.raises(grpc.aio.AioRpcError, match="a fault") as ended:
            await call.read()
    assert ended.value.code() is grpc.StatusCode.INTERNAL
    assert "LookupError: a fault" in caplog.text


def by_columns() -> Delivery:
    records = RecordColumns(pa.record_batch({"key": ["a", "b"]}), array("q", [1, 2]), "key")
    return replace(delivery(1, 2), keys=records.keys(), values=records, timestamps=records.timestamps)


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("sent", [by_columns(), delivery(1, 2)], ids=["columns", "run"])
async def test_an_earlier_version_owns_no_newer_delivery(sent: Delivery) -> None:
    """A worker that has not ended yet when the format rises would ACK columns without their records."""
    sent = replace(sent, ids=PositionIds("p", 0, range(5, 7), (), True))
    request = encode_delivery(sent, 1)
    assert decode_delivery(request, None).journal == "c.1.j1"
    request.ClearField("columns")
    request.ClearField("newer_journal")
    request.positions.ClearField("complete")
    request.positions.ClearField("first")
    receiver = hosted(lambda event: [AnswerDelivery(event, ACKED)])
    async with delivering({"c.1.j1": receiver}) as address, open_channel(address) as channel:

        async def requests() -> AsyncIterator[wire.DeliverRequest]:
            yield request

        call = delivery_pb2_grpc.DeliveryServiceStub(channel).Deliver(requests())
        assert [answer.outcome async for answer in call] == [wire.DELIVERY_OUTCOME_NOT_OWNER]


@pytest.mark.guarantee("G8", section="6.1.1")
async def test_a_worker_without_pyarrow_gets_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that a source has read as columns comes again as rows, under the same ids."""
    monkeypatch.setattr(delivery_service, "has_columns", lambda: False)
    receiver, sender = hosted(lambda event: [AnswerDelivery(event, ACKED)]), hosted(journal="u.1.j1")
    sent = replace(by_columns(), token=4, ids=PositionIds("p", 0, range(5, 7), (), True))
    async with delivering({"c.1.j1": receiver}) as address:
        peer = PeerConnection(address, open_channel)
        peer.send(sent, HostChannel(sender))
        await until(lambda: core_of(sender).of(Resend))
        assert core_of(receiver).of(Delivery) == []
        peer.send(sent, HostChannel(sender))
        await until(lambda: core_of(sender).of(Acknowledged) or len(core_of(sender).of(Resend)) > 1)
        await peer.close()
    (got,) = core_of(receiver).of(Delivery)
    assert (got.keys, got.values, list(got.timestamps)) == (list(sent.keys), list(sent.values), [1, 2])
    assert (got.ids.positions, got.ids.complete) == (range(5, 7), True)
    assert isinstance(sent.values, RecordColumns), "another worker may read columns"


@pytest.mark.guarantee("G9", section="6.1.1")
async def test_columns_of_an_interval_reach_another_worker() -> None:
    receiver, sender = hosted(lambda event: [AnswerDelivery(event, ACKED)]), hosted(journal="u.1.j1")
    sent = replace(by_columns(), token=4, ids=PositionIds("p", 0, [5, 9], (), True), order=DeliveryOrder(4, 0, 1))
    async with delivering({"c.1.j1": receiver}) as address:
        peer = PeerConnection(address, open_channel)
        peer.send(sent, HostChannel(sender))
        await until(lambda: core_of(sender).of(Acknowledged))
        await peer.close()
    (got,) = core_of(receiver).of(Delivery)
    assert isinstance(got.values, RecordColumns)
    assert (list(got.keys), got.values[:], got.timestamps) == (list(sent.keys), sent.values[:], sent.timestamps)
    assert (got.ids.positions, got.ids.complete, got.order) == ([5, 9], True, sent.order)
