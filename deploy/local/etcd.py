"""etcd on loopback: installed once, run with one member or three. Each member can be killed and restarted."""

from __future__ import annotations

import asyncio
import json
import platform
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from deploy.local import apt
from deploy.local.child import ChildProcess, StoppedAtExit, free_ports

__all__ = ["EtcdCluster", "EtcdTlsFiles", "install"]

_START: Final = 30.0
"""Seconds within which a member must serve."""


@dataclass(frozen=True, slots=True)
class EtcdTlsFiles:
    """PEM files for members that require a certificate from their clients. The members show the same certificate."""

    ca: Path
    cert: Path
    key: Path

    def options(self) -> list[str]:
        """etcd's command line options for these files."""
        return [
            *("--cert-file", str(self.cert), "--key-file", str(self.key)),
            *("--trusted-ca-file", str(self.ca), "--client-cert-auth"),
        ]

    def context(self) -> ssl.SSLContext:
        """The SSL context for a client of such a member."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.cert, self.key)
        return context


def install() -> Path:
    """The path of the etcd program: the one on PATH, or Debian's, which is downloaded into the build folder."""
    return apt.program("etcd", "etcd-server")


class EtcdCluster(StoppedAtExit):
    """etcd with its data and logs in one folder. A member keeps its ports when it is restarted.

    Usable with ``with`` and ``async with``. The kernel kills members that still run when this process ends.
    """

    def __init__(
        self, directory: Path, members: int = 1, *, tls: EtcdTlsFiles | None = None, options: tuple[str, ...] = ()
    ) -> None:
        """``tls``: for clients. Connections between members do not use TLS.

        ``options``: further command line options for every member. Otherwise etcd's limits are its defaults.
        """
        self.directory = directory
        self._scheme = "http" if tls is None else "https"
        self._context = None if tls is None else tls.context()
        options = (*options, *(tls.options() if tls is not None else ()))
        program = str(install())
        ports = free_ports(2 * members)
        self._clients = [f"127.0.0.1:{port}" for port in ports[:members]]
        peers = [f"http://127.0.0.1:{port}" for port in ports[members:]]
        cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        self.members = [
            ChildProcess(
                [
                    *(program, "--name", f"m{number}", "--data-dir", str(directory / f"m{number}")),
                    *("--listen-client-urls", f"{self._scheme}://{self._clients[number]}"),
                    *("--advertise-client-urls", f"{self._scheme}://{self._clients[number]}"),
                    *("--listen-peer-urls", peers[number], "--initial-advertise-peer-urls", peers[number]),
                    *("--initial-cluster", cluster, "--initial-cluster-token", directory.name),
                    *("--logger", "zap", "--log-outputs", "stderr", *options),
                ],
                directory / f"m{number}.log",
                # On other processors than amd64, etcd 3.4 starts only if this variable confirms the processor.
                {} if platform.machine() == "x86_64" else {"ETCD_UNSUPPORTED_ARCH": _go_name(platform.machine())},
            )
            for number in range(members)
        ]

    @property
    def endpoints(self) -> tuple[str, ...]:
        """host:port of each member, as clients take it."""
        return tuple(self._clients)

    def launch(self) -> None:
        """Start the members that do not run. They may need a few seconds until they serve."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for member in self.members:
            member.start()

    def start(self, *numbers: int) -> None:
        """Start these members, or all, and wait until they serve."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for number in numbers or range(len(self.members)):
            self.members[number].start()
        end = time.monotonic() + _START
        while waiting := [one for one in numbers or range(len(self.members)) if not self.serves(one)]:
            self._check(waiting, end)
            time.sleep(0.05)

    async def started(self) -> None:
        """Return when all members that were started serve."""
        end = time.monotonic() + _START
        while waiting := [one for one in range(len(self.members)) if not await asyncio.to_thread(self.serves, one)]:
            self._check(waiting, end)
            await asyncio.sleep(0.05)

    def _check(self, waiting: list[int], end: float) -> None:
        for number in waiting:
            member = self.members[number]
            if not member.is_running or time.monotonic() > end:
                ended = "does not serve" if member.is_running else "has ended"
                raise RuntimeError(f"etcd member {number} {ended}; {member.log} ends with:\n{member.last_lines()}")

    def serves(self, number: int) -> bool:
        """Whether a member responds, and knows a leader."""
        try:
            with urllib.request.urlopen(
                f"{self._scheme}://{self._clients[number]}/health", timeout=1.0, context=self._context
            ) as answer:
                return str(json.load(answer).get("health")) == "true"
        except (OSError, urllib.error.URLError, ValueError):
            return False

    def kill(self, number: int) -> None:
        """SIGKILL a member. Its data stay."""
        self.members[number].kill()

    def pause(self, number: int) -> None:
        """Pause a member. Its connections stay open, and it does not respond."""
        self.members[number].pause()

    def resume(self, number: int) -> None:
        """End a member's pause."""
        self.members[number].resume()

    def stop(self) -> None:
        """Stop all members. Their data stay."""
        # A leader's handover would take seconds. It is not needed, because every acknowledged write is on disk.
        ChildProcess.stop_all(self.members, patience=2.0)

    async def __aenter__(self) -> EtcdCluster:
        try:
            self.launch()
            await self.started()
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def _go_name(machine: str) -> str:
    return {"aarch64": "arm64", "armv7l": "arm"}.get(machine, machine)
