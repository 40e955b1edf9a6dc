"""Records that come by requests over HTTP, against a real server and real sockets (5.2)."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deploy.local.child import free_ports
from millwheel.client.control import ControlClient
from millwheel.client.injector import InjectorSupersededError
from millwheel.client.subscription import From, Subscription
from millwheel.connectors.files.parsing import TimestampField, TimeUnit
from millwheel.injectors.http.bodies import BodyReader
from millwheel.injectors.http.gateway import HttpGateway, HttpSettings
from millwheel.injectors.http.serving import ServingLimits
from millwheel.model.time import seconds
from millwheel.rpc.clock import wall_now
from millwheel.server.dev_server import DevServer
from tests.injectors import posted_shop
from tests.injectors.gateways import LINES, Gate, finish, gateway, lines, order
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system.server import Server


@pytest.fixture
async def posted(server: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The topology of this test. Returns the file that opens the key ``stuck``."""
    opening = tmp_path / "open"
    monkeypatch.setenv(posted_shop.OPEN, str(opening))
    await submit_copy(server.address, posted_shop.__file__, "posted", tmp_path)
    return opening


def numbers(found: list[dict[str, object]]) -> list[object]:
    return [row["number"] for row in found]


@pytest.mark.guarantee("G1", section="5.2")
async def test_a_request_to_two_gateways_counts_once(server: DevServer, posted: Path) -> None:
    body = lines([order(number) for number in range(1_500)])
    async with gateway(server.address, "one") as one, gateway(server.address, "two") as two:
        first = await asyncio.gather(*(gate.post(body, "morning") for gate in (one, two, one)))
        again = await two.post(gzip.compress(body[:20].encode()) + gzip.compress(body[20:].encode()), "morning",
                               Content_Encoding="gzip")  # fmt: skip
        quoted = await one.post(body, '"morning"')
        assert [(answer.status, answer.body) for answer in (*first, again, quoted)] == [(200, {"records": 1_500})] * 5
        array = {"Content-Type": "application/json", "Idempotency-Key": "evening"}
        for gate in (one, two):
            async with gate.client.post(gate.url, data=json.dumps([order(2_000), order(2_001)]), headers=array) as got:
                assert (got.status, await got.json()) == (200, {"records": 2})
        assert (await one.post("\n \n", "empty")).body == {"records": 0}
        found = await finish(server.address, one, two)
    assert numbers(found) == [*range(1_500), 2_000, 2_001]
    assert [row["nth"] for row in found] == sorted(row["nth"] for row in found)


@pytest.mark.guarantee("G1", section="5.2")
async def test_ids_of_records_count_in_any_request(server: DevServer, posted: Path) -> None:
    reader = BodyReader(TimestampField("at", TimeUnit.MICROSECONDS), "id")
    settings = HttpSettings(reader)
    now = wall_now()
    async with gateway(server.address, "one", settings) as one, gateway(server.address, "two", settings) as two:
        a, b, c = (order(number, id=f"o-{number}", at=now + number) for number in range(3))
        assert (await one.post(lines([a, b, a]))).status == 200
        assert (await two.post(lines([b, c]), "a-key")).status == 200
        no_id = await two.post(lines([a, order(7, at=now)]))
        assert (no_id.status, no_id.message) == (400, "line 2: no field 'id'")
        found = await finish(server.address, one, two)
    assert [(row["number"], row["at"]) for row in found] == [(number, now + number) for number in range(3)]


