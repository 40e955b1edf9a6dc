"""Calls that are cancelled, waits that are overtaken, and a master that is away (5.2)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from random import Random
from typing import Any
from unittest.mock import MagicMock

import grpc
import pytest

from millwheel.authority.shard import AuthorityShard
from millwheel.client.injector import (
    BatchOf,
    BlockingInjector,
    Injector,
    InjectorClosedError,
    InjectorError,
    InjectorSettings,
    Limits,
)
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.channel import open_channel
from millwheel.rpc.delivery_connection import DeliveryConnection
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.sdk.errors import UsageError
from tests.injectors.loopback import Cluster, cluster
from tests.injectors.test_driver import QUICK, SETTINGS, check_once, trouble, values
from tests.patience import patience, until


def nobody_takes(made: Cluster) -> None:
    """Every interval loses its owner."""
    for consumer in made.consumers.values():
        consumer.move(f"{consumer.name}.j1", "")
    made.changed()


@pytest.mark.guarantee("G7", section="5.2")
async def test_a_cancelled_wake_is_completed_before_anything_is_sent() -> None:
    async with cluster(1, workers=1) as made:
        made.workers[0].calm = True
        async with (
            Injector("s", address=made.address, process="a") as sleeper,
            Injector("s", address=made.address, process="b") as other,
        ):
            await other.advance(1_000)
            await sleeper.idle()
            made.watermarks.accepting.clear()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sleeper.send(values(0, 1)[0], timestamp=2_000), 0.1)
            again = asyncio.create_task(sleeper.send(values(0, 1)[0], timestamp=2_000))
            await asyncio.sleep(0.1)
            assert not again.done()
            assert made.workers[0].batches == []
            made.watermarks.accepting.set()
            await again
            await sleeper.flush()
        check_once(made, 1)


@pytest.mark.guarantee("G7", section="5.2")
async def test_a_call_that_waits_for_room_wakes_its_idle_process_first() -> None:
    async with cluster(1, workers=1) as made:
        made.workers[0].calm = True
        # With one consumer and one batch, a single ACK makes room and ends the flush.
        made.consumers.pop("y")
        settings = InjectorSettings(limits=Limits(window_records=10))
        sent, waiting = 0, None
        async with Injector("s", address=made.address, settings=settings) as one:
            # One ACK ends both waits. If another event comes just before, the call may send before the process is idle.
            while waiting is None or waiting.done():
                assert sent < 12 * 20, "the process was never idle first"
                made.watermarks.accepting.set()
                waiting = await call_that_waits(made, one, sent)
                sent += 12
            await asyncio.sleep(0.1)
            assert not waiting.done(), "the authority does not know yet that this process takes part again"
            made.watermarks.accepting.set()
            await asyncio.wait_for(waiting, patience(5))
            await one.flush()
        check_once(made, sent)


async def call_that_waits(made: Cluster, injector: Injector, start: int) -> asyncio.Task[None]:
    """A call that waited for room while its process became idle. The authority then accepts no process."""
    consumer = made.consumers["x"]
    await injector.flush()
    consumer.hold = True
    await injector.send_many(values(start, start + 10), [5] * 10)
    idling = asyncio.create_task(injector.idle())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(injector.send_many(values(start + 10, start + 12), [5, 5]))
    await asyncio.sleep(0.05)
    assert not idling.done()
    assert not waiting.done()
    made.watermarks.accepting.clear()
    consumer.hold = False
    await asyncio.wait_for(idling, patience(5))
    return waiting


@pytest.mark.guarantee("G7", section="5.2")
async def test_a_process_wakes_at_the_present_minimum() -> None:
    async with (
        cluster(1) as made,
        Injector("s", address=made.address, process="a") as sleeper,
        Injector("s", address=made.address, process="b") as other,
    ):
        await other.advance(1_000)
        await sleeper.idle()
        await reaches(made.watermarks.open_shard, 1_000)
        made.watermarks.broadcasting.clear()
        await other.advance(5_000)
        await reaches(made.watermarks.open_shard, 5_000)
        await sleeper.advance(2_000)
        assert sleeper.watermark == 5_000
        made.watermarks.broadcasting.set()


@pytest.mark.guarantee("G7", section="5.2")
async def test_a_waking_process_sends_once_the_end_of_idle_is_known() -> None:
    """Regression: the authority took the process for active because of its request.

    Then it got the older report that the process is idle.
    """
    async with (
        cluster(1, workers=1) as made,
        Injector("s", address=made.address, process="a") as sleeper,
        Injector("s", address=made.address, process="b") as other,
    ):
        await other.advance(1_000)
        made.watermarks.hearing.clear()
        await sleeper.idle()
        await asyncio.sleep(0.1)  # the report is under way without this call
        sending = asyncio.create_task(sleeper.send(values(0, 1)[0], timestamp=2_000))
        await asyncio.sleep(0.1)
        assert not sending.done()
        assert made.workers[0].batches == []
        made.watermarks.hearing.set()
        await asyncio.wait_for(sending, patience(5))


@pytest.mark.guarantee("G7", section="7.2")
async def test_a_wake_lost_with_an_authority_is_reported_to_the_next() -> None:
    """Regression: one authority process received the wake-up.

    Its successor did not, but its answer counted as the confirmation.
    """
    async with (
        cluster(1, workers=1) as made,
        Injector("s", address=made.address, process="a") as sleeper,
        Injector("s", address=made.address, process="b") as other,
    ):
        authority = made.watermarks
        await other.advance(1_000)
        await sleeper.idle()
        await reaches(authority.open_shard, 1_000)
        authority.store.gate.clear()
        sending = asyncio.create_task(sleeper.send(values(0, 1)[0], timestamp=2_000))
        await asyncio.sleep(0.2)
        authority.hearing.clear()
        await authority.start_again()
        authority.store.gate.set()
        await authority.open_shard.report([WatermarkReport("injector/s", "b", 2, 5_000, number=1_000)])
        await reaches(authority.open_shard, 5_000)
        await asyncio.sleep(0.2)
        assert not sending.done()
        assert made.workers[0].batches == []
        authority.hearing.set()
        await asyncio.wait_for(sending, patience(5))
        assert sleeper.watermark == 5_000, "it begins where the others are"


@pytest.mark.guarantee("G8", section="5.2")
async def test_a_process_that_could_not_be_woken_leaves_the_minimum() -> None:
    """Regression: the authority got the wake-up, but not the report that the process stayed idle."""
    async with (
        cluster(1, workers=1) as made,
        Injector("s", address=made.address, process="a", settings=InjectorSettings(patience=0.3)) as sleeper,
        Injector("s", address=made.address, process="b") as other,
    ):
        await other.advance(1_000)
        await sleeper.idle()
        await reaches(made.watermarks.open_shard, 1_000)
        made.watermarks.accepting.clear()
        with pytest.raises(InjectorError, match="did not confirm"):
            await sleeper.send(values(0, 1)[0], timestamp=2_000)
        made.watermarks.accepting.set()
        await other.advance(9_000)
        await reaches(made.watermarks.open_shard, 9_000)


@pytest.mark.guarantee("G8", section="7.2")
async def test_an_authority_that_answers_late_is_asked_again_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millwheel.client.watermarks.DEFAULT_DEADLINE_SECONDS", 0.2)
    async with cluster(1, workers=1) as made, Injector("s", address=made.address, process="a") as injector:
        made.watermarks.accepting.clear()
        finishing = asyncio.create_task(injector.finish())
        await asyncio.sleep(0.5)
        assert not finishing.done()
        made.watermarks.accepting.set()
        await asyncio.wait_for(finishing, patience(5))


async def test_an_injector_closed_during_its_end_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Any] = []

    def seen(address: str) -> Any:
        opened.append(open_channel(address))
        return opened[-1]

    monkeypatch.setattr("millwheel.client.watermarks.open_channel", seen)
    async with cluster(1, workers=1) as made:
        injector = Injector("s", address=made.address, process="a")
        await injector.open()
        made.watermarks.hearing.clear()
        finishing = asyncio.create_task(injector.finish())
        await asyncio.sleep(0.1)
        await injector.close()
        with pytest.raises(InjectorClosedError):
            await asyncio.wait_for(finishing, patience(5))
        assert [channel.get_state() for channel in opened] == [grpc.ChannelConnectivity.SHUTDOWN]
        made.watermarks.hearing.set()


async def reaches(open_shard: AuthorityShard, watermark: int) -> None:
    async with asyncio.timeout(patience(5)), aclosing(open_shard.broadcasts.watch(["injector/s"])) as updates:
        async for news in updates:
            if news["injector/s"].watermark >= watermark:
                return


@pytest.mark.guarantee("G8", section="4.5")
async def test_a_watermark_that_is_settled_outlives_the_authority() -> None:
    """Spark commits a batch when its watermark is settled. So no one reports that watermark again."""
    async with cluster(1) as made, Injector("s", address=made.address, process="slow"):
        async with Injector("s", address=made.address, process="a") as first:
            await first.advance(5_000)
        await made.watermarks.start_again()
        async with Injector("s", address=made.address, process="a") as again:
            assert again.watermark == 5_000


@pytest.mark.guarantee("G8", section="5.2")
async def test_finishing_that_was_cut_short_is_done_again() -> None:
    async with cluster(1) as made, Injector("s", address=made.address) as injector:
        made.watermarks.accepting.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(injector.finish(), 0.1)
        made.watermarks.accepting.set()
        await injector.finish()
        await injector.finish()
        assert injector.watermark == MAX_TIMESTAMP


async def test_what_no_message_can_hold_is_refused_when_it_is_sent() -> None:
    async with cluster(1) as made, Injector("s", address=made.address) as injector:
        value = values(0, 1)[0]
        for _ in range(2):  # the second time others have been gathered
            with pytest.raises(UsageError, match="a whole number of microseconds"):
                await injector.send(value, timestamp=1.5)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="a position is a whole number"):
                await injector.send(value, timestamp=5, position=1.0, partition="p")  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="not among 0 to"):
                await injector.send(value, timestamp=5, position=1 << 64, partition="p")
            with pytest.raises(UsageError, match=r"partition .* is not text"):
                await injector.send(value, timestamp=5, position=1, partition="caf\udce9.log")
            await injector.send(value, timestamp=5)
        with pytest.raises(UsageError, match="a whole number of microseconds"):
            await injector.send_many([value, value], [5, 5.0])  # type: ignore[list-item]
        with pytest.raises(UsageError, match="the watermark is a whole number of microseconds, not 'x'"):
            await injector.advance("x")  # type: ignore[arg-type]
        await injector.flush()
        assert injector.unacked == 0


async def test_a_links_error_is_reported_and_not_waited_for() -> None:
    async with cluster(1) as made:
        injector = Injector("s", address=made.address)
        await injector.open()
        await injector.send_many(values(0, 1), [5], ids=["a"], batch=BatchOf("\udcff", 0))
        with pytest.raises(InjectorError, match=r"deliveries to .* have stopped by an internal error"):
            await asyncio.wait_for(injector.flush(), patience(5))
        await injector.close()


class _Connecting:
    """A channel that becomes ready when the test says so. Streams on it send nothing."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> _Connecting:
        return self

    async def __aexit__(self, *ended: object) -> None: ...

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY if self.ready.done() else grpc.ChannelConnectivity.CONNECTING

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        await self.ready

    def stream_stream(self, *method: Any, **options: Any) -> Any:
        return lambda: self

    def unary_unary(self, *method: Any, **options: Any) -> None: ...

    async def read(self) -> None:
        await asyncio.Event().wait()

    def cancel(self) -> None: ...


