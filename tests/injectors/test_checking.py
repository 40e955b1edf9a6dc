"""Records are checked against the stream's declared type where they are sent, without the topology's code (4.2)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel.cli.loading import load
from millwheel.client.control import ControlClient
from millwheel.client.injector import BlockingInjector, Injector, InjectorSettings
from millwheel.client.injector.declared_types import DeclaredTypes
from millwheel.client.injector.routing import StreamRouting
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import ValueEncodeError
from millwheel.sdk.record_schema import record_schema
from millwheel.server.dev_server import DevServer
from tests.injectors.conftest import SHOP, Submit
from tests.injectors.injected_shop import Order, shop
from tests.injectors.inside import routing_task_of, session_of
from tests.injectors.test_with_server import everything
from tests.patience import patience
from tests.submitting import submit_copy

WRONG: list[dict[str, Any]] = [
    {"user": "u", "number": "seven"},
    {"user": "u", "number": 1.5},
    {"user": "u", "number": None},
    {"user": "u"},
]


def routing(*types: Any) -> StreamRouting:
    """Topologies declare the stream with these types."""
    schemas = [schema for kind in types if (schema := record_schema(kind)) is not None]
    return StreamRouting(1, {}, record_type="Order", schemas=schemas)


def encoded(*values: Any) -> list[bytes]:
    return [msgspec.msgpack.encode(value) for value in values]


def first_refused(types: DeclaredTypes, known: StreamRouting, *values: Any) -> int | None:
    found = types.first_refused(encoded(*values), known)
    return None if found is None else found[0]


def test_the_first_record_of_another_type_is_named_by_field() -> None:
    found = DeclaredTypes("orders", enabled=True).first_refused(
        encoded({"user": "u", "number": 1}, WRONG[0]), routing(Order)
    )
    assert found is not None
    assert found[0] == 1
    assert (
        "stream 'orders': {'user': 'u', 'number': 'seven'} is no Order: Expected `int`, got `str` - at `$.number`"
        in str(found[1])
    )


def test_a_record_is_right_if_any_topology_declares_its_type() -> None:
    types = DeclaredTypes("orders", enabled=True)
    both = routing(dict[str, int], list[int])
    assert first_refused(types, both, [1], {"a": 1}, [2], "text") == 3
    assert first_refused(types, routing(list[int], Any), "text") is None


@pytest.mark.paper(section="4.1")
def test_the_types_are_those_of_the_newest_routing() -> None:
    types = DeclaredTypes("orders", enabled=True)
    assert first_refused(types, routing(int), 1, "a") == 1
    assert first_refused(types, routing(str), "a", 1) == 1
    assert first_refused(types, routing(), "a", 1, None) is None
    assert first_refused(types, routing(int), 1, "a") == 1


def test_an_injector_may_be_set_not_to_check() -> None:
    assert first_refused(DeclaredTypes("orders", enabled=False), routing(int), "a") is None


def test_a_type_that_is_not_understood_refuses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    odd = specs.RecordSchema(types=[specs.TypeSchema(kind="list", parts=[7])])
    assert first_refused(DeclaredTypes("orders", enabled=True), StreamRouting(1, {}, schemas=[odd]), "a") is None
    assert "stream 'orders': records are not checked here" in caplog.text


def test_bytes_that_are_no_messagepack_are_refused() -> None:
    found = DeclaredTypes("orders", enabled=True).first_refused([b"\xc1"], routing(Order))
    assert found is not None


@pytest.mark.paper(section="4.2")
async def test_a_record_no_worker_could_decode_is_an_error_of_send(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with Injector("orders", address=server.address) as injector:
        for wrong in WRONG:
            with pytest.raises(ValueEncodeError, match=r"is no Order: .*(`number`|`\$.number`)"):
                await injector.send(wrong, timestamp=1)
            await injector.send({"user": "u", "number": 1}, timestamp=1)
        assert injector.accepted == len(WRONG)
        await asyncio.wait_for(injector.finish(), patience(20))
    assert [row["nth"] for row in await everything(server.address, "echo")] == [1, 2, 3, 4]


@pytest.mark.paper(section="4.2")
@pytest.mark.parametrize("ready", [False, True])
async def test_send_many_accepts_what_comes_before_a_wrong_record(
    server: DevServer, submit: Submit, ready: bool
) -> None:
    await submit("shop")
    values: list[Any] = [{"user": "u", "number": number} for number in range(7)]
    values[5] = WRONG[0]
    async with Injector("orders", address=server.address) as injector:
        with pytest.raises(ValueEncodeError, match=r"\$.number"):
            await injector.send_many(encoded(*values) if ready else values, range(1, 8), encoded=ready)
        assert injector.accepted == 5
        await asyncio.wait_for(injector.finish(), patience(20))
    assert [row["number"] for row in await everything(server.address, "echo")] == [0, 1, 2, 3, 4]


@pytest.mark.paper(section="4.2")
async def test_a_blocking_injector_checks_too(server: DevServer, submit: Submit) -> None:
    await submit("shop")

    def inject() -> None:
        with BlockingInjector("orders", address=server.address) as injector:
            with pytest.raises(ValueEncodeError, match=r"\$.number"):
                injector.send(WRONG[0], timestamp=1)
            injector.send({"user": "u", "number": 1}, timestamp=1)
            injector.finish(patience(20))

    await asyncio.to_thread(inject)
    assert [row["number"] for row in await everything(server.address, "echo")] == [1]


@pytest.mark.paper(section="4.1")
async def test_with_the_topology_object_the_clusters_type_counts_too(server: DevServer, tmp_path: Path) -> None:
    """The program has an older version of the topology, whose orders have no price."""
    newer = tmp_path / "newer_shop.py"
    newer.write_text(SHOP.read_text().replace("number: int", "number: int\n    price: float"))
    (tmp_path / "copy").mkdir()
    await submit_copy(server.address, newer, "shop", tmp_path / "copy")
    async with Injector("orders", address=server.address, topology=shop) as injector:
        with pytest.raises(ValueEncodeError, match="missing required field `price`"):
            await injector.send(Order("u", 1), timestamp=1)


async def test_without_the_check_a_wrong_record_blocks_its_key(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    injector = Injector("orders", address=server.address, settings=InjectorSettings(check_types=False))
    await injector.open()
    await injector.send(WRONG[0], timestamp=1)
    await session_of(injector).until(lambda: injector.unacked > 0, patience(10))
    await injector.close()


@pytest.mark.paper(section="4.1")
async def test_what_an_update_allows_is_taken_from_then_on(server: DevServer, submit: Submit, tmp_path: Path) -> None:
    """An injector reads the routing again before it refuses a record. Here its watch brings no more news."""
    await submit("shop")
    async with Injector("orders", address=server.address) as injector:
        with pytest.raises(ValueEncodeError, match=r"\$.number"):
            await injector.send(WRONG[0], timestamp=1)
        routing_task_of(injector).cancel()
        await update(server, tmp_path, "number: int", "number: int | str")
        await injector.send(WRONG[0], timestamp=1)
        await injector.send_many([WRONG[0]], [1])
        with pytest.raises(ValueEncodeError, match=r"Expected `int \| str`, got `float`"):
            await injector.send(WRONG[1], timestamp=1)
        assert injector.accepted == 2


@pytest.mark.paper(section="4.2")
async def test_a_reader_of_any_type_does_not_end_the_check(server: DevServer, submit: Submit) -> None:
    """The stream's owner declares its type."""
    await submit("unread")
    async with Injector("orders", address=server.address) as injector:
        await submit("anything")
        await session_of(injector).until(lambda: len(session_of(injector).routing.consumers) == 2, patience(20))
        with pytest.raises(ValueEncodeError):
            await injector.send("a text", timestamp=1)


async def update(server: DevServer, directory: Path, old: str, new: str) -> None:
    """Run another version of the shop."""
    changed = directory / "changed_shop.py"
    changed.write_text(SHOP.read_text().replace(old, new))
    packaged = load(f"{changed}:shop")
    async with ControlClient(server.address) as client:
        await client.upload_package(packaged.package.digest, packaged.package.data)
        await client.update(packaged.spec())
