"""A store that is left open ends with its event loop: its driver does not go on without one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Final

import pytest

from millwheel.store.cassandra import CassandraSettings, CassandraStore
from tests.patience import patience, until

PROGRAM: Final = """
import asyncio, gc, sys, threading, time
from cassandra.connection import ConnectionException
from millwheel.store.cassandra import CassandraSettings, CassandraStore

how, point, keyspace, username, password = sys.argv[1:]
settings = CassandraSettings((point,), keyspace, username=username, password=password, state_buckets=4)

async def leave_open():
    return await CassandraStore.open(settings)

if how == "run":
    store = asyncio.run(leave_open())
else:
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(leave_open())
    for pool in store._session._driver.get_pools():
        connection = pool._connection
    loop.close()
    connection.defunct(ConnectionException("the network"))
driver = {"Task Scheduler", "Connection heartbeat"}
while driver & {thread.name for thread in threading.enumerate()}:
    time.sleep(0.01)
del store
gc.collect()
print("ended")
"""


@pytest.mark.parametrize("how", ["run", "close"])
def test_a_store_left_open_ends_its_driver_with_its_loop(settings: CassandraSettings, name: str, how: str) -> None:
    """``run`` ends a loop in order, ``close`` at once. Regression: the driver tried to reconnect in the closed loop."""
    (point,) = settings.contact_points
    arguments = [how, point, settings.keyspace, settings.username, settings.password]
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::ResourceWarning", "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=patience(30),
        check=False,
    )
    assert done.stdout == "ended\n", done.stderr
    assert "never awaited" not in done.stderr
    assert "Exception ignored" not in done.stderr


async def test_an_opening_that_is_cancelled_leaves_no_driver(settings: CassandraSettings) -> None:
    before = set(threading.enumerate())

    def drivers() -> bool:
        return any("Task Scheduler" in thread.name for thread in set(threading.enumerate()) - before)

    async with asyncio.timeout(patience(30)):
        opening = asyncio.create_task(CassandraStore.open(settings))
        await until(drivers, every=0.001)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await until(lambda: not drivers())


async def test_a_store_may_be_closed_more_than_once(settings: CassandraSettings) -> None:
    store = await CassandraStore.open(settings)
    await asyncio.gather(store.close(), store.close())
    await store.close()