@pytest.mark.guarantee("G8", section="5.2")
@pytest.mark.parametrize("turns", range(4))
async def test_a_link_closed_while_it_connects_ends(
    turns: int,
) -> None:
    """Regression: asyncio.wait_for lost the cancellation, so closing the injector waited for ever."""
    connecting = _Connecting()
    connect: Any = lambda address: connecting  # noqa: E731
    one = DeliveryConnection[Any]("here:1", lambda send: wire.DeliverRequest(), MagicMock(), connect)
    await asyncio.sleep(0.01)
    connecting.ready.set_result(None)
    for _ in range(turns):
        await asyncio.sleep(0)
    closing = asyncio.create_task(one.close())
    done, _ = await asyncio.wait([closing], timeout=patience(2))
    if not done:
        await one.close()
    assert done, "it goes on"


@pytest.mark.guarantee("G8")
async def test_a_link_that_is_closed_reports_nothing_more() -> None:
    """A worker registered again under its address.

    Regression: the end of the old link counted as that of the new one.
    """
    connecting, events = _Connecting(), MagicMock()
    connect: Any = lambda address: connecting  # noqa: E731
    connecting.ready.set_result(None)
    one = DeliveryConnection[Any]("here:1", lambda send: wire.DeliverRequest(), events, connect)
    await until(lambda: events.connected.called)
    await one.close()
    events.disconnected.assert_not_called()


