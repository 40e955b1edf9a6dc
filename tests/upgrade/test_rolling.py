"""Roles go from another version to this one, back, and on again, one at a time, under load: `make test-upgrade`.

``FROM=REVISION`` or ``FROM=WHEEL`` names the other version. By default it is the last release.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from deploy.local.cluster import settings_of
from deploy.local.daemons import Daemons
from tests.components import cassandra, etcd
from tests.patience import patience, until
from tests.system.server import Server, run_cli
from tests.upgrade.rolling import RollingLoad
from tests.upgrade.running import ROOT, Versions
from tests.upgrade.versions import unpack

FROM = os.environ.get("MILLWHEEL_FROM", "")
ROLES = ("master", "authority", "worker")
"""In the order of docs/upgrading.md: who is called comes before who calls."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_500)]


async def healthy(address: str) -> bool:
    """Whether `millwheel cluster health` finds no problems."""
    return (await run_cli(address, "cluster", "health")).code == 0


async def roll(daemons: Daemons, versions: Versions, tree: Path) -> None:
    """Restart all daemons with a version, one at a time, as an operator does."""
    for role in ROLES:
        for name in [one for one in daemons.addresses if one.startswith(role)]:
            versions.set(port_of(daemons.addresses[name]), tree)
            process = daemons.services.processes[name]
            before = process.pid
            await asyncio.to_thread(process.stop, patience(20))
            await until(lambda process=process, before=before: process.pid != before, patience(20), every=0.1)  # type: ignore[misc]
            await until(lambda: healthy(daemons.address), patience(60), every=0.5)


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


@pytest.mark.guarantee("G1", section="6.2, 7.1")
async def test_roles_roll_to_this_version_and_back_and_lose_nothing(tmp_path: Path) -> None:
    old, versions = tmp_path / "old", Versions(tmp_path / "versions")
    print("from", unpack(FROM, old))
    node = cassandra()
    settings = settings_of(etcd(), node, f"upgrade_{os.getpid()}")
    daemons = Daemons(tmp_path, settings, print, code=versions.code())
    for address in daemons.addresses.values():
        versions.set(port_of(address), old)
    load = RollingLoad(daemons.address, tmp_path, versions)
    with load.running():
        async with daemons:
            await asyncio.to_thread(load.submit, old)
            load.start(old)
            await load.flows()
            for tree in (ROOT, old, ROOT):
                await roll(daemons, versions, tree)
                load.start(tree)
                await load.flows()
            assert await load.finish() == []
    for name in daemons.addresses:
        assert [line for line in daemons.log(name).read_text().splitlines() if line.startswith("running the code")] == [
            f"running the code of {tree}" for tree in (old, ROOT, old, ROOT)
        ], f"{name} ended only to change its version"


@pytest.mark.guarantee("G1", section="6.2")
async def test_a_database_goes_to_this_version_and_back(tmp_path: Path) -> None:
    old, versions = tmp_path / "old", Versions(tmp_path / "versions")
    print("from", unpack(FROM, old))
    server = Server(tmp_path / "db", tmp_path / "log", intervals=2, code=versions.code("server"))
    load = RollingLoad(server.address, tmp_path, versions)
    with load.running():
        versions.set("server", old)
        async with server:
            await asyncio.to_thread(load.submit, old)
            load.start(old)
            await load.flows()
            for tree in (ROOT, old, ROOT):
                await server.kill()
                versions.set("server", tree)
                await server.start()
                load.start(tree)
                await load.flows()
            assert await load.finish() == []
