"""Injectors against the real server: each record takes effect once, and the watermark follows (5.2)."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from typing import Any

import msgspec
import pytest

from millwheel.client.control import ControlClient
from millwheel.client.injector import (
    BatchOf,
    Injector,
    InjectorClosedError,
    InjectorSettings,
    InjectorSupersededError,
    StreamDrainingError,
)
from millwheel.client.subscription import From, Subscription
from millwheel.model.time import MAX_TIMESTAMP, hours, seconds
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1.topology_pb2 import CodeReference
from millwheel.sdk.errors import KeyExtractionError, UsageError, ValueEncodeError
from millwheel.server.dev_server import DevServer
from tests.injectors import injected_shop as sample
from tests.injectors.conftest import Submit
from tests.injectors.injected_shop import Order
from tests.injectors.inside import session_of
from tests.patience import patience
from tests.sdk.test_odd_packages import packed

ORDERS = [Order(f"user-{number % 7}", number) for number in range(2_500)]
TIMES = [1_000_000 + number for number in range(2_500)]


async def everything(address: str, stream: str) -> list[dict[str, Any]]:
    """All records of a stream that has ended."""
    found: list[dict[str, Any]] = []
    async with Subscription(stream, start=From.OLDEST, address=address, record_type=dict, until_end=True) as reader:
        async for batch in reader:
            found += batch.values
    return found


def check_once(found: list[dict[str, Any]], orders: list[Order]) -> None:
    assert Counter(row["number"] for row in found) == Counter(order.number for order in orders)
    for user in {order.customer for order in orders}:
        count = sum(order.customer == user for order in orders)
        assert sorted(row["nth"] for row in found if row["user"] == user) == list(range(1, count + 1))


async def keep_sending(injector: Injector) -> None:
    """Send records until that fails."""
    for time in range(1_000_000, 2_000_000, 1_000):
        await injector.send(ORDERS[0], timestamp=time)
        await injector.advance(time)
        await asyncio.sleep(0.005)


@pytest.mark.guarantee("G1", section="5.2")
async def test_what_is_sent_takes_effect_once(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with Injector("orders", address=server.address, topology=sample.shop) as injector:
        await injector.send_many(ORDERS[:2_000], TIMES[:2_000])
        for order, time in zip(ORDERS[2_000:], TIMES[2_000:], strict=True):
            await injector.send(order, timestamp=time)
        await injector.flush()
        assert injector.unacked == 0
        await injector.finish()
        assert injector.watermark == MAX_TIMESTAMP
        with pytest.raises(InjectorClosedError, match="finished"):
            await injector.send(ORDERS[0], timestamp=0)
    check_once(await everything(server.address, "echo"), ORDERS)
    with pytest.raises(RequestError, match="final"):
        await Injector("orders", address=server.address).open()


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_an_injector_knows_its_stream_by_the_full_name(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    for name, topology in (("orders", None), ("orders", sample.shop), ("shop/orders", sample.shop)):
        async with Injector(name, topology=topology, address=server.address) as injector:
            assert injector.stream == "shop/orders"
            await injector.send(ORDERS[0], timestamp=1, id="the same")
    async with Injector("shop/orders", address=server.address) as injector:
        await injector.finish()
    check_once(await everything(server.address, "echo"), ORDERS[:1])
    with pytest.raises(UsageError, match="an injector's stream is STREAM or TOPOLOGY/STREAM, not 'a/b/c'"):
        Injector("a/b/c", address=server.address)


@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.parametrize("kind", ["positions", "ids"])
async def test_a_restarted_source_sends_again_without_effect(server: DevServer, submit: Submit, kind: str) -> None:
    await submit("shop")

    def named(start: int, end: int) -> dict[str, Any]:
        numbers = range(start, end)
        return {"positions": numbers, "partition": "p"} if kind == "positions" else {"ids": [f"o{n}" for n in numbers]}

    first = Injector("orders", address=server.address, topology=sample.shop)
    await first.open()
    await first.send_many(ORDERS[:1_500], TIMES[:1_500], **named(0, 1_500))
    await first.close()
    async with Injector("orders", address=server.address, topology=sample.shop) as second:
        await second.send_many(ORDERS, TIMES, **named(0, 2_500))
        await second.finish()
        assert second.acknowledged("p") == (2_500 if kind == "positions" else None)
    check_once(await everything(server.address, "echo"), ORDERS)


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_two_processes_of_one_source_send_one_record(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with (
        Injector("orders", address=server.address, process="a", source="group") as one,
        Injector("orders", address=server.address, process="b", source="group") as other,
    ):
        plain = [{"user": order.customer, "number": order.number} for order in ORDERS]
        await one.send_many(plain, TIMES, positions=range(2_500), partition="7")
        await other.send_many(plain, TIMES, positions=range(2_500), partition="7")
        await asyncio.gather(one.finish(), other.finish())
    check_once(await everything(server.address, "echo"), ORDERS)


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_replayed_batches_have_no_effect(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with Injector("orders", address=server.address, process="spark", topology=sample.shop) as driver:

        async def task(batch: int, orders: list[Order]) -> None:
            async with Injector(
                "orders", address=server.address, process="spark", topology=sample.shop, sequencer=driver.sequencer
            ) as injector:
                ids = [order.number for order in orders]
                await injector.send_many(orders, [1] * len(orders), ids=ids, batch=BatchOf("query", batch))
                with pytest.raises(UsageError, match="on another's behalf"):
                    await injector.send(orders[0], timestamp=1)
                with pytest.raises(UsageError, match="on another's behalf"):
                    await injector.advance(5)

        await asyncio.gather(task(0, ORDERS[:1_000]), task(0, ORDERS[:1_000]))
        await task(1, ORDERS[1_000:])
        await asyncio.gather(task(0, ORDERS[:500][::-1]), task(1, ORDERS[1_000:]))
        await driver.finish()
    check_once(await everything(server.address, "echo"), ORDERS)


@pytest.mark.paper(section="6.1.1")
async def test_ids_are_unique_within_their_source_or_batch(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with (
        Injector("orders", address=server.address, process="a", topology=sample.shop) as one,
        Injector("orders", address=server.address, process="b", topology=sample.shop) as other,
    ):
        for injector in (one, other):
            await injector.send(Order("u", 1), timestamp=5, id="same")
            await injector.send(Order("u", 2), timestamp=5, id="same")
        for batch in (7, 8):
            for _ in range(2):
                await one.send_many([Order("v", batch)], [5], ids=["same"], batch=BatchOf("q", batch))
            await one.flush()
        await asyncio.gather(one.finish(), other.finish())
    assert Counter(row["number"] for row in await everything(server.address, "echo")) == {1: 2, 7: 1, 8: 1}


@pytest.mark.paper(section="6.1.1")
async def test_a_delegates_records_are_taken_wherever_the_watermark_is(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with Injector("orders", address=server.address, topology=sample.shop) as driver:
        await driver.advance(hours(5))
        await driver.send(ORDERS[0], timestamp=hours(6), id=0)
        await driver.flush()
        async with Injector(
            "orders", address=server.address, topology=sample.shop, sequencer=driver.sequencer
        ) as delegate:
            await delegate.send(ORDERS[1], timestamp=hours(6), id=1)
            await asyncio.wait_for(delegate.flush(), patience(5))
        await driver.finish()
    check_once(await everything(server.address, "echo"), ORDERS[:2])


@pytest.mark.paper(section="4.2")
async def test_a_worker_extracts_keys_that_need_code(server: DevServer, submit: Submit) -> None:
    await submit("codekeyed")
    plain = [{"user": order.customer, "number": order.number} for order in ORDERS]
    async with Injector("orders", address=server.address, process="plain") as injector:
        await injector.send_many(plain[:2_000], TIMES[:2_000], positions=range(2_000))
        for number in range(2_000, 2_500):
            await injector.send(plain[number], timestamp=TIMES[number], position=number)
        data = [msgspec.msgpack.encode(order) for order in ORDERS[:10]]
        await injector.send_many(data, TIMES[:10], encoded=True, keys={"hours": ["given"] * 10})
        await injector.send_many(data, TIMES[:10], encoded=True, keys=["given"] * 10)
        async with Injector("orders", address=server.address, process="typed", topology=sample.codekeyed) as typed:
            await typed.send_many(ORDERS, TIMES)
            await typed.finish()
        await injector.finish()
    totals = {row["bucket"]: row["count"] for row in await everything(server.address, "totals")}
    assert totals == {"given": 20, "0": 834 * 2, "1": 833 * 2, "2": 833 * 2}


@pytest.mark.paper(section="4.2")
async def test_a_record_that_no_consumer_can_key_is_refused(server: DevServer, submit: Submit) -> None:
    await submit("fussy")
    async with Injector("orders", address=server.address) as injector:
        good = {"user": "u", "number": 1}
        with pytest.raises(KeyExtractionError, match=r"topology 'fussy': .*'echo' by key\(only_odd\): .*even: 2"):
            await injector.send_many([good, {"user": "u", "number": 2}, good], TIMES[:3])
        assert injector.accepted == 1
        await injector.send(good, timestamp=TIMES[1])
        await injector.finish()
    assert len(await everything(server.address, "echo")) == 2


async def submit_broken(control: ControlClient) -> None:
    """Submit a topology whose code no worker can import."""
    data = packed({"broken.py": "raise RuntimeError('not today')"})
    digest = hashlib.sha256(data).hexdigest()
    spec = sample.broken.to_spec(CodeReference(digest=digest, entry_point="broken:topology"))
    await control.upload_package(digest, data)
    await control.submit(spec)


@pytest.mark.paper(section="4.2")
@pytest.mark.parametrize("name", ["unkeyable", "fussy_hours", "broken"])
async def test_no_topology_that_is_submitted_ends_an_injector(
    server: DevServer, submit: Submit, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Records without a key at the new consumer wait for it. The former consumer gets all records."""
    await submit("shop")
    plain = [{"user": order.customer, "number": order.number} for order in ORDERS]
    async with Injector("orders", address=server.address) as injector, ControlClient(server.address) as control:
        await injector.send_many(plain[:100], TIMES[:100], positions=range(100))
        await (submit_broken(control) if name == "broken" else submit(name))
        await session_of(injector).until(lambda: len(session_of(injector).routing.consumers) == 2)
        await injector.send_many(plain[100:500], TIMES[100:500], positions=range(100, 500))
        for number in range(500, 520):
            await injector.send(plain[number], timestamp=TIMES[number], position=number)
        rows: list[dict[str, Any]] = []
        async with Subscription("shop/echo", start=From.OLDEST, address=server.address, record_type=dict) as reader:
            async for batch in reader:
                rows += batch.values
                if len(rows) >= 520:
                    break
        assert injector.unacked > 0
        assert "wait for their keys" in caplog.text
        await control.cancel(name.replace("_", "-"))
        await asyncio.wait_for(injector.finish(), patience(10))
    check_once(rows, ORDERS[:520])