@pytest.mark.guarantee("G8")
async def test_a_link_whose_call_is_cancelled_by_grpc_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: gRPC's cancellation counted as one of the link's own task, which ended without a message."""
    connecting, events = _Connecting(), MagicMock()
    reads = [asyncio.CancelledError()]
    wait = connecting.read

    async def read() -> None:
        if reads:
            raise reads.pop()
        await wait()

    monkeypatch.setattr(connecting, "read", read)
    connect: Any = lambda address: connecting  # noqa: E731
    connecting.ready.set_result(None)
    one = DeliveryConnection[Any]("here:1", lambda send: wire.DeliverRequest(), events, connect)
    await until(lambda: events.connected.call_count == 2)
    events.disconnected.assert_called_once()
    await one.close()


async def test_a_link_that_cannot_connect_reports_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the duration of a failed attempt counted as that of a healthy stream, so it was never logged."""
    monkeypatch.setattr("millwheel.rpc.delivery_connection.CONNECT_SECONDS", 0.002)
    monkeypatch.setattr("millwheel.rpc.delivery_connection.HEALTHY_SECONDS", 0.001)
    connect: Any = lambda address: _Connecting()  # noqa: E731
    one = DeliveryConnection[Any]("here:1", lambda send: wire.DeliverRequest(), MagicMock(), connect)
    await until(lambda: "no connection within" in caplog.text)
    await one.close()


