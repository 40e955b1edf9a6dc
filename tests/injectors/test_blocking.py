"""The blocking facade, against a server in another thread's loop."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from millwheel.client.injector import BlockingInjector, InjectorClosedError
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.failures import RequestError
from millwheel.sdk.errors import UsageError
from millwheel.server.dev_server import DevServer
from tests.injectors import injected_shop as sample
from tests.injectors.conftest import Submit
from tests.injectors.test_with_server import ORDERS, TIMES, check_once, everything
from tests.patience import patience


def work(address: str) -> None:
    with BlockingInjector("orders", address=address, topology=sample.shop) as injector:
        injector.send_many(ORDERS[:2_000], TIMES[:2_000], positions=range(2_000), partition="p")
        columns = {"user": [one.customer for one in ORDERS], "number": [one.number for one in ORDERS], "at": TIMES}
        table = pa.table(columns).slice(2_000, 300)
        injector.send_table(table, timestamp="at", position=2_000, partition="p")
        for number in range(2_300, 2_500):
            injector.send(ORDERS[number], timestamp=TIMES[number], position=number, partition="p")
        injector.flush()
        assert injector.acknowledged("p") == 2_500
        assert (injector.accepted, injector.unacked, injector.known, injector.late) == (2_500, 0, 0, 0)
        assert (injector.by_columns, injector.by_rows) == (300, 0)
        assert injector.acks == 2_500
        assert (injector.stall, injector.unreachable, injector.failure) == ("", "", None)
        injector.advance(5)
        assert injector.watermark == 5
        injector.idle()
        with pytest.raises(UsageError, match="not pickled"):
            pickle.dumps(injector)
        injector.finish()
        assert injector.watermark == MAX_TIMESTAMP
    assert (injector.accepted, injector.late, injector.acknowledged("p")) == (2_500, 0, 2_500), "they stay"
    with pytest.raises(InjectorClosedError, match="use `with`"):
        injector.send(ORDERS[0], timestamp=1)
    assert not [thread for thread in threading.enumerate() if thread.name == "millwheel-injector"]


@pytest.mark.guarantee("G1", section="5.2")
async def test_a_program_without_a_loop_injects(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    await asyncio.to_thread(work, server.address)
    check_once(await everything(server.address, "echo"), ORDERS)


async def test_an_injector_that_cannot_open_leaves_no_thread_behind(server: DevServer) -> None:
    def attempt() -> None:
        with pytest.raises(RequestError, match="nothing"):
            BlockingInjector("nothing", address=server.address).open()

    await asyncio.to_thread(attempt)
    assert not [thread for thread in threading.enumerate() if thread.name == "millwheel-injector"]


def use_after_fork(injector: BlockingInjector, reported: Path) -> None:
    try:
        injector.flush()
    except UsageError as error:
        reported.write_text(str(error))
    os._exit(0)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_an_injector_is_refused_after_a_fork(tmp_path: Path) -> None:
    injector = BlockingInjector("orders", address="127.0.0.1:1")
    process = multiprocessing.get_context("fork").Process(target=use_after_fork, args=(injector, tmp_path / "reported"))
    process.start()
    process.join(patience(20))
    assert "fork" in (tmp_path / "reported").read_text()
