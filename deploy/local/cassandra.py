"""Cassandra on loopback: one node or three, each of which can be killed, paused and come back."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from deploy.local.apt import COMPONENTS, InstallError
from deploy.local.cassandra_config import CommitLogSync, NodeConfig, command, write_files
from deploy.local.cassandra_jars import find_java, install
from deploy.local.child import ChildProcess, free_ports

__all__ = ["CassandraCluster", "CassandraNode", "InstallError", "install"]

_START: Final = 180.0
"""Seconds within which a node must take clients, on a machine that is busy with others."""

_TIMER_SLACK: Final = 250
"""Microseconds. Cassandra's threads wait for work in sleeps of 10 microseconds, one of them or a few all the time: at
500 small transactions a second 25,000 times a second, which is 0.3 of a core, and takes the cores from whoever runs
just then. Each sleep ends so much later; a transaction goes from thread to thread, and takes 0.2 ms longer on a
machine that has nothing else to do."""

_READY: Final = "Starting listening for CQL clients"
_HAS_SUPERUSER: Final = "Created default superuser role"


class CassandraNode:
    """One node. It keeps address, port and data over stop and start."""

    def __init__(self, config: NodeConfig) -> None:
        """Nothing runs yet."""
        self.config = config
        self.address = f"{config.address}:{config.native_port}"
        """``host:port`` for clients."""
        log = config.folder / "system.log"
        arguments = command(config, find_java(), install())
        self._process = ChildProcess(arguments, log, {"LC_ALL": "C"}, timer_slack=_TIMER_SLACK)
        self._said_before = 0

    @property
    def log(self) -> Path:
        """What it says, over all its lives."""
        return self._process.log

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def launch(self) -> None:
        """Start it; nothing happens if it runs. It takes clients some ten seconds later."""
        if not self._process.is_running:
            write_files(self.config)
            self._said_before = self.log.stat().st_size if self.log.exists() else 0
            self._process.start()

    def is_ready(self) -> bool:
        """Whether it takes clients; RuntimeError with the end of its log if it has ended."""
        text = self.log.read_bytes()
        ready = _READY.encode() in text[self._said_before :]
        if self.config.authentication and self.config.address == self.config.seeds[0]:
            ready = ready and _HAS_SUPERUSER.encode() in text
        if not self._process.is_running:
            raise RuntimeError(f"Cassandra {self.address} has ended; {self.log} ends with:\n{self._last_lines()}")
        # It says so a moment before it listens.
        return ready and self._listens()

    def start(self) -> None:
        """Start it, and wait until it takes clients."""
        self.launch()
        end = time.monotonic() + _START
        while not self.is_ready():
            if time.monotonic() > end:
                raise RuntimeError(
                    f"Cassandra {self.address} is not ready; {self.log} ends with:\n{self._last_lines()}"
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it. Where its commit log has all that was acknowledged, a moment to tell its peers is enough."""
        self._process.stop(1.0 if self.config.commitlog_sync == "batch" else 20.0)

    def kill(self) -> None:
        """SIGKILL; its data stay."""
        self._process.kill()

    def pause(self) -> None:
        """SIGSTOP: its connections stay, and nobody answers."""
        self._process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.signal(signal.SIGCONT)

    def _listens(self) -> bool:
        try:
            socket.create_connection((self.config.address, self.config.native_port), 1.0).close()
        except OSError:
            return False
        return True

    def _last_lines(self) -> str:
        return "\n".join(line[:300] for line in self._process.last_lines(20).splitlines())


class CassandraCluster:
    """Nodes on 127.0.0.1, 127.0.0.2, … with free ports; data and logs in one folder.

    Usable ``with`` and ``async with``; what is left running when this process ends is killed by the kernel.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 1,
        *,
        heap_mebibytes: int = 768,
        commitlog_sync: CommitLogSync = "batch",
        authentication: bool = False,
        quick_start: bool = False,
        broadcast: Callable[[str], str] | None = None,
        commitlog_mebibytes: int = 512,
    ) -> None:
        """``authentication``: passwords are asked for; the superuser is ``cassandra``, and so is its password.

        ``broadcast``: where clients are told that the node at an address is, and somebody passes them on. The others:
        see :class:`~deploy.local.cassandra_config.NodeConfig`.
        """
        self.directory = directory.resolve()
        self.username, self.password = ("cassandra", "cassandra") if authentication else ("", "")
        addresses = tuple(f"127.0.0.{number}" for number in range(1, nodes + 1))
        storage_port, native_port = free_ports(2, "0.0.0.0")
        self.nodes: Sequence[CassandraNode] = [
            CassandraNode(
                NodeConfig(
                    self.directory / f"node{number}",
                    address,
                    addresses,
                    storage_port,
                    native_port,
                    heap_mebibytes,
                    commitlog_sync,
                    authentication,
                    quick_start,
                    "" if broadcast is None else broadcast(address),
                    commitlog_mebibytes,
                )
            )
            for number, address in enumerate(addresses, 1)
        ]

    @property
    def contact_points(self) -> tuple[str, ...]:
        """host:port of each node, as clients take it."""
        return tuple(node.address for node in self.nodes)

    def start(self) -> None:
        """Start the nodes and wait until they take clients: one after the other, the first makes what all share."""
        for node in self.nodes:
            node.start()

    def stop(self) -> None:
        """Stop all nodes; their data stay."""
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> CassandraCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> CassandraCluster:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def _main() -> None:
    """``python -m deploy.local.cassandra``: a node with its data below ``build``, until Ctrl-C."""
    install()
    with CassandraCluster(COMPONENTS.parent / "cassandra") as cluster:
        print(f"Cassandra takes clients at {', '.join(cluster.contact_points)}; Ctrl-C ends it", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("stopping")


if __name__ == "__main__":
    _main()