@pytest.mark.guarantee("G13")
async def test_records_sent_one_by_one_are_bounded_in_bytes_too() -> None:
    settings = InjectorSettings(limits=Limits(window_bytes=1 << 20))
    async with cluster(1) as made:
        nobody_takes(made)
        injector = Injector("s", address=made.address, settings=settings)
        await injector.open()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(send_large(injector), 0.5)
        # Two consumers.
        assert injector.unacked <= 2 * 22
        await injector.close()


async def send_large(injector: Injector) -> None:
    for _ in range(60):
        await injector.send({"k": "a", "n": "x" * 100_000}, timestamp=5)


def test_a_call_in_another_thread_ends_when_the_injector_closes() -> None:
    """This holds for calls that wait, and for calls that come while the loop stops."""
    loop = asyncio.new_event_loop()
    serving = threading.Thread(target=loop.run_forever)
    serving.start()
    made_by = cluster(1)
    made = asyncio.run_coroutine_threadsafe(made_by.__aenter__(), loop).result(patience(10))
    try:
        loop.call_soon_threadsafe(nobody_takes, made)
        for _ in range(20):
            injector = BlockingInjector("s", address=made.address)
            injector.open()
            injector.send_many(values(0, 10), [5] * 10)
            with ThreadPoolExecutor(2) as others:
                calls = [others.submit(injector.flush) for _ in range(2)]
                injector.close()
                for call in calls:
                    assert isinstance(call.exception(patience(5)), InjectorClosedError)
    finally:
        asyncio.run_coroutine_threadsafe(made_by.__aexit__(None, None, None), loop).result(patience(10))
        loop.call_soon_threadsafe(loop.stop)
        serving.join()
        loop.close()


