"""docs/backups.md brings everything back after disks are lost: its commands run as printed, and the data is deleted.

Only the names of the topology, the place of the backups and the port differ from the page. ``systemctl`` stands for the
daemons of the test.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from deploy.local.cassandra import CassandraCluster
from deploy.local.child import free_ports
from deploy.local.etcd import EtcdCluster
from tests.daemons.process import DaemonProcess
from tests.documents.blocks import Block, blocks_of, commands_of
from tests.house.tree import ROOT
from tests.patience import patience, until
from tests.snapshots import shop
from tests.snapshots.loading import STEP, accounts, expected, expected_accounts, sell, totals
from tests.submitting import submit_copy

PAGE = ROOT / "docs" / "backups.md"
ORDERS = 600
START = "millwheel server start-dev --db ./data &"
Action = Callable[[], Awaitable[None]]


def section(heading: str) -> list[Block]:
    """The commands of a section of the page."""
    lines = PAGE.read_text().splitlines()
    first = lines.index(f"## {heading}")
    last = next((at for at in range(first + 1, len(lines)) if lines[at].startswith("## ")), len(lines))
    return [block for block in blocks_of(PAGE) if block.language == "console" and first < block.line <= last]


class Operator:
    """Someone who follows the page in a directory."""

    def __init__(self, place: Path, port: int, actions: Mapping[str, Action] | None = None) -> None:
        """``actions``: what is done for a command, by its first two words."""
        self.place = place
        self.groups: list[int] = []
        self._actions = actions or {}
        self._replaced = {"zeitgeist": "shop", "/backups/": f"{place}/", "start-dev": f"start-dev --port {port}"}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "MILLWHEEL_ADDRESS": f"127.0.0.1:{port}", "NO_COLOR": "1"}

    async def follow(self, block: Block) -> None:
        """Type the commands of a block."""
        for command in commands_of(block):
            await self.type(command.text)

    async def type(self, text: str) -> None:
        """Type a command, and see that it succeeds."""
        if (action := self._actions.get(" ".join(text.split()[:2]))) is not None:
            await action()
            return
        for printed, own in self._replaced.items():
            text = text.replace(printed, own)
        log = self.place / "typed.log"
        with log.open("ab") as output:
            shell = await asyncio.create_subprocess_exec(
                *("bash", "-ec", text),
                stdout=output,
                stderr=output,
                cwd=self.place,
                env=self._environment,
                start_new_session=True,
            )
        self.groups.append(shell.pid)
        async with asyncio.timeout(patience(90)):
            assert await shell.wait() == 0, f"`{text}`: {log.read_text()[-4_000:]}"

    def kill(self) -> None:
        """End everything that was typed."""
        for group in self.groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


async def lose(address: str, backup: Action, ruin: Action, restore: Action, place: Path) -> None:
    """Submit the shop, back it up under load, lose the disks, restore it, and compare all results."""
    sent = [0]
    await submit_copy(address, shop.__file__, "shop", place)
    selling = asyncio.create_task(sell(address, 0, ORDERS, lambda count: sent.__setitem__(0, count), 0.02))
    await until(lambda: sent[0] > ORDERS // 3, patience(60))
    checkpoint = sent[0] // STEP * STEP
    await backup()
    await selling
    assert Counter(await totals(address, "all")) == expected(ORDERS)
    await ruin()
    await restore()
    await sell(address, checkpoint, ORDERS, lambda count: None)
    assert Counter(await totals(address, "all")) == expected(ORDERS)
    assert set(await accounts(address)) == expected_accounts(ORDERS)


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.timeout(300)
async def test_a_development_server_survives_a_lost_disk(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    operator = Operator(tmp_path, port)
    backup, restore = section("A development server")

    async def ruin() -> None:
        operator.kill()
        shutil.rmtree(tmp_path / "data")

    try:
        await operator.type(START)
        await lose(
            f"127.0.0.1:{port}", lambda: operator.follow(backup), ruin, lambda: operator.follow(restore), tmp_path
        )
        assert START in {command.text for command in commands_of(restore)}
    finally:
        operator.kill()


class Disks:
    """A cluster whose etcd and Cassandra lose their disks."""

    def __init__(self, place: Path, port: int) -> None:
        self._place = place
        self._port = port
        self._life = 0
        self._services: list[EtcdCluster | CassandraCluster] = []
        self._daemons: list[DaemonProcess] = []

    async def install(self) -> None:
        """Start an empty etcd and an empty Cassandra."""
        self._life += 1
        etcd = EtcdCluster(self._place / f"etcd-{self._life}")
        node = CassandraCluster(self._place / f"cassandra-{self._life}", quick_start=True)
        self._services = [etcd, node]
        for service in self._services:
            await asyncio.to_thread(service.start)
        self._settings: dict[str, object] = {
            "coordinator.endpoints": ",".join(etcd.endpoints),
            "store.contact_points": ",".join(node.contact_points),
            "store.state_buckets": 4,
        }

    async def ruin(self) -> None:
        """Kill etcd and Cassandra, delete their disks, and install others. The daemons see it."""
        for service, name in zip(self._services, ("etcd", "cassandra"), strict=True):
            await asyncio.to_thread(service.stop)
            shutil.rmtree(self._place / f"{name}-{self._life}")
        await self.install()

    async def start(self) -> None:
        """Start the daemons."""
        own: dict[str, dict[str, object]] = {
            "authority": {},
            "master": {
                "rpc.listen": f"127.0.0.1:{self._port}",
                "master.snapshot_locations": self._place,
                "master.intervals_per_computation": 2,
            },
            "worker": {"worker.packages": self._place / "packages", "worker.id": "w"},
        }
        for role, more in own.items():
            daemon = DaemonProcess(role, self._place / f"{role}-{self._life}.log", self._settings | more)
            self._daemons.append(daemon)
            await daemon.start()
            await daemon.line("ready", within=patience(40))

    async def stop(self) -> None:
        """Stop the daemons. They have lost what they need, so they are killed."""
        daemons, self._daemons = self._daemons, []
        await asyncio.gather(*(daemon.kill() for daemon in daemons))

    async def end(self) -> None:
        """End everything."""
        await self.stop()
        for service in self._services:
            await asyncio.to_thread(service.stop)


@asynccontextmanager
async def disks(place: Path, port: int) -> AsyncIterator[Disks]:
    """A running cluster."""
    made = Disks(place, port)
    try:
        await made.install()
        await made.start()
        yield made
    finally:
        await made.end()


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.timeout(580)
async def test_a_cluster_survives_lost_etcd_and_cassandra(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    backup, restore = section("A cluster")
    async with disks(tmp_path, port) as cluster:
        operator = Operator(tmp_path, port, {"systemctl stop": cluster.stop, "systemctl start": cluster.start})
        try:
            await lose(
                f"127.0.0.1:{port}",
                lambda: operator.follow(backup),
                cluster.ruin,
                lambda: operator.follow(restore),
                tmp_path,
            )
        finally:
            operator.kill()


def test_the_page_has_no_other_commands() -> None:
    known = [*section("A development server"), *section("A cluster")]
    assert known == [block for block in blocks_of(PAGE) if block.language == "console"]
