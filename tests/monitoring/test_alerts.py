"""Alerts really fire when what they are about happens, and end when it is mended: `make test-alerts`."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.local.child import free_ports
from deploy.local.prometheus import Prometheus
from millwheel.client.injector import Injector, InjectorError
from tests.disks import small_disk
from tests.faults.accidents import kept_full
from tests.monitoring import shop as program
from tests.monitoring.incidents import OnCall, Shop, program_page, quick
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system.server import Server, run_cli

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

SOURCE = Path(program.__file__).read_text()
MENDED = SOURCE.replace('if record.value.item == "eu broken":', "if False:")


@asynccontextmanager
async def development(place: Path, disk: Path | None = None) -> AsyncIterator[tuple[Server, Shop, OnCall]]:
    """A server with the shop, and an operator on call. No alert fires. ``disk``: has the server's data and its log."""
    page = f"127.0.0.1:{free_ports(1)[0]}"
    disk = disk or place
    async with Server(disk / "db", disk / "log", options=("--metrics-port", page.rpartition(":")[2])) as server:
        await submit_copy(server.address, program.__file__, "shop", place)
        with (
            program_page() as own,
            Prometheus(place / "prometheus", {"all": [page], "programs": [own]}, rules=quick) as prometheus,
        ):
            async with Shop(server.address).open() as shop:
                await until(lambda: asyncio.to_thread(prometheus.is_ready), patience(20), every=0.1)
                on_call = OnCall(server.address, prometheus)
                await until(lambda: prometheus.values("sum(millwheel_records_total) > 0"), patience(20), every=0.5)
                await on_call.quiet()
                yield server, shop, on_call


async def test_given_up_work_and_a_slow_reader(tmp_path: Path) -> None:
    async with development(tmp_path) as (_, shop, on_call):
        shop.special.append("poison")
        shop.reading.clear()
        await on_call.paged("MillwheelDeadLetters")
        await on_call.finds("not this one", "dead-letter", "list", "shop")
        await on_call.paged("MillwheelSubscriberBehind")
        await on_call.finds("ledger", "stream", "cursors", "list", "shop/totals")
        shop.reading.set()
        await on_call.mended("MillwheelDeadLetters", "MillwheelSubscriberBehind")
        assert on_call.seen == {"MillwheelDeadLetters", "MillwheelSubscriberBehind"}


async def test_a_hook_that_raises_and_its_backlog(tmp_path: Path) -> None:
    async with development(tmp_path) as (server, _, on_call):
        async with Injector("returns", address=server.address, process="counter") as injector:
            await injector.send({"item": "eu broken"}, timestamp=time.time_ns() // 1_000)
            await on_call.paged("MillwheelHookFailing", "MillwheelWorkStuck")
            await on_call.finds("ValueError: it is broken", "cluster", "health")
            await on_call.finds("ValueError: it is broken", "key", "inspect", "shop/by-region", "Europe")
            await run_cli(server.address, "interval", "list", "shop/by-region")
            path = tmp_path / "shop.py"
            path.write_text(MENDED)
            done = await run_cli(server.address, "topology", "update", f"{path}:shop", "--wait", "60")
            assert done.code == 0, done.err
            await injector.flush()
        await on_call.mended("MillwheelHookFailing", "MillwheelWorkStuck")
        left = {"MillwheelWatermarkStuck", "MillwheelInjectorSilent"}  # the injector is closed, and has not finished
        assert on_call.seen <= {"MillwheelHookFailing", "MillwheelWorkStuck"} | left


async def test_a_silent_source_holds_the_watermark(tmp_path: Path) -> None:
    async with development(tmp_path) as (_, shop, on_call):
        shop.ordering.clear()
        await on_call.paged("MillwheelWatermarkStuck")
        await on_call.finds("till", "watermark", "explain", "shop/latest")
        shop.ordering.set()
        await on_call.mended("MillwheelWatermarkStuck")
        assert on_call.seen == {"MillwheelWatermarkStuck"}


async def test_two_programs_with_one_injector_name(tmp_path: Path) -> None:
    async with development(tmp_path) as (server, _, on_call):
        former, newer = (Injector("returns", address=server.address, process="counter") for _ in range(2))
        await former.open()
        await newer.open()
        await on_call.paged("MillwheelInjectorStopped")
        await on_call.finds("counter", "injector", "list", "shop/returns")
        with pytest.raises(InjectorError, match="has a successor"):
            await former.send({"item": "eu"}, timestamp=time.time_ns() // 1_000)
        await former.close()
        await on_call.mended("MillwheelInjectorStopped")
        await newer.close()


async def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64m") as disk:
        if disk is None:
            pytest.skip("a small file system cannot be mounted here")
        async with development(tmp_path, disk) as (_, _, on_call):
            filling = asyncio.create_task(kept_full(disk / "filler"))
            await on_call.paged("MillwheelStoreFailing")
            await on_call.finds("No space left on device", "cluster", "health")
            await on_call.finds("Free space there", "cluster", "health")
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
            (disk / "filler").unlink()
            await on_call.mended("MillwheelStoreFailing")
            await on_call.finds("the cluster is healthy", "cluster", "health")


async def test_a_process_that_hangs(tmp_path: Path) -> None:
    async with development(tmp_path) as (server, _, on_call):
        server.process.send_signal(signal.SIGSTOP)
        try:
            await on_call.paged("MillwheelProcessDown", "MillwheelNoLeader")
        finally:
            server.process.send_signal(signal.SIGCONT)
        await on_call.mended("MillwheelProcessDown", "MillwheelNoLeader")
