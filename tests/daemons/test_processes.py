"""Daemons as processes, from start to end: their messages, their waits, and their exit codes."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import psutil
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from millwheel.client.control import ControlClient
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.model.catalog_keys import LEADERSHIP, WORKERS
from millwheel.rpc.channel import open_channel
from millwheel.rpc.failures import RequestError
from tests.daemons.process import DaemonProcess, is_serving, metrics_page
from tests.patience import patience, until


def embedded(place: Path) -> dict[str, object]:
    return {
        "store.kind": "embedded",
        "store.path": place / "db",
        "coordinator.kind": "embedded",
        "coordinator.path": place / "db",
    }


def worker(place: Path) -> dict[str, object]:
    return {**embedded(place), "worker.packages": place / "packages", "worker.id": "w"}


async def test_a_master_serves_and_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    async with DaemonProcess("master", tmp_path / "log", embedded(tmp_path)) as master:
        ready = await master.line("ready")
        assert await is_serving(ready["address"])
        async with ControlClient(ready["address"], patience=patience(10)) as client:
            assert await client.list_topologies() == []
        page = metrics_page(ready["metrics"])
        assert "millwheel_ready 1.0" in page
        assert f'millwheel_process_info{{process="master at {ready["address"]}"}} 1.0' in page
        assert "millwheel_master_leads 1.0" in page
        assert "process_resident_memory_bytes" in page
        assert "millwheel_tasks " in page
        assert await _services(ready["address"]) >= {"millwheel.v1.TopologyService", "grpc.health.v1.Health"}
        master.process.send_signal(signal.SIGTERM)
        assert await master.ended() == 0
    assert [line["message"] for line in master.lines()][-3:] == ["received SIGTERM: stopping", "stopping", "stopped"]
    assert {line["role"] for line in master.lines()} == {"master"}
    async with await EmbeddedDatabase.open(tmp_path / "db") as database:
        assert await database.coordinator.get(LEADERSHIP) is None


async def _services(address: str) -> set[str]:
    async with open_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([request]), timeout=patience(5)):
            return {service.name for service in answer.list_services_response.service}
    return set()


async def test_what_is_not_there_yet_is_waited_for_and_named(tmp_path: Path) -> None:
    """At first another process has the database.

    The master reports that, answers calls, and starts when the database is free.
    """
    database = await EmbeddedDatabase.open(tmp_path / "db")
    try:
        async with DaemonProcess("master", tmp_path / "log", embedded(tmp_path)) as master:
            address = (await master.line("listening"))["address"]
            waiting = await master.line("waiting for the embedded coordinator")
            assert "coordinator.path: environment variable MILLWHEEL_COORDINATOR_PATH" in waiting["message"]
            assert not await is_serving(address)
            async with ControlClient(address) as client:
                with pytest.raises(RequestError, match="it waits for the embedded coordinator") as caught:
                    await client.list_topologies()
            assert caught.value.reason == "NOT_READY"
            await database.close()
            await master.line("ready")
            assert await is_serving(address)
    finally:
        await database.close()


async def test_who_waits_can_be_stopped(tmp_path: Path) -> None:
    settings = {"coordinator.endpoints": "127.0.0.1:1"}
    async with DaemonProcess("master", tmp_path / "log", settings) as master:
        await master.line("waiting for etcd at 127.0.0.1:1")
        master.process.send_signal(signal.SIGTERM)
        assert await master.ended() == 0


async def test_a_worker_registers_and_its_registration_goes_with_it(tmp_path: Path) -> None:
    async with DaemonProcess("worker", tmp_path / "log", worker(tmp_path)) as process:
        ready = await process.line("ready")
        assert await is_serving(ready["address"])
        assert "millwheel_records" in metrics_page(ready["metrics"])
        process.process.send_signal(signal.SIGTERM)
        assert await process.ended() == 0
    async with await EmbeddedDatabase.open(tmp_path / "db") as database:
        assert (await database.coordinator.list(WORKERS)).entries == ()


async def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """The first signal cannot end the daemon soon, because one of its processes is suspended."""
    settings = {"worker.processes": 2, "worker.id": "w", "coordinator.endpoints": "127.0.0.1:1"}
    async with DaemonProcess("worker", tmp_path / "log", settings) as daemon:
        for index in range(2):
            await daemon.line("listening", process=index)
        paused = (await daemon.line("process 1 runs"))["pid"]
        os.kill(paused, signal.SIGSTOP)
        daemon.process.send_signal(signal.SIGTERM)
        await daemon.line("stopped", process=0)
        daemon.process.send_signal(signal.SIGINT)
        assert await daemon.ended() == 128 + signal.SIGINT
        await until(lambda: not _alive(paused))


@pytest.mark.parametrize(
    ("settings", "code", "shown"),
    [
        ({"rpc.listen": "0.0.0.0:0"}, 5, "rpc.listen (environment variable MILLWHEEL_RPC_LISTEN): 0.0.0.0:0 is not"),
        ({"rpc.listn": "x"}, 5, "MILLWHEEL_RPC_LISTN: it names no setting (did you mean 'MILLWHEEL_RPC_LISTEN'?)"),
        ({"rpc.listen": "TAKEN"}, 4, "the port is in use"),
        ({"metrics.listen": "TAKEN"}, 4, "cannot serve metrics on 127.0.0.1:"),
    ],
)
async def test_a_daemon_that_cannot_start_exits_with_reason_and_code(
    tmp_path: Path, settings: dict[str, str], code: int, shown: str
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        given = {name: value.replace("TAKEN", taken) for name, value in settings.items()}
        async with DaemonProcess("master", tmp_path / "log", {**embedded(tmp_path), **given}) as master:
            assert await master.ended() == code
    assert shown in master.log.read_text()
    assert "Traceback" not in master.log.read_text()


async def test_a_many_process_worker_dies_whole_and_restarts_parts(tmp_path: Path) -> None:
    """The store and the coordinator are absent, so only the processes are tested."""
    settings = {"worker.processes": 2, "worker.id": "w", "coordinator.endpoints": "127.0.0.1:1"}
    async with DaemonProcess("worker", tmp_path / "log", settings) as daemon:
        first = await daemon.line("process 0 runs")
        second = await daemon.line("process 1 runs")
        await daemon.line("listening", process=1)
        os.kill(second["pid"], signal.SIGKILL)
        shown = await daemon.line("process 1 ended (by signal SIGKILL); it is started again in")
        assert shown["level"] == "error"
        await until(lambda: len(_pids(daemon)) == 3)
        assert _alive(first["pid"])
        daemon.process.send_signal(signal.SIGKILL)
        await daemon.ended()
        await until(lambda: not any(_alive(pid) for pid in _pids(daemon)))


async def test_a_worker_of_several_processes_stops_them_all(tmp_path: Path) -> None:
    settings = {"worker.processes": 2, "worker.id": "w", "coordinator.endpoints": "127.0.0.1:1"}
    async with DaemonProcess("worker", tmp_path / "log", settings) as daemon:
        for index in range(2):
            await daemon.line("listening", process=index)
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.ended() == 0
        assert not any(_alive(pid) for pid in _pids(daemon))
        assert [line["message"] for line in daemon.lines()].count("stopped") == 2


def _pids(daemon: DaemonProcess) -> list[int]:
    return [line["pid"] for line in daemon.lines() if "pid" in line]


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
