"""Subscriptions over loopback gRPC: the service, the client library and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec
import pytest
from typer.testing import CliRunner

from millwheel.cli.stream import app
from millwheel.client.control import ControlClient
from millwheel.client.shown_values import show_value
from millwheel.client.subscription import Batch, BlockingSubscription, From, Subscription
from millwheel.client.subscription.cursors import CursorStatus, delete_cursor, list_cursors
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.channel import open_channel
from millwheel.rpc.clock import steady_now
from millwheel.rpc.errors import answering
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.packed_values import PackedValues
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1 import common_pb2 as common
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.rpc.v1.control_pb2_grpc import RoutingServiceServicer, add_RoutingServiceServicer_to_server
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.rpc.v1.subscription_pb2_grpc import SubscriptionServiceStub, add_SubscriptionServiceServicer_to_server
from millwheel.store.memory import MemoryStore
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.log import LogConfig, LogCore, LogSettings
from millwheel.worker.log.sessions import SubscriberSession
from millwheel.worker.messages import AcceptSequencer, Delivery, GroupWatermarks
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.log_service import LogService
from millwheel.worker.process.run_queue import RunQueue
from tests.kept import kept
from tests.patience import patience, until
from tests.worker import doubles

STREAM = "windows"
JOURNAL = "log.windows.1.j1"


class _Peers(doubles.ScriptedPeers):
    """The peers of a log: an authority that accepts it, and senders that are all alive."""

    async def accept(self, request: AcceptSequencer) -> int:
        return max((one.output for one in self.reports), default=MIN_TIMESTAMP)

    async def sequence_lives(self, sequence: str) -> bool:
        return True


class _Answers:
    """A channel that takes the answer to one delivery."""

    def __init__(self) -> None:
        self.acked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reply(self, token: int, outcome: DeliveryOutcome.ValueType, indexes: Sequence[int], message: str) -> None:
        if outcome == DeliveryOutcome.DELIVERY_OUTCOME_ACKED and not indexes and not self.acked.done():
            self.acked.set_result(None)


class _Worker:
    def __init__(self, owner: Callable[[_Worker, str], CoreHost | None]) -> None:
        self.service = LogService(lambda stream, log: owner(self, log) if stream == STREAM else None)
        self.server = create_server()
        add_SubscriptionServiceServicer_to_server(self.service, self.server)
        self.address = bind(self.server)


class Cluster(RoutingServiceServicer):
    """Two workers and the routing service. ``move`` moves the log, and the routing names its owner."""

    def __init__(self, settings: LogSettings) -> None:
        self.settings = settings
        self.store = MemoryStore()
        self.peers = _Peers()
        self.queue = RunQueue(asyncio.get_running_loop()).share("t")
        self.form = specs.VALUE_FORMAT_RAW
        self.incarnation = IncarnationId("log.windows.1")
        """The log's incarnation in the routing."""
        self.served = ""
        """The log's incarnation that the owner serves."""
        self.workers = [_Worker(self._host_of), _Worker(self._host_of)]
        self.owner: _Worker | None = None
        self.host: CoreHost | None = None
        self.sequencer = 0
        self.position = 0
        self.server = create_server()
        add_RoutingServiceServicer_to_server(self, self.server)
        self.address = bind(self.server)

    def _host_of(self, worker: _Worker, incarnation: str) -> CoreHost | None:
        """Find the log's host, as workers do. ``incarnation`` may be newer than that of the host."""
        return self.host if worker is self.owner and incarnation in ("", self.served) else None

    async def WatchRouting(
        self, request: control.WatchRoutingRequest, context: Any
    ) -> AsyncIterator[control.WatchRoutingResponse]:
        response = control.WatchRoutingResponse(stream=specs.StreamSpec(name=STREAM, format=self.form))
        log = response.consumers.add(incarnation=self.incarnation, log=True)
        interval = log.intervals.intervals.add(journal=JOURNAL)
        if self.owner is not None:
            interval.owner.CopyFrom(common.Endpoint(worker_id="w", address=self.owner.address))
        yield response

    async def ListAuthorities(
        self, request: control.ListAuthoritiesRequest, context: Any
    ) -> control.ListAuthoritiesResponse:
        """The test cluster has no authority."""
        return control.ListAuthoritiesResponse()

    async def DeleteStreamLog(
        self, request: control.DeleteStreamLogRequest, context: Any
    ) -> control.DeleteStreamLogResponse:
        """The test cluster's log stays."""
        return control.DeleteStreamLogResponse(stream=request.stream)

    async def EnsureStreamLog(
        self, request: control.EnsureStreamLogRequest, context: Any
    ) -> control.EnsureStreamLogResponse:
        async def work() -> control.EnsureStreamLogResponse:
            if request.stream != STREAM:
                raise RequestError(FailureCode.NOT_FOUND, f"there is no stream {request.stream!r}", "list them")
            answer = control.EnsureStreamLogResponse(incarnation=self.incarnation, journal=JOURNAL)
            answer.stream.CopyFrom(specs.StreamSpec(name=STREAM, format=self.form))
            if self.owner is not None:
                answer.owner.CopyFrom(common.Endpoint(worker_id="w", address=self.owner.address))
            return answer

        return await answering(context, work)

    # Changes of the log.

    async def take(self, worker: int) -> None:
        """A worker takes the log, as its first owner or after ``leave``."""
        self.sequencer += 1
        owner, self.served = self.workers[worker], self.incarnation
        config = LogConfig(
            STREAM,
            self.incarnation,
            JOURNAL,
            self.sequencer,
            frozenset({"injector/windows"}),
            settings=self.settings,
        )
        core, perform = LogCore(config), owner.service.perform
        self.host = CoreHost(JOURNAL, core, self.store, self.peers, self.queue, subscribers=perform, clock=steady_now)
        self.host.start()
        self.owner = owner

    async def leave(self) -> None:
        """The owner releases the log."""
        assert self.host is not None
        assert self.owner is not None
        host, owner, self.host, self.owner = self.host, self.owner, None, None
        await host.close()
        owner.service.dropped(STREAM)

    async def move(self, worker: int) -> None:
        """The log goes to another worker."""
        await self.leave()
        await self.take(worker)

    async def produce(self, values: Sequence[bytes], timestamps: list[int] | None = None) -> None:
        """Deliver records, again and again until they are ACKed."""
        ids = PositionIds("windows/p/0", 0, list(range(self.position, self.position + len(values))))
        self.position += len(values)
        sender = Sender("injector/windows/p", 1, None, "injector/windows")
        answers = _Answers()
        while not answers.acked.done():
            if self.host is not None:
                stamps = timestamps or [1_000_000] * len(values)
                self.host.post(
                    Delivery(
                        IncarnationId("log"),
                        JOURNAL,
                        STREAM,
                        sender,
                        ids,
                        [b""] * len(values),
                        values,
                        stamps,
                        0,
                        answers,
                    )
                )
            await asyncio.wait([answers.acked], timeout=0.02)

    def watermark(self, value: int) -> None:
        """The authority broadcasts the injectors' watermark."""
        assert self.host is not None
        self.host.post(GroupWatermarks({"injector/windows": value}))