@pytest.mark.paper(section="4.2")
async def test_a_record_for_a_log_alone_is_checked(server: DevServer, submit: Submit) -> None:
    await submit("unread")
    checked = InjectorSettings(check_at_worker=True)
    async with Injector("orders", address=server.address, settings=checked) as injector:
        for bad in ({"user": "u", "number": "seven"}, {"user": "u"}):
            with pytest.raises(ValueEncodeError, match="number"):
                await injector.send(bad, timestamp=1)
        await injector.send(ORDERS[0], timestamp=1)
        await injector.finish()
    assert [row["number"] for row in await everything(server.address, "orders")] == [0]


@pytest.mark.guarantee("G1", section="4.2")
async def test_waiting_records_go_on_when_the_code_can_key_them(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    await submit("late_shop")
    plain = [{"user": order.customer, "number": order.number} for order in ORDERS[:300]]
    async with Injector("orders", address=server.address) as injector, ControlClient(server.address) as control:
        await control.pause("late-shop")
        await injector.send_many(plain, TIMES[:300], positions=range(300))
        await asyncio.sleep(0.2)
        assert injector.watermark <= TIMES[0]
        await control.resume("late-shop")
        await asyncio.wait_for(injector.finish(), patience(20))
    totals = {row["bucket"]: row["count"] for row in await everything(server.address, "totals")}
    assert totals == {"0": 100, "1": 100, "2": 100}


@pytest.mark.guarantee("G3", section="fig. 12")
async def test_a_second_process_of_a_name_ends_the_first(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with Injector("orders", address=server.address, topology=sample.shop) as first:
        await first.send(ORDERS[0], timestamp=5)
        await first.flush()
        async with Injector("orders", address=server.address, topology=sample.shop) as second:
            await second.send(ORDERS[1], timestamp=6)
            await second.flush()
            with pytest.raises(InjectorSupersededError, match="'injector' of stream 'shop/orders' has a successor"):
                await keep_sending(first)
            await second.finish()
        with pytest.raises(InjectorSupersededError):
            await first.flush()
        await first.close()
    assert [row["number"] for row in await everything(server.address, "echo")] == [0, 1]


@pytest.mark.paper(section="5.2")
async def test_a_draining_stream_ends_the_sending_but_not_the_delivery(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with (
        Injector("orders", address=server.address, topology=sample.shop) as injector,
        ControlClient(server.address) as control,
    ):
        await injector.send_many(ORDERS, TIMES)
        await control.drain("shop")
        with pytest.raises(StreamDrainingError, match="takes no new records"):
            await keep_sending(injector)
        await injector.flush()


@pytest.mark.guarantee("G8", section="5.2")
async def test_the_shared_watermark_follows_and_idle_ones_leave_it(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with (
        Injector("orders", address=server.address, process="a", topology=sample.shop) as one,
        Injector("orders", address=server.address, process="b", topology=sample.shop) as other,
        Subscription("echo", start=From.OLDEST, address=server.address, watermarks=True, record_type=dict) as reader,
    ):
        batches = aiter(reader)

        async def reach(watermark: int) -> None:
            while reader.watermark < watermark:
                await anext(batches)
            assert reader.watermark == watermark

        await one.advance(1_000)
        await other.advance(500)
        await reach(500)
        await other.idle()
        await reach(1_000)
        await one.advance(2_000)
        await reach(2_000)
        await other.send(ORDERS[0], timestamp=1_500)
        assert (other.watermark, other.late) == (2_000, 1)
        await other.send(ORDERS[1], timestamp=2_500)
        await one.advance(9_000)
        await other.advance(3_000)
        await reach(3_000)


@pytest.mark.guarantee("G8", section="5.2")
async def test_the_promise_of_the_only_process_outlives_its_idleness(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with (
        Injector("orders", address=server.address, process="a", topology=sample.shop) as only,
        Subscription("echo", start=From.OLDEST, address=server.address, watermarks=True, record_type=dict) as reader,
    ):
        batches = aiter(reader)
        for watermark in (1_000, 2_000, 3_000):
            await only.advance(watermark)
            await only.idle()
            async with asyncio.timeout(patience(10)):
                while reader.watermark < watermark:
                    await anext(batches)


@pytest.mark.paper(section="8.4")
async def test_records_are_throttled_until_the_low_watermark_follows(server: DevServer, submit: Submit) -> None:
    await submit("throttled")
    async with (
        Injector("orders", address=server.address, process="fast", topology=sample.throttled) as fast,
        Injector("orders", address=server.address, process="slow", topology=sample.throttled) as slow,
    ):
        await slow.advance(seconds(1))
        await fast.advance(seconds(5))
        await fast.send(ORDERS[0], timestamp=seconds(6))
        await fast.flush()
        waiting = asyncio.create_task(fast.send(ORDERS[1], timestamp=seconds(60)))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await slow.send(ORDERS[2], timestamp=seconds(99))
        assert not waiting.done(), "the source that holds the watermark back is never throttled, others are"
        await slow.advance(seconds(51))
        await fast.advance(seconds(50))
        await asyncio.wait_for(waiting, patience(10))


@pytest.mark.guarantee("G8", section="5.2")
async def test_an_injector_takes_nothing_before_it_is_open(server: DevServer, submit: Submit) -> None:
    """Regression: the injector reported without a sequencer.

    The authority refused or missed the report, so the low watermark stayed.
    """
    await submit("shop")
    injector = Injector("orders", address=server.address, topology=sample.shop)
    opening = asyncio.create_task(injector.open())
    for _ in range(5):
        with pytest.raises(InjectorClosedError, match="was not opened"):
            await injector.advance(5)
        await asyncio.sleep(0)
    await opening
    await injector.finish(patience(20))
    assert injector.watermark == MAX_TIMESTAMP
    await injector.close()


async def test_values_and_calls_that_make_no_sense_are_named(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    with pytest.raises(UsageError, match="no stream 'nothing'"):
        Injector("nothing", address=server.address, topology=sample.shop)
    with pytest.raises(UsageError, match="process is a name without a slash"):
        Injector("orders", address=server.address, process="a/b")
    with pytest.raises(RequestError, match="nothing"):
        await Injector("nothing", address=server.address).open()
    injector = Injector("orders", address=server.address, topology=sample.shop)
    with pytest.raises(InjectorClosedError, match="async with"):
        await injector.send(ORDERS[0], timestamp=1)
    async with injector:
        with pytest.raises(ValueEncodeError, match="'orders' carries Order, not dict"):
            await injector.send({}, timestamp=1)
        with pytest.raises(UsageError, match="1 values, but 2 timestamps"):
            await injector.send_many([ORDERS[0]], [1, 2])
        with pytest.raises(UsageError, match="ids or positions, not both"):
            await injector.send(ORDERS[0], timestamp=1, id="a", position=1)
        with pytest.raises(UsageError, match="a batch needs ids"):
            await injector.send_many([ORDERS[0]], [1], batch=BatchOf("q", 1))
        with pytest.raises(UsageError, match="id is empty"):
            await injector.send(ORDERS[0], timestamp=1, id="")
        with pytest.raises(UsageError, match="opened once"):
            await injector.open()
    async with Injector("orders", address=server.address) as plain:
        with pytest.raises(ValueEncodeError, match=r"is no Order: .* `user`"):
            await plain.send({"number": 5}, timestamp=1)
        with pytest.raises(UsageError, match="2 keys"):
            await plain.send_many([{"number": 5}], [1], keys=["a", "b"])
        await plain.send_many([Order("u", 5), {"user": "u", "number": 6}], [1, 1])