async def test_one_wrong_record_refuses_the_request(server: DevServer, posted: Path) -> None:
    many = [order(number) for number in range(2_500)]
    async with gateway(server.address) as gate:
        bad = await gate.post(lines(many[:2]) + "{]\n" + lines([3, 4]), "bad")
        assert (bad.status, bad.reason) == (400, "RECORD_REFUSED")
        assert [problem["where"] for problem in bad.body["error"]["problems"]] == ["line 3", "line 4", "line 5"]
        assert bad.message.startswith("line 3: no JSON: ")
        wrong = await gate.post(lines([*many[:2_200], {"user": "ann", "number": "7"}, *many[2_200:]]), "wrong")
        assert wrong.status == 400
        assert "line 2,201" in wrong.message or "line 2201" in wrong.message
        assert "Expected `int`, got `str` - at `$.number`" in wrong.message
        keyless = await gate.post(lines([order(1), {"number": 1}]), "no user")
        assert (keyless.status, keyless.reason) == (400, "RECORD_REFUSED")
        for status, reason, headers in (
            (400, "KEY_MISSING", {}),
            (400, "KEY_MALFORMED", {"Idempotency_Key": "k" * 256}),
            (400, "TIME_MALFORMED", {"Idempotency_Key": "k", "Millwheel_Event_Time": "2026-01-01T00:00:00"}),
            (400, "TIME_MALFORMED", {"Idempotency_Key": "k", "Millwheel_Event_Time": "1970-01-01T00:00:00Z"}),
            (400, "BODY_MALFORMED", {"Idempotency_Key": "k", "Content_Encoding": "gzip"}),
            (415, "CONTENT_TYPE", {"Idempotency_Key": "k", "Content_Encoding": "br"}),
            (403, "FOREIGN_HOST", {"Idempotency_Key": "k", "Host": "evil.example:80"}),
            (415, "CONTENT_TYPE", {"Idempotency_Key": "k", "Content_Type": "text/plain"}),
        ):
            refused = await gate.post(lines([order(1)]), **headers)
            assert (refused.status, refused.reason) == (status, reason)
        assert (await gate.post(lines([order(5)]), "corrected")).status == 200
        reused = await gate.post(lines([order(6)]), "corrected")
        assert (reused.status, reused.reason) == (409, "KEY_REUSED")
        async with gate.client.get(gate.url) as response:
            assert response.status == 405
        async with gate.client.post(gate.url + "/x", data="{}") as response:
            assert "POST to /posted/orders" in (await response.json())["error"]["remedy"]
        assert numbers(await finish(server.address, gate)) == [5]


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_one_key_takes_one_of_two_bodies(server: DevServer, posted: Path) -> None:
    """Both wait for room at once. Records of the second one would count as known, and be lost."""
    settings = HttpSettings(answer_seconds=patience(5))
    async with gateway(server.address, "one", settings, window=1) as gate:
        stuck = asyncio.create_task(gate.post(lines([order(1, "stuck")]), "stuck"))
        await until(lambda: gate.injector.unacked > 0, patience(10))
        bodies = [lines([order(2)]), lines([order(2)]), lines([order(3), order(4)])]
        requests = [asyncio.create_task(gate.post(body, "twice")) for body in bodies]
        done, _ = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED, timeout=patience(10))
        assert {one.result().reason for one in done} == {"KEY_REUSED"}
        posted.touch()  # noqa: ASYNC240  # an empty file
        await stuck
        answers = sorted(answer.status for answer in await asyncio.gather(*requests))
        found = numbers(await finish(server.address, gate))
    # Which body comes first is the network's choice.
    assert (answers, found) in [([200, 200, 409], [2, 1]), ([200, 409, 409], [3, 4, 1])]


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_a_repetition_that_comes_too_late_is_refused(server: DevServer, posted: Path) -> None:
    """The stream keeps ids for 30 s behind its low watermark. An earlier promise lets them be forgotten sooner."""
    then = datetime.now(UTC) - timedelta(seconds=3)
    at = {"Millwheel_Event_Time": then.isoformat()}
    late = {"Millwheel_Event_Time": (then - timedelta(seconds=20)).isoformat()}
    known, old = lines([order(1)]), lines([order(2)])
    async with gateway(server.address) as gate, reading(server.address) as reader:
        assert (await gate.post(known, "known", **at)).status == 200
        await reach(reader, wall_now() - seconds(15))
        for _ in range(2):
            assert (await gate.post(old, "old", **late)).status == 200, "it is late, and its id is kept"
        assert (await gate.post(lines([order(3)]), "no time")).status == 200
        for ahead in (10, 90):
            promised = wall_now() + seconds(ahead)
            await gate.injector.advance(promised)
            await reach(reader, promised)
            if ahead == 10:
                for key, body, time in (("known", known, at), ("no time", lines([order(3)]), {})):
                    assert (await gate.post(body, key, **time)).status == 200, "its id is kept for 30 s"
        for key, body, time in (("known", known, at), ("old", old, late), ("new", known, at)):
            refused = await gate.post(body, key, **time)
            assert (refused.status, refused.reason) == (410, "IDS_FORGOTTEN")
            assert "it would count twice" in refused.message
        # Why there is a refusal: without a time, no process knows that the request is an old one.
        assert (await gate.post(lines([order(3)]), "no time")).status == 200
        found = await finish(server.address, gate)
    assert [(row["number"], row["late"]) for row in found] == [(1, False), (2, True), (3, False), (3, True)]