@asynccontextmanager
async def cluster_of(settings: LogSettings | None = None) -> AsyncIterator[Cluster]:
    """A cluster whose first worker owns the log."""
    cluster = Cluster(settings or LogSettings())
    run = cluster.store.create_journal(JOURNAL)
    await run
    servers: list[grpc.aio.Server] = [cluster.server, *(worker.server for worker in cluster.workers)]
    for server in servers:
        await server.start()
    await cluster.take(0)
    try:
        yield cluster
    finally:
        if cluster.host is not None:
            await cluster.leave()
        for server in servers:
            await server.stop(None)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with cluster_of() as running:
        yield running


def named(first: int, count: int) -> list[bytes]:
    return [b"record %d" % number for number in range(first, first + count)]


async def collected(subscription: Subscription, count: int) -> list[Batch]:
    batches: list[Batch] = []
    async for batch in subscription:
        batches.append(batch)
        if sum(map(len, batches)) >= count:
            break
    return batches


def offsets(batches: list[Batch]) -> list[int]:
    return [offset for batch in batches for offset, _, _ in batch]


async def test_a_cursor_delivers_what_is_logged_and_not_yet_acked(cluster: Cluster) -> None:
    await cluster.produce(named(0, 5), [10, 20, 30, 40, 50])
    async with Subscription(STREAM, cursor="c", address=cluster.address) as first:
        batches = await collected(first, 5)
        assert [one for batch in batches for one in batch] == [
            (offset, offset * 10 + 10, b"record %d" % offset) for offset in range(5)
        ]
        await first.ack(3)
        await first.flush()
        assert first.durable == 3
    async with Subscription(STREAM, cursor="c", address=cluster.address) as second:
        assert offsets(await collected(second, 2)) == [3, 4]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 255])
