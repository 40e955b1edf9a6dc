"""Records that wait for their keys: how their injector asks, and what the worker knows of it (sections 4.2, 6.1.1)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from millwheel.client.injector import Injector
from millwheel.client.injector.record_requests import RecordAsker
from millwheel.client.injector.routing import ConsumerRouting
from millwheel.client.injector.unkeyed import WaitingSummary
from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.server.dev_server import DevServer
from tests.injectors.conftest import Submit
from tests.injectors.inside import ask_instead, session_of
from tests.patience import patience, until

WITHOUT_KEY = "MILLWHEEL_TEST_WITHOUT_KEY"


@asynccontextmanager
async def opened(server: DevServer, submit: Submit, *topologies: str) -> AsyncIterator[Injector]:
    """An injector that leaves its records behind."""
    for name in topologies:
        await submit(name)
    injector = Injector("orders", address=server.address, process="p")
    await injector.open()
    try:
        yield injector
    finally:
        await injector.close()


def consumer_of(injector: Injector, topology: str) -> ConsumerRouting:
    (found,) = (one for one in session_of(injector).routing.consumers.values() if one.topology == topology)
    return found


def failing(server: DevServer) -> list[inspection.KeyFunctionFailure]:
    worker = server.worker
    return worker.key_failures.shown(worker.catalog.consumers, wall_now())


def processes(server: DevServer) -> list[str]:
    return [waits.process for one in failing(server) for waits in one.waiting]


@pytest.mark.paper(section="4.2")
async def test_a_consumer_whose_workers_hang_delays_no_other(server: DevServer, submit: Submit) -> None:
    async with opened(server, submit, "shop", "fussy_shop", "fussy_hours") as injector:
        hangs = consumer_of(injector, "fussy-hours").incarnation
        others = consumer_of(injector, "fussy-shop").incarnation
        asked, under_way, most = Counter[str](), Counter[str](), 0

        async def ask(
            consumer: ConsumerRouting, encoded: Sequence[bytes], waiting: WaitingSummary | None
        ) -> wire.PrepareRecordsResponse | str:
            nonlocal most
            if waiting is None:
                return await real(consumer, encoded, waiting)  # type: ignore[no-any-return]
            name = consumer.incarnation
            asked[name] += 1
            under_way[name] += 1
            most = max(most, under_way[name])
            try:
                if name == hangs:
                    await asyncio.Event().wait()
                return await real(consumer, encoded, waiting)  # type: ignore[no-any-return]
            finally:
                under_way[name] -= 1

        real = ask_instead(injector, ask)
        for partition in "ab":
            await injector.send({"user": "u", "number": 2}, timestamp=1, position=0, partition=partition)
        await until(lambda: asked[hangs] == 1 and asked[others] >= 6)
        assert most == 1, "answers about one consumer's queues come in their order"
        assert session_of(injector).core.unkeyed.summary(hangs) == (1, 2)


@pytest.mark.paper(section="4.2")
async def test_a_worker_knows_when_all_keys_of_a_process_are_found(
    server: DevServer, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WITHOUT_KEY, "2 4")
    async with opened(server, submit, "shop", "moody_hours") as injector:
        for number, partition in ((2, "a"), (4, "b")):
            await injector.send({"user": "u", "number": number}, timestamp=1, position=0, partition=partition)
        unkeyed = session_of(injector).core.unkeyed
        await until(lambda: processes(server) == ["p"])
        monkeypatch.setenv(WITHOUT_KEY, "2")
        await until(lambda: unkeyed.records == 1)
        assert processes(server) == ["p"], "another record still waits"
        monkeypatch.delenv(WITHOUT_KEY)
        await until(lambda: unkeyed.records == 0)
        assert failing(server) != []
        assert processes(server) == []
        await injector.flush(patience(20))


@pytest.mark.paper(section="4.2")
async def test_a_process_waits_while_another_of_its_queues_does(server: DevServer, submit: Submit) -> None:
    asker = RecordAsker("fussy/orders", "p")
    async with opened(server, submit, "fussy") as injector:
        consumer = consumer_of(injector, "fussy")
        even, odd = (msgspec.msgpack.encode({"user": "u", "number": number}) for number in (2, 3))
        for values, queues, known in (
            ([even], 2, ["p"]),
            ([odd], 2, ["p"]),
            ([odd, even], 1, ["p"]),
            ([odd], 1, []),
        ):
            assert not isinstance(await asker.ask(consumer, values, WaitingSummary(1, queues)), str)
            assert processes(server) == known
    await asker.close()


@pytest.mark.paper(section="4.2")
async def test_after_the_first_failure_no_waiting_record_is_tried(server: DevServer, submit: Submit) -> None:
    asker = RecordAsker("fussy/orders", "p")
    async with opened(server, submit, "fussy") as injector:
        consumer = consumer_of(injector, "fussy")
        values = [msgspec.msgpack.encode({"user": "u", "number": number}) for number in (1, 3, 4, 5, 6)]
        answer = await asker.ask(consumer, values, WaitingSummary(1, 1))
        assert not isinstance(answer, str)
        assert list(answer.keys) == [b"1", b"3", b"", b"", b""]
        assert [problem.index for problem in answer.problems] == [2]
        (one,) = failing(server)
        assert (one.attempts, processes(server)) == (1, ["p"])
        answer = await asker.ask(consumer, values)
        assert not isinstance(answer, str)
        assert list(answer.keys) == [b"1", b"3", b"", b"5", b""], "each of these may be refused"
        assert [problem.index for problem in answer.problems] == [2, 4]
    await asker.close()