@asynccontextmanager
async def reading(address: str) -> AsyncIterator[Subscription]:
    """A reader that knows the low watermark of what comes out."""
    async with Subscription("posted/echo", address=address, watermarks=True, record_type=dict) as reader:
        yield reader


async def reach(reader: Subscription, watermark: int) -> None:
    """Read until the low watermark is there."""
    async with asyncio.timeout(patience(10)):
        while reader.watermark < watermark:
            await anext(reader)


@pytest.mark.guarantee("G13", section="5.2")
async def test_what_is_full_says_when_to_come_again(server: DevServer, posted: Path) -> None:
    settings = HttpSettings(answer_seconds=2)
    async with gateway(server.address, "one", settings, ServingLimits(requests=2)) as gate:
        waiting = asyncio.create_task(gate.post(lines([order(1, "stuck")]), "waits"))
        await until(lambda: gate.injector.unacked > 0, patience(10))
        assert (await gate.post(lines([order(2)]), "beside")).status == 200, "a failing record delays its own request"
        second = asyncio.create_task(gate.post(lines([order(3, "stuck"), order(4)]), "waits too"))
        await until(lambda: gate.injector.unacked > 1, patience(10))
        full = await gate.post(lines([order(5)]), "full")
        assert (full.status, full.reason, full.headers["Retry-After"]) == (429, "TOO_MANY_REQUESTS", "1")
        slow = await waiting
        assert (slow.status, slow.reason, slow.headers["Retry-After"]) == (504, "NOT_ACKED", "1")
        assert (await second).status == 504
        posted.touch()  # noqa: ASYNC240  # an empty file
        for key, orders in (("waits", [order(1, "stuck")]), ("waits too", [order(3, "stuck"), order(4)])):
            assert (await gate.post(lines(orders), key)).status == 200
        assert (await gate.post(lines([order(5)]), "full")).status == 200
        assert numbers(await finish(server.address, gate)) == [2, 4, 5, 1, 3]


@pytest.mark.guarantee("G7", section="5.2")
async def test_a_record_that_waits_for_room_is_not_late(server: DevServer, posted: Path) -> None:
    settings = HttpSettings(allowed_delay=seconds(0.1), answer_seconds=patience(5))
    async with gateway(server.address, "one", settings, window=1) as gate:
        stuck = asyncio.create_task(gate.post(lines([order(1, "stuck")]), "stuck"))
        await until(lambda: gate.injector.unacked > 0, patience(10))
        waits = [asyncio.create_task(gate.post(lines([order(2), order(3)]), f"waits {number}")) for number in range(2)]
        await asyncio.sleep(0.8)  # longer than the allowed delay, and some promises
        posted.touch()  # noqa: ASYNC240  # an empty file
        for request in (stuck, *waits):
            assert (await request).status == 200
        found = await finish(server.address, gate)
    assert [(row["number"], row["late"]) for row in found] == [(n, False) for n in (2, 2, 3, 3, 1)]
    assert gate.injector.late == 0