async def test_packed_values_of_any_length_come_as_others(cluster: Cluster, size: int) -> None:
    values = [b"%d" % number * size for number in range(3)]
    await cluster.produce(PackedValues.pack([b"x" * size for _ in values]))
    await cluster.produce(values)
    async with Subscription(STREAM, cursor="c", address=cluster.address) as subscription:
        batches = await collected(subscription, 6)
    assert [value for batch in batches for value in batch.values] == [b"x" * size] * 3 + values


@pytest.mark.guarantee("G1")
async def test_the_program_sees_every_offset_once_while_the_log_moves(cluster: Cluster) -> None:
    total = 3_000
    cluster.settings = LogSettings(checkpoint_entries=5)

    async def produce() -> None:
        for first in range(0, total, 50):
            await cluster.produce(named(first, 50))

    async def wander() -> None:
        for step in range(8):
            await asyncio.sleep(0.05)
            await cluster.move((step + 1) % 2)

    producing, wandering = asyncio.ensure_future(produce()), asyncio.ensure_future(wander())
    seen: list[tuple[int, bytes]] = []
    async with Subscription(STREAM, cursor="c", address=cluster.address, window=400, auto_ack=True) as subscription:
        async for batch in subscription:
            seen += [(offset, value) for offset, _, value in batch]
            if len(seen) >= total:
                break
        await asyncio.gather(producing, wandering)
        assert seen == list(enumerate(named(0, total)))
        assert subscription.missed == 0


async def test_a_tail_begins_at_an_offset(cluster: Cluster) -> None:
    await cluster.produce(named(0, 5))
    async with Subscription(STREAM, offset=3, address=cluster.address) as tail:
        assert offsets(await collected(tail, 2)) == [3, 4]
    with pytest.raises(RequestError, match="no offset 6"):
        await Subscription(STREAM, offset=6, address=cluster.address, patience=0.2).__aenter__()


async def test_a_tail_goes_on_where_it_was_when_the_log_moves(cluster: Cluster) -> None:
    await cluster.produce(named(0, 3))
    async with Subscription(STREAM, address=cluster.address, watermarks=True) as tail:
        cluster.watermark(500)
        moved = await anext(tail)
        assert (len(moved), moved.watermark, moved.next_offset) == (0, 500, 3)
        await cluster.produce(named(3, 2))
        assert offsets(await collected(tail, 2)) == [3, 4]
        await cluster.leave()
        await asyncio.sleep(0.05)
        await cluster.take(1)
        await cluster.produce(named(5, 2))
        assert offsets(await collected(tail, 2)) == [5, 6]


