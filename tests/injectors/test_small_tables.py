"""Small tables that a server gets, among other calls, and again after the end of their process (5.2, 6.1.1)."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from millwheel.client.injector import Injector, InjectorError
from millwheel.sdk.errors import UsageError, ValueEncodeError
from millwheel.server.dev_server import DevServer
from tests.injectors.by_columns import sent_by_columns
from tests.injectors.conftest import Submit
from tests.injectors.test_tables import COLUMNS
from tests.injectors.test_with_server import ORDERS, TIMES, check_once, everything


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return sent_by_columns(monkeypatch)


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_small_tables_that_are_sent_again_have_no_effect(
    server: DevServer, submit: Submit, sent: list[int]
) -> None:
    """They share deliveries, and a successor divides them otherwise. The first process ends with records on their way.

    The injector knows the columns from its second table on. A table with a fault between has no effect on the others.
    """
    await submit("shop")
    table = pa.table(COLUMNS)
    async with Injector("orders", address=server.address) as injector:
        for at in range(0, 1_500, 30):
            await injector.send_table(table.slice(at, 30), timestamp="at", position=at, partition="p")
        await injector.close()
    async with Injector("orders", address=server.address) as injector:
        for at in range(0, 2_500, 50):
            await injector.send_table(table.slice(at, 50), timestamp="at", position=at, partition="p")
            if at == 1_000:
                await refuse_faulty(injector, at + 50)
        assert (injector.by_rows, injector.by_columns) == (0, 2_500)
        await injector.finish()
    check_once(await everything(server.address, "echo"), ORDERS)
    assert len(sent) < 60, "several tables share a delivery"


@pytest.mark.guarantee("G1", "G14", section="6.1.1")
async def test_small_tables_keep_the_order_of_all_calls(server: DevServer, submit: Submit) -> None:
    """Positions rise within the partition, so the core refuses what comes out of order. So does what is late."""
    await submit("shop")
    table = pa.table(COLUMNS)
    async with Injector("orders", address=server.address) as injector:
        for at in range(0, 2_500, 10):
            await injector.send(ORDERS[at], timestamp=TIMES[at], position=at, partition="p")
            await injector.send_table(table.slice(at + 1, 4), timestamp="at", position=at + 1, partition="p")
            await injector.send(ORDERS[at + 5], timestamp=TIMES[at + 5], position=at + 5, partition="p")
            await injector.send_table(table.slice(at + 6, 3), timestamp="at", position=at + 6, partition="p")
            await injector.advance(TIMES[at])
            await injector.send_many(
                ORDERS[at + 9 : at + 10], TIMES[at + 9 : at + 10], positions=(at + 9,), partition="p"
            )
        assert (injector.accepted, injector.late) == (2_500, 0)
        await injector.flush()
        assert injector.watermark == TIMES[2_490]
        await injector.send_table(table.slice(0, 3), timestamp="at", position=2_500, partition="p")
        await injector.advance(TIMES[-1])
        await injector.send_table(table.slice(2_495, 3), timestamp="at", position=2_503, partition="p")
        assert injector.late == 3, "the records without an ACK hold the watermark below the last promise"
        await injector.finish()
    assert len(await everything(server.address, "echo")) == 2_506


@pytest.mark.guarantee("G8", section="5.2")
async def test_other_tasks_run_between_small_tables(server: DevServer, submit: Submit) -> None:
    """A call takes time, however few rows its table has."""
    await submit("shop")
    table, turns = pa.table(COLUMNS), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Injector("orders", address=server.address) as injector:
        await injector.send_table(table.slice(0, 1), timestamp="at")
        await injector.flush()
        task = asyncio.create_task(other())
        await asyncio.sleep(0)
        before = turns
        for at in range(1, 601):
            await injector.send_table(table.slice(at, 1), timestamp="at")
        assert turns >= before + 2
        task.cancel()


@pytest.mark.guarantee("G1", section="5.2")
async def test_an_injector_fails_if_it_cannot_join_tables(
    server: DevServer, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their calls have returned. If it went on, the positions after theirs would be ACKed, and theirs missing."""
    await submit("shop")
    table, concat = pa.table(COLUMNS), pa.concat_batches

    def without_memory(batches: Sequence[Any]) -> Any:
        if len(batches) > 2:  # a table is copied behind an empty one
            raise MemoryError
        return concat(batches)

    injector = Injector("orders", address=server.address)
    await injector.open()
    try:
        await injector.send_table(table.slice(0, 1), timestamp="at", position=0)
        await injector.flush()
        monkeypatch.setattr(pa, "concat_batches", without_memory)
        for at in range(1, 4):
            await injector.send_table(table.slice(at, 1), timestamp="at", position=at)
        with pytest.raises(MemoryError):
            await injector.flush()
        with pytest.raises(InjectorError, match=r"could not be passed on: MemoryError.*send it again"):
            await injector.send_table(table.slice(4, 1), timestamp="at", position=4)
        assert injector.acknowledged() == 1
    finally:
        await injector.close()


async def refuse_faulty(injector: Injector, position: int) -> None:
    """Small tables with the usual columns, and faults in their values. None is sent."""
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(array("i", [0, 1])), pa.py_buffer(b"\xff")])
    for faulty, error in (
        ({"user": ["x"], "number": [1], "at": pa.array([None], pa.int64())}, UsageError),
        ({"user": bad, "number": [1], "at": [1_000]}, ValueEncodeError),
        ({"user": ["x"], "number": [1], "at": [-(1 << 63)]}, UsageError),
        ({"user": pa.array([None], pa.string()), "number": [1], "at": TIMES[:1]}, ValueEncodeError),
    ):
        with pytest.raises(error):
            await injector.send_table(pa.table(faulty), timestamp="at", position=position, partition="p")