@pytest.mark.guarantee("G13", section="5.2")
async def test_a_large_request_passes_a_record_that_fails(server: DevServer, posted: Path) -> None:
    settings = HttpSettings(answer_seconds=patience(3))
    async with gateway(server.address, "one", settings, window=10) as gate:
        stuck = asyncio.create_task(gate.post(lines([order(1, "stuck")]), "stuck"))
        await until(lambda: gate.injector.unacked > 0, patience(10))
        large = await gate.post(lines([order(number) for number in range(2, 14)]), "more than the window")
        assert large.body == {"records": 12}
        posted.touch()  # noqa: ASYNC240  # an empty file
        await stuck
        assert numbers(await finish(server.address, gate)) == [*range(2, 14), 1]


@pytest.mark.guarantee("G13", section="5.2")
async def test_repetitions_of_what_waits_take_no_room(server: DevServer, posted: Path) -> None:
    settings = HttpSettings(answer_seconds=0.5)
    stuck = lines([order(1, "stuck")])
    async with gateway(server.address, "one", settings, window=3) as gate:
        for _ in range(4):
            waits = await gate.post(stuck, "waits")
            assert (waits.status, waits.reason) == (504, "NOT_ACKED")
        posted.touch()  # noqa: ASYNC240  # an empty file

        async def taken() -> bool:
            return (await gate.post(stuck, "waits")).status == 200

        await until(taken, patience(10))
        assert numbers(await finish(server.address, gate)) == [1]


async def test_a_client_can_hold_little(server: DevServer, posted: Path) -> None:
    limits = ServingLimits(body=20_000, body_seconds=0.5, head_seconds=0.5, connections=20)
    async with gateway(server.address, "one", limits=limits) as gate:
        big = lines([order(number) for number in range(2_000)])

        async def in_parts() -> object:
            for start in range(0, len(big), 5_000):
                yield big[start : start + 5_000].encode()

        too_large = {**LINES, "Idempotency-Key": "big"}
        for body in (big, in_parts(), gzip.compress(b" " * 50_000_000)):
            packed = {"Content-Encoding": "gzip"} if isinstance(body, bytes) else {}
            async with gate.client.post(gate.url, data=body, headers={**too_large, **packed}) as response:
                assert response.status == 413
                assert (await response.json())["error"]["reason"] == "BODY_TOO_LARGE"
        assert (await said(gate, head(100) + b'{"user"')).startswith(b"HTTP/1.1 408 ")
        assert await said(gate, head(100)[:-4]) == b"", "the head does not end"
        assert await said(gate, b"") == b""
        assert (await said(gate, head(100) + b'{"user"', leaves=True)) == b"", "the client is gone in the middle"
        opened = [await asyncio.open_connection("127.0.0.1", gate.port) for _ in range(40)]
        closed = [asyncio.create_task(reader.read()) for reader, _ in opened]
        done, _ = await asyncio.wait(closed, timeout=patience(5))
        assert len(done) == 40
        for _, writer in opened:
            writer.close()
        assert (await gate.post(lines([order(1)]), "after all that")).status == 200
        assert numbers(await finish(server.address, gate)) == [1]