@pytest.mark.guarantee("G8", section="7.1")
async def test_a_subscriber_leaves_a_paused_owner_for_its_successor(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.client.subscription.reading.MAX_SILENCE_SECONDS", 0.1)
    await cluster.produce(named(0, 2))
    async with Subscription(STREAM, cursor="c", address=cluster.address) as subscription:
        batches = await collected(subscription, 2)
        paused, owner = cluster.host, cluster.owner
        assert paused is not None
        assert owner is not None
        await cluster.take(1)
        await cluster.produce(named(2, 3))
        async with asyncio.timeout(patience(5)):
            batches += await collected(subscription, 3)
        assert offsets(batches) == list(range(5))
    await paused.close()
    owner.service.dropped(STREAM)


async def test_an_ack_lost_with_a_broken_call_is_repeated(cluster: Cluster) -> None:
    await cluster.produce(named(0, 3))
    async with Subscription(STREAM, cursor="c", address=cluster.address) as subscription:
        await anext(subscription)
        await cluster.leave()
        await asyncio.sleep(0.05)
        await subscription.ack(3)
        await cluster.take(1)
        await asyncio.wait_for(subscription.flush(), patience(5))
        assert subscription.durable == 3


async def test_a_subscription_ends_with_its_stream(cluster: Cluster) -> None:
    await cluster.produce(named(0, 2))
    options = {"cursor": "c", "address": cluster.address, "until_end": True, "auto_ack": True}
    async with Subscription(STREAM, **options) as subscription:  # type: ignore[arg-type]
        cluster.watermark(500)
        assert offsets(await collected(subscription, 2)) == [0, 1]
        await cluster.produce(named(2, 1))
        cluster.watermark(MAX_TIMESTAMP)
        assert offsets([batch async for batch in subscription]) == [2]
        assert subscription.watermark == MAX_TIMESTAMP
        await subscription.flush()
    async with Subscription(STREAM, **options) as again:  # type: ignore[arg-type]
        assert [batch async for batch in again] == []


async def test_a_cursors_older_subscriber_is_notified_of_the_newer(cluster: Cluster) -> None:
    await cluster.produce(named(0, 1))
    async with (
        Subscription(STREAM, cursor="c", address=cluster.address) as older,
        Subscription(STREAM, cursor="c", address=cluster.address) as newer,
    ):
        assert offsets([await anext(older)]) == [0]
        assert offsets([await anext(newer)]) == [0]
        with pytest.raises(RequestError, match="another subscriber has taken over cursor 'c'") as reported:
            await anext(older)
        assert (reported.value.code, reported.value.reason) == (FailureCode.ABORTED, "CURSOR_TAKEN_OVER")


async def test_values_are_decoded_as_the_type_that_is_given(cluster: Cluster) -> None:
    await cluster.produce([msgspec.msgpack.encode({"a": 1})])
    async with Subscription(
        STREAM, start=From.OLDEST, record_type=dict[str, int], address=cluster.address
    ) as subscription:
        assert (await anext(subscription)).values == [{"a": 1}]


async def test_a_value_that_cannot_be_decoded_is_not_passed_over(cluster: Cluster) -> None:
    await cluster.produce([b"7", b"seven"])
    async with Subscription(STREAM, cursor="c", decode=int, address=cluster.address, auto_ack=True) as subscription:
        for _ in range(2):
            with pytest.raises(ValueError, match="seven"):
                await anext(subscription)
    async with Subscription(STREAM, cursor="c", address=cluster.address) as again:
        assert (await anext(again)).values == [b"7", b"seven"]


async def test_who_stops_waiting_for_a_batch_loses_nothing(cluster: Cluster) -> None:
    async with Subscription(STREAM, address=cluster.address) as tail:
        for first in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(tail), 0.02)
            await cluster.produce(named(first, 1))
            assert offsets([await anext(tail)]) == [first]
        assert tail.missed == 0


async def test_a_subscriber_that_disconnects_is_forgotten(cluster: Cluster) -> None:
    assert cluster.host is not None
    core = cluster.host.core
    assert isinstance(core, LogCore)
    async with Subscription(STREAM, address=cluster.address):
        assert len(kept(core, SubscriberSession)) == 1
    await until(lambda: not kept(core, SubscriberSession), patience(5))


async def test_cursors_are_listed_and_deleted(cluster: Cluster) -> None:
    await cluster.produce(named(0, 2))
    async with ControlClient(cluster.address) as client:
        async with Subscription(STREAM, cursor="c", address=cluster.address) as subscription:
            await anext(subscription)
            assert await list_cursors(STREAM, client) == [CursorStatus(STREAM, "c", 0, 2)]
            await delete_cursor(STREAM, "c", client)
            assert await list_cursors(STREAM, client) == []
            with pytest.raises(RequestError, match="was deleted"):
                await anext(subscription)
        with pytest.raises(RequestError, match="no cursor 'c'") as unknown:
            await delete_cursor(STREAM, "c", client)
        assert unknown.value.code is FailureCode.NOT_FOUND


