"""Each error in input has a clear message, and the service continues (G1, G13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import msgspec
import pytest

import millwheel as mw
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_DELIVERED_BYTES
from millwheel.rpc.channel import open_channel
from millwheel.rpc.deliveries import answered_tokens
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1 import delivery_pb2_grpc, subscription_pb2, watermark_pb2
from millwheel.rpc.v1.subscription_pb2_grpc import SubscriptionServiceStub
from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceStub
from tests.patience import patience, until
from tests.system import words as program
from tests.system.server import Server, run_cli
from tests.system.speaking import SOURCE, read, submit
from tests.system.words import Seen, Word


class RawInjector:
    """Sends requests to the one interval of a computation, as an injector process of one of its streams."""

    def __init__(
        self, address: str, stream: str, process: str, consumer: IncarnationId, journal: str, sequencer: int
    ) -> None:
        self.address = address
        self.stream = stream
        self.consumer = consumer
        self.journal = journal
        self.origin = f"injector/{stream}/{process}"
        self.sequencer = sequencer
        self._position = 0

    @classmethod
    async def open(cls, address: str, topology: str, computation: str, stream: str, process: str) -> RawInjector:
        """Announce the process, and look up the interval."""
        async with ControlClient(address) as control:
            opened = await control.open_injector(stream, process)
            found = await control.get_topology(topology)
        (record,) = [one for one in found.interval_maps if one.computation == computation and one.topology]
        incarnation = found.topology.incarnations[computation]
        return cls(address, stream, process, incarnation, record.intervals[0].journal, opened.sequencer)

    def request(self, keys: Sequence[bytes], values: Sequence[bytes], token: int = 1) -> wire.DeliverRequest:
        """A well-formed batch of new records at time 1; spoil it as you like."""
        request = wire.DeliverRequest(
            token=token,
            consumer=self.consumer,
            journal=self.journal,
            stream=self.stream,
            sender=wire.Sender(name=self.origin, sequencer=self.sequencer, group=f"injector/{self.stream}"),
            keys=keys,
            values=values,
            timestamps_us=[1_000_000] * len(keys),
        )
        request.positions.sequence = f"{self.origin.removeprefix('injector/')}/0"
        request.positions.positions.extend(range(self._position, self._position + len(keys)))
        self._position += len(keys)
        return request

    async def deliver(self, *requests: wire.DeliverRequest) -> dict[int, wire.DeliverResponse]:
        """Send requests until the last of them reaches an open interval; the last answer to each, by token.

        A new interval, or one whose lease was lost on a busy machine, takes nothing until its worker has opened it. So
        the last one goes ahead: the interval is open before the first one comes.
        """
        last = requests[-1]

        def opened(answers: dict[int, wire.DeliverResponse]) -> bool:
            return answers[last.token].outcome != wire.DELIVERY_OUTCOME_NOT_OWNER

        async def deliver() -> dict[int, wire.DeliverResponse]:
            ahead = await self._deliver(last)
            return await self._deliver(*requests) if opened(ahead) else ahead

        answers: dict[int, wire.DeliverResponse] = await until(deliver, every=0.1, holds=opened)
        return answers

    async def _deliver(self, *requests: wire.DeliverRequest) -> dict[int, wire.DeliverResponse]:

        async def outgoing() -> AsyncIterator[wire.DeliverRequest]:
            for request in requests:
                yield request

        answers: dict[int, wire.DeliverResponse] = {}
        async with open_channel(self.address) as channel:
            async for response in delivery_pb2_grpc.DeliveryServiceStub(channel).Deliver(outgoing()):
                answers |= dict.fromkeys(answered_tokens(response), response)
        return answers


async def test_malformed_requests_are_answered_and_harm_no_others(server: Server) -> None:
    await submit(server)
    raw = await RawInjector.open(server.address, "words", "count", "words/spoken", "p")
    good = msgspec.msgpack.encode(Word("good"))
    unequal = raw.request([b"a", b"b"], [good], token=1)
    unmarked = raw.request([b"a"], [good], token=2)
    unmarked.ClearField("positions")
    elsewhere = raw.request([b"a"], [good], token=3)
    elsewhere.journal = "nobody.1.j1"
    wrong_stream = raw.request([b"a"], [good], token=4)
    wrong_stream.stream = "whispered"
    bad_keys = raw.request([b"a"], [good], token=5)
    bad_keys.sender.keys.start, bad_keys.sender.keys.end = b"z", b"a"
    long_key = raw.request([b"k" * 5_000], [good], token=6)
    long_value = raw.request([b"a"], [bytes(MAX_DELIVERED_BYTES + 1)], token=7)
    fine = raw.request([b"good"], [good], token=8)
    answers = await raw.deliver(unequal, unmarked, elsewhere, wrong_stream, bad_keys, long_key, long_value, fine)
    shown = {token: (answer.outcome, answer.message) for token, answer in answers.items()}
    for token, part in [
        (1, "columns of unequal length: 2 keys, 1 values"),
        (2, "set positions, opaque or batch"),
        (5, "z"),
        (6, "a key of 5,000 bytes; the limit is 4,096"),
        (7, "a value of 1,114,113 bytes; the limit is 1,114,112"),
    ]:
        assert shown[token][0] == wire.DELIVERY_OUTCOME_INVALID, shown[token]
        assert part in shown[token][1]
    assert shown[3][0] == wire.DELIVERY_OUTCOME_NOT_OWNER
    assert shown[4][0] == wire.DELIVERY_OUTCOME_NOT_OWNER, "sender and receiver follow topologies that change"
    assert shown[4][1] == "'count' does not consume stream 'whispered'"
    assert shown[8][0] == wire.DELIVERY_OUTCOME_ACKED
    assert await read(server, "seen", Seen, 1) == [Seen("good", 1)]


async def test_calls_that_begin_wrong_end_with_what_is_wrong(server: Server) -> None:
    async with open_channel(server.address) as channel:
        subscribe = SubscriptionServiceStub(channel).Subscribe(
            iter([subscription_pb2.SubscribeRequest(ack=subscription_pb2.SubscribeAck(below_offset=3))])
        )
        with pytest.raises(grpc.aio.AioRpcError, match="begins with its start"):
            await subscribe.read()
        report = watermark_pb2.ReportRequest(intervals=[watermark_pb2.IntervalWatermark(group="c", sequencer=1)])
        reporting = WatermarkServiceStub(channel).Report(iter([report]))
        await reporting.read()
        with pytest.raises(grpc.aio.AioRpcError, match="keys is missing"):
            await reporting.read()
    listed = await run_cli(server.address, "topology", "list")
    assert listed.code == 0


async def test_values_of_another_type_follow_the_policy_and_are_named(server: Server) -> None:
    await submit(server)
    raw = await RawInjector.open(server.address, "words", "count", "words/spoken", "p")
    wrong, good = msgspec.msgpack.encode({"text": 5}), msgspec.msgpack.encode(Word("good"))
    request = raw.request([b"5", b"x", b"good"], [wrong, b"\xc1", good])
    answers = await raw.deliver(request)
    assert answers[1].outcome == wire.DELIVERY_OUTCOME_ACKED
    assert await read(server, "seen", Seen, 1) == [Seen("good", 1)]
    letters = await read(server, "words/dead-letters", mw.DeadLetter, 2)
    assert {letter.key for letter in letters} == {"5", "x"}
    for letter in letters:
        assert letter.stream == "spoken"
        assert "'spoken'" in letter.error
        assert "Word" in letter.error
    assert {letter.value for letter in letters} == {wrong, b"\xc1"}


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("huge-state", "the limit of 4,194,304"),
        ("huge-value", "the limit of 1,048,576"),
        ("huge-tag", "the limit of 256"),
    ],
)
async def test_what_a_hook_makes_too_large_fails_its_record_by_name(server: Server, word: str, part: str) -> None:
    await submit(server)
    async with Injector("spoken", address=server.address, process="p", topology=program.words) as injector:
        await injector.send(Word(word), timestamp=1)
        await injector.send(Word("good"), timestamp=2)
    assert await read(server, "seen", Seen, 1) == [Seen("good", 1)]
    (letter,) = await read(server, "words/dead-letters", mw.DeadLetter, 1)
    assert letter.key == word
    assert part in letter.error, letter.error


async def test_the_injector_refuses_too_large_records_before_sending(server: Server) -> None:
    await submit(server)
    async with Injector("spoken", address=server.address, process="p", topology=program.words) as injector:
        with pytest.raises(mw.TooLargeError, match=r"stream 'words/spoken'.*1,048,576"):
            await injector.send(Word("x" * (1 << 20)), timestamp=1)
        with pytest.raises(mw.MillwheelError, match="4,096"):
            await injector.send(Word("x" * 5_000), timestamp=1)
        await injector.send(Word("good"), timestamp=2)
    assert await read(server, "seen", Seen, 1) == [Seen("good", 1)]


async def test_streams_that_do_not_exist_are_named_with_the_nearest(server: Server) -> None:
    await submit(server)
    with pytest.raises(RequestError, match="did you mean 'spoken'") as refused:
        await Injector("spokn", address=server.address, process="p").open()
    assert refused.value.code is FailureCode.NOT_FOUND
    with pytest.raises(RequestError, match="did you mean 'seen'"):
        await Subscription("sen", cursor="c", address=server.address).__aenter__()
    shown = await run_cli(server.address, "stream", "tail", "sen")
    assert shown.code == 3
    assert "did you mean 'seen'" in shown.err


async def test_an_injector_into_a_stream_that_is_produced_is_refused(server: Server) -> None:
    await submit(server)
    with pytest.raises(RequestError) as refused:
        await Injector("seen", address=server.address, process="p").open()
    assert "seen" in refused.value.message


async def test_code_that_fails_on_the_server_alone_is_named(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(server)
    source = SOURCE.replace('"words"', '"local"').replace('"spoken"', '"local-in"').replace('"seen"', '"local-out"')
    guard = "import os\n\nif 'ONLY_HERE' not in os.environ:\n    raise ImportError('library frobnicate is not here')\n"
    local = tmp_path / "local.py"
    local.write_text(source.replace("import msgspec\n", f"import msgspec\n{guard}"))
    monkeypatch.setenv("ONLY_HERE", "1")
    submitted = await run_cli(server.address, "topology", "submit", f"{local}:words")
    assert submitted.code == 0, submitted.err
    async with asyncio.timeout(patience(10)):
        while "frobnicate" not in (shown := await run_cli(server.address, "watermark", "explain", "local/count")).out:
            assert shown.code == 0, shown.err
    cannot = "the code of topology 'local' cannot be loaded"
    assert shown.out.count(cannot) == 1
    for look in (("cluster", "health"), ("topology", "describe", "local"), ("interval", "list", "local")):
        for output in ("table", "json"):
            async with asyncio.timeout(patience(10)):
                while cannot not in (shown := await run_cli(server.address, *look, "-o", output)).out:
                    assert not shown.err
            assert shown.code == (look == ("cluster", "health")), look
            assert output == "json" or "does not run" in shown.out
    inspected = await run_cli(server.address, "key", "inspect", "local/count", "k")
    assert inspected.code == 4
    assert "frobnicate" in inspected.err
    async with Injector("spoken", address=server.address, process="p", topology=program.words) as injector:
        await injector.send(Word("good"), timestamp=2)
    assert await read(server, "seen", Seen, 1) == [Seen("good", 1)]
    cancelled = await run_cli(server.address, "topology", "cancel", "local", "--yes")
    assert cancelled.code == 0, cancelled.err


async def test_submitting_twice_is_refused_and_changes_nothing(server: Server) -> None:
    await submit(server)
    async with ControlClient(server.address) as control:
        before = (await control.get_topology("words")).topology
        again = await run_cli(server.address, "topology", "submit", f"{server.db.parent / 'words.py'}:words")
        assert again.code == 6
        assert "running already" in again.err
        assert (await control.get_topology("words")).topology == before