def head(length: int) -> bytes:
    """The head of a request with a body."""
    return (
        f"POST /posted/orders HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


async def said(gate: Gate, data: bytes, *, leaves: bool = False) -> bytes:
    """What a gateway says to some bytes, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gate.port)
    writer.write(data)
    await writer.drain()
    if leaves:
        writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    async with asyncio.timeout(patience(10)):
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@pytest.mark.guarantee("G8", section="5.2")
async def test_the_low_watermark_follows_the_clock(server: DevServer, posted: Path) -> None:
    """An idle gateway lets the others pass, and takes part again with its next request."""
    settings = HttpSettings(allowed_delay=seconds(0))
    leaves = HttpSettings(allowed_delay=seconds(60), idle_after=seconds(0.2))
    async with gateway(server.address, "clock", settings) as clock:
        begun = wall_now()
        await until(lambda: clock.injector.watermark > begun, patience(10))
        async with gateway(server.address, "leaves", leaves) as quiet, ControlClient(server.address) as client:

            async def idle() -> bool:
                return any(one.process == "leaves" and one.idle for one in await client.list_injectors("orders"))

            await until(idle, patience(10), every=0.1)
            assert (await quiet.post(lines([order(1)]), "wakes it")).status == 200
            await until(idle, patience(10), every=0.1)
            found = await finish(server.address, clock, quiet)
    assert [(row["number"], row["late"]) for row in found] == [(1, False)]


async def test_a_gateway_ends_with_its_injector(server: DevServer, posted: Path) -> None:
    async with gateway(server.address, "same") as first:
        made = HttpGateway(first.injector, HttpSettings())
        running = asyncio.create_task(made.run())
        async with first.client.get(first.url.replace("/posted/orders", "/readyz")) as response:
            assert response.status == 200
        async with gateway(server.address, "same") as second:
            with pytest.raises(InjectorSupersededError):
                await running
            refused = await first.post(lines([order(1)]), "where")
            assert (refused.status, refused.reason) == (503, "INJECTOR_FAILED")
            for path, status in (("/readyz", 503), ("/healthz", 200)):
                async with first.client.get(first.url.replace("/posted/orders", path)) as response:
                    assert response.status == status
            assert (await second.post(lines([order(1)]), "where")).status == 200
            assert numbers(await finish(server.address, second)) == [1]


async def test_a_gateway_is_ready_while_the_cluster_takes_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: it said so for a minute without a cluster, and each request took 30 s to end with 504."""
    monkeypatch.setenv(posted_shop.OPEN, str(tmp_path / "open"))
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_copy(server.address, posted_shop.__file__, "posted", tmp_path)
        async with gateway(server.address) as gate:

            async def ready() -> tuple[int, str]:
                async with gate.client.get(gate.url.replace("/posted/orders", "/readyz")) as response:
                    return response.status, json.dumps(await response.json())

            async def becomes(status: int) -> str:
                answer = (await until(ready, patience(60), every=0.2, holds=lambda found: found[0] == status))[1]
                assert json.loads(answer) == {"status": "ok" if status == 200 else "away"}, "any caller may ask"
                noted = caplog.text
                caplog.clear()
                return noted

            await becomes(200)
            async with ControlClient(server.address) as client:
                await client.pause("posted")
                assert "no worker has it" in await becomes(503)
                await client.resume("posted")
                await becomes(200)
            await server.kill()
            assert f"cannot be reached: no connection to {server.address.partition(':')[0]}" in await becomes(503)
            await server.start()
            await becomes(200)
            assert (await gate.post(lines([order(1)]), "back")).status == 200


@pytest.mark.guarantee("G1", section="5.2")
async def test_a_webhook_posts_to_a_gateway(
    server: DevServer, posted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker runs it. The second gateway comes late, and goes away for a moment."""
    port = free_ports(1)[0]
    monkeypatch.setenv("MILLWHEEL_TEST_HOOK", f"http://127.0.0.1:{port}/forward/orders")
    monkeypatch.setenv("MILLWHEEL_TEST_HOOK_TOKEN", "secret")
    await submit_copy(server.address, posted_shop.__file__, "forward", tmp_path)
    chosen: Any = {"stream": "forward/orders", "port": port}
    async with gateway(server.address) as first:
        assert (await first.post(lines([order(number) for number in range(100)]), "a")).status == 200
        await asyncio.sleep(0.3)
        async with gateway(server.address, "there", **chosen) as second:
            await until(lambda: second.injector.acks > 0, patience(20))
        assert (await first.post(lines([order(number) for number in range(100, 200)]), "b")).status == 200
        async with gateway(server.address, "there", **chosen) as second:
            seen: set[int] = set()
            async with (
                asyncio.timeout(patience(20)),
                Subscription("forward/echo", start=From.OLDEST, address=server.address, record_type=dict) as reader,
            ):
                while len(seen) < 200:
                    seen |= {row["number"] for row in (await anext(reader)).values}
            found = await finish(server.address, second, stream="forward/echo")
    assert numbers(found) == list(range(200))