@pytest.mark.guarantee("G1", section="7.1")
@pytest.mark.parametrize("seconds", [60.0, 0.2])
async def test_records_go_on_while_no_master_answers_however_long(
    seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    settings = InjectorSettings(patience=seconds, limits=QUICK)
    async with cluster(1) as made, Injector("s", address=made.address, settings=settings) as injector:
        await injector.send_many(values(0, 500), [5] * 500)
        await made.server.stop()
        await injector.send_many(values(500, 1_000), [5] * 500)
        await asyncio.wait_for(injector.flush(), patience(10))
        await asyncio.sleep(1.0)
        assert ("no master sends the routing" in caplog.text) is (seconds < 1)
        assert caplog.text.count("no master tells") < 5, "not asked, and not said, without pause"
        await made.server.start()
        # The injector learns of changes that came meanwhile.
        for consumer in made.consumers.values():
            consumer.move(f"{consumer.name}.j1", made.workers[0].address)
        made.changed()
        await injector.send_many(values(1_000, 1_500), [5] * 500)
        await asyncio.wait_for(injector.flush(), patience(20))
        check_once(made, 1_500)


@pytest.mark.guarantee("G1", section="7.1")
async def test_an_injector_without_an_authority_reports_and_ends_later() -> None:
    async with (
        cluster(1) as made,
        Injector("s", address=made.address, settings=InjectorSettings(patience=0.5)) as injector,
    ):
        await injector.send_many(values(0, 100), [5] * 100, positions=range(100))
        await injector.flush()
        await made.server.stop()
        with pytest.raises(
            InjectorError, match=r"did not confirm the watermark of process 'injector' .* within 0\.5 s"
        ):
            await injector.finish()
        await made.server.start()
        await until(lambda: finished(injector))
        check_once(made, 100)


async def finished(injector: Injector) -> bool:
    try:
        await injector.finish()
    except InjectorError:
        return False
    return True


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_a_partition_moved_between_processes_keeps_its_records() -> None:
    """The records also stay while the former process still sends as a zombie, and when the partition returns to it."""
    chance = Random(5)
    async with cluster(9) as made:
        checkpoint, sent, zombies = 0, 0, []
        async with trouble(made, chance):
            for life in range(8):
                name = "ab"[life % 2]
                injector = Injector("s", address=made.address, process=name, source="group", settings=SETTINGS)
                await injector.open()
                sent = max(sent, checkpoint + 400)
                positions = range(checkpoint, sent)
                await injector.send_many(
                    values(checkpoint, sent), [5] * len(positions), positions=positions, partition="7"
                )
                await asyncio.sleep(chance.uniform(0, 0.04))
                checkpoint = injector.acknowledged("7") or checkpoint
                zombies.append(injector)
        async with Injector("s", address=made.address, process="c", source="group", settings=SETTINGS) as last:
            await last.send_many(
                values(checkpoint, sent), [5] * (sent - checkpoint), positions=range(checkpoint, sent), partition="7"
            )
        for injector in zombies:
            await injector.close()
        check_once(made, sent)