async def test_failures_that_do_not_pass_are_reported_at_once(cluster: Cluster) -> None:
    with pytest.raises(RequestError, match="no stream 'unknown'"):
        async with Subscription("unknown", address=cluster.address):
            pass
    async with Subscription(STREAM, cursor="c", address=cluster.address) as beyond:
        await cluster.produce(named(0, 1))
        await anext(beyond)
        await beyond.ack(7)
        with pytest.raises(RequestError, match="no offset 7: its log ends at 1"):
            await anext(beyond)


async def test_a_replaced_log_is_not_taken_for_the_old_one(cluster: Cluster) -> None:
    async with Subscription(STREAM, cursor="c", address=cluster.address) as subscription:
        await cluster.produce(named(0, 1))
        await anext(subscription)
        cluster.incarnation = IncarnationId("log.windows.2")
        await cluster.move(1)
        with pytest.raises(RequestError, match="was replaced by another"):
            await anext(subscription)


async def test_patience_ends(cluster: Cluster) -> None:
    await cluster.leave()
    with pytest.raises(RequestError, match="no worker owns the log"):
        async with Subscription(STREAM, address=cluster.address, patience=0.2):
            pass


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        ([wire.SubscribeRequest(ack=wire.SubscribeAck(below_offset=1))], "begins with its start"),
        ([wire.SubscribeRequest(start=wire.SubscribeStart())], "names no stream"),
        ([wire.SubscribeRequest(start=wire.SubscribeStart(stream=STREAM, window=-1))], "the window is -1"),
        ([wire.SubscribeRequest(start=wire.SubscribeStart(stream=STREAM, cursor="c" * 300))], "longer than 256"),
        ([wire.SubscribeRequest(start=wire.SubscribeStart(stream=STREAM))] * 2, "a second start"),
    ],
)
async def test_malformed_calls_are_refused_by_name(
    cluster: Cluster, requests: list[wire.SubscribeRequest], says: str
) -> None:
    async with open_channel(cluster.workers[0].address) as channel:
        call = SubscriptionServiceStub(channel).Subscribe(iter(requests))
        with pytest.raises(grpc.aio.AioRpcError, match=says) as refused:
            async for _ in call:
                pass
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_worker_that_does_not_own_the_log_refuses(cluster: Cluster) -> None:
    async with open_channel(cluster.workers[1].address) as channel:
        start = wire.SubscribeRequest(start=wire.SubscribeStart(stream=STREAM))
        with pytest.raises(grpc.aio.AioRpcError, match="does not own the log") as refused:
            async for _ in SubscriptionServiceStub(channel).Subscribe(iter([start])):
                pass
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.guarantee("G7", section="7.1")
async def test_a_former_log_of_a_stream_is_not_shown_for_the_new_one(
    cluster: Cluster,
) -> None:
    await cluster.produce(named(0, 3))
    cluster.watermark(MAX_TIMESTAMP)
    async with Subscription(STREAM, cursor="former", start=From.OLDEST, address=cluster.address) as former:
        await collected(former, 3)
    cluster.incarnation = IncarnationId("log.windows.2")
    for cursor in ("new", ""):
        with pytest.raises(RequestError, match="does not own the log"):
            async with Subscription(
                STREAM, cursor=cursor, start=From.OLDEST, address=cluster.address, patience=0.2
            ) as subscription:
                await anext(subscription)
    async with ControlClient(cluster.address) as client:
        for asking in (list_cursors(STREAM, client), delete_cursor(STREAM, "former", client)):
            with pytest.raises(RequestError, match="does not own the log"):
                await asking
    await cluster.move(0)
    async with ControlClient(cluster.address) as client:
        assert [one.name for one in await list_cursors(STREAM, client)] == ["former"]


