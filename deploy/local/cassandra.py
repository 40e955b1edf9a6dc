"""Cassandra on loopback, with one node or three. Each node can be killed, paused and restarted."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from deploy.local import jars
from deploy.local.apt import COMPONENTS, InstallError
from deploy.local.cassandra_config import CommitLogSync, NodeConfig, command, write_files
from deploy.local.child import ChildProcess, StoppedAtExit, free_ports, listens

__all__ = ["CassandraCluster", "CassandraNode", "InstallError"]

_START: Final = 180.0
"""Seconds within which a node must accept clients, on a machine with other load."""

_TIMER_SLACK: Final = 250
"""The timer slack of Cassandra's threads, in microseconds.

While they wait for work, one or a few of them always sleep for 10 microseconds at a time. At 500 small transactions a
second, that makes 25,000 sleeps a second. They cost 0.3 of a core, and interrupt other processes. The slack makes each
sleep longer by this time. A transaction passes from thread to thread. On an idle machine it takes 0.2 ms longer because
of the slack.
"""

_READY: Final = "Starting listening for CQL clients"
_HAS_SUPERUSER: Final = "Created default superuser role"


class CassandraNode:
    """One node. It keeps its address, port and data when it is stopped and started again."""

    def __init__(self, config: NodeConfig) -> None:
        """Does not start the node."""
        self.config = config
        self.address = f"{config.address}:{config.native_port}"
        """``host:port`` for clients."""
        log = config.folder / "system.log"
        arguments = command(config, jars.find_java(), jars.install(jars.CASSANDRA))
        self._process = ChildProcess(arguments, log, {"LC_ALL": "C"}, timer_slack=_TIMER_SLACK)
        self._said_before = 0

    @property
    def log(self) -> Path:
        """The file with the node's output, over all its starts."""
        return self._process.log

    @property
    def pid(self) -> int:
        """The node's process id."""
        return self._process.pid

    def launch(self) -> None:
        """Start the node. Idempotent. The node accepts clients about ten seconds later."""
        if not self._process.is_running:
            write_files(self.config)
            self._said_before = self.log.stat().st_size if self.log.exists() else 0
            self._process.start()

    def is_ready(self) -> bool:
        """Whether the node accepts clients. RuntimeError with the end of its log if it has ended."""
        text = self.log.read_bytes()
        ready = _READY.encode() in text[self._said_before :]
        if self.config.authentication and self.config.address == self.config.seeds[0]:
            ready = ready and _HAS_SUPERUSER.encode() in text
        if not self._process.is_running:
            raise RuntimeError(f"Cassandra {self.address} has ended; {self.log} ends with:\n{self._last_lines()}")
        # The log line comes a moment before the node listens.
        return ready and listens(self.config.address, self.config.native_port)

    def start(self) -> None:
        """Start the node, and wait until it accepts clients."""
        self.launch()
        end = time.monotonic() + _START
        while not self.is_ready():
            if time.monotonic() > end:
                raise RuntimeError(
                    f"Cassandra {self.address} is not ready; {self.log} ends with:\n{self._last_lines()}"
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the node.

        If its commit log has every acknowledged write, a second suffices for notifying the other nodes.
        """
        self._process.stop(1.0 if self.config.commitlog_sync == "batch" else 20.0)

    def kill(self) -> None:
        """SIGKILL the node. Its data stay."""
        self._process.kill()

    def pause(self) -> None:
        """Pause the node. Its connections stay open, and it does not respond."""
        self._process.pause()

    def resume(self) -> None:
        """End the node's pause."""
        self._process.resume()

    def _last_lines(self) -> str:
        return "\n".join(line[:300] for line in self._process.last_lines(20).splitlines())


class CassandraCluster(StoppedAtExit):
    """Nodes on 127.0.0.1, 127.0.0.2, … with free ports. Their data and logs are in one folder.

    Usable with ``with`` and ``async with``. The kernel kills nodes that still run when this process ends.
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
        """``authentication``: the nodes require passwords. The superuser's name and password are ``cassandra``.

        ``broadcast``: returns for a node's address the address that clients are given, where a proxy forwards them. For
        the other parameters, see :class:`~deploy.local.cassandra_config.NodeConfig`.
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
        """Start the nodes one after the other, and wait until they accept clients.

        The first one creates what all of them share.
        """
        for node in self.nodes:
            node.start()

    def stop(self) -> None:
        """Stop all nodes. Their data stay."""
        for node in self.nodes:
            node.stop()

    async def __aenter__(self) -> CassandraCluster:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def _main() -> None:
    """``python -m deploy.local.cassandra``: run a node with its data below ``build``, until Ctrl-C."""
    jars.install(jars.CASSANDRA)
    with CassandraCluster(COMPONENTS.parent / "cassandra") as cluster:
        print(f"Cassandra takes clients at {', '.join(cluster.contact_points)}; Ctrl-C ends it", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("stopping")


if __name__ == "__main__":
    _main()