@pytest.mark.guarantee("G13")
async def test_a_subscriber_that_does_not_read_holds_few_responses(cluster: Cluster) -> None:
    cluster.settings = LogSettings(publish_bytes=100_000)
    await cluster.move(0)
    async with Subscription(STREAM, start=From.OLDEST, address=cluster.address) as subscription:
        await cluster.produce([b"first"])
        await anext(subscription)
        for _ in range(40):
            await cluster.produce([b"." * 100_000] * 10)
        await asyncio.sleep(0.1)
        [responses] = kept(cluster.workers[0].service, asyncio.Queue)
        assert responses.qsize() <= 4
        assert len(offsets(await collected(subscription, 400))) == 400


async def test_programs_without_an_event_loop_subscribe_too(cluster: Cluster) -> None:
    await cluster.produce(named(0, 4))
    cluster.watermark(MAX_TIMESTAMP)

    def program() -> list[bytes]:
        values: list[bytes] = []
        with BlockingSubscription(STREAM, cursor="c", address=cluster.address, until_end=True) as subscription:
            for batch in subscription:
                values += batch.values
                subscription.ack(batch.next_offset)
            subscription.flush()
            assert subscription.watermark == MAX_TIMESTAMP
        return values

    assert await asyncio.to_thread(program) == named(0, 4)
    assert await asyncio.to_thread(program) == []


# The command line.


async def command(cluster: Cluster, *arguments: str) -> str:
    runner = CliRunner()
    result = await asyncio.to_thread(runner.invoke, app, [*arguments, "--address", cluster.address])
    if result.exception is not None:
        raise result.exception
    return result.stdout


async def test_stream_tail_prints_each_record_and_then_acknowledges_it(cluster: Cluster) -> None:
    cluster.form = specs.VALUE_FORMAT_MSGPACK
    await cluster.produce([msgspec.msgpack.encode({"n": number}) for number in range(5)])
    printed = await command(cluster, "tail", STREAM, "--cursor", "c", "-n", "2", "-o", "json")
    assert [json.loads(line) for line in printed.splitlines()] == [
        {"offset": n, "timestamp": "1970-01-01T00:00:01Z", "timestamp_us": 1_000_000, "value": {"n": n}} for n in (0, 1)
    ]
    table = await command(cluster, "tail", STREAM, "--cursor", "c", "-n", "3")
    lines = table.splitlines()
    assert lines[0].split() == ["OFFSET", "TIMESTAMP", "VALUE"]
    assert [line.split()[0] for line in lines[1:]] == ["2", "3", "4"]
    assert lines[1].endswith('{"n":2}')
    listed = json.loads(await command(cluster, "cursors", "list", STREAM, "-o", "json"))
    assert listed == [{"cursor": "c", "acked": 5, "end": 5, "behind": 0}]


async def test_stream_tail_reads_to_the_end_and_cursors_are_deleted(cluster: Cluster) -> None:
    await cluster.produce(named(0, 3))
    cluster.watermark(MAX_TIMESTAMP)
    printed = await command(cluster, "tail", STREAM, "--from", "oldest", "--until-end", "-o", "yaml")
    assert printed.count("- offset:") == 3
    assert "record 2" in printed
    await command(cluster, "tail", STREAM, "--cursor", "c", "--until-end")
    assert "c " in await command(cluster, "cursors", "list", STREAM)
    assert "is deleted" in await command(cluster, "cursors", "delete", STREAM, "c", "--yes")
    assert "has no cursors" in await command(cluster, "cursors", "list", STREAM)


@pytest.mark.parametrize(
    ("value", "form", "shown"),
    [
        (msgspec.msgpack.encode({"a": b"\x00"}), specs.VALUE_FORMAT_MSGPACK, {"a": "AA=="}),
        (b"\xd4\x05\x00", specs.VALUE_FORMAT_MSGPACK, {"base64": "1AUA"}),
        ("grüße".encode(), specs.VALUE_FORMAT_RAW, "grüße"),
        (b"\xff\x00", specs.VALUE_FORMAT_RAW, {"base64": "/wA="}),
        (b"\x08\x01", specs.VALUE_FORMAT_PROTOBUF, {"base64": "CAE="}),
        (b"text", specs.VALUE_FORMAT_UNSPECIFIED, "text"),
    ],
)
def test_values_are_shown_in_json_form(value: bytes, form: specs.ValueFormat.ValueType, shown: object) -> None:
    assert show_value(value, form) == shown
