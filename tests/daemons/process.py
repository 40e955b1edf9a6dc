"""Daemons as processes of their own, and what is asked of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from grpc_health.v1 import health_pb2, health_pb2_grpc

from millwheel.rpc.channel import open_channel
from tests.patience import patience
from tests.system.server import MAIN, ROOT


class DaemonProcess:
    """``millwheel ROLE run`` with settings; use it as ``async with``, at the end of which it is no more."""

    def __init__(self, role: str, log: Path, settings: Mapping[str, object]) -> None:
        """``settings``: by path, as the environment's text."""
        self.role = role
        self.log = log
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MILLWHEEL_")},
            "PYTHONPATH": str(ROOT),
            "MILLWHEEL_LOGGING_FORMAT": "json",
            "MILLWHEEL_RPC_LISTEN": "127.0.0.1:0",
            "MILLWHEEL_METRICS_LISTEN": "127.0.0.1:0",
            **{"MILLWHEEL_" + path.upper().replace(".", "_"): str(value) for path, value in settings.items()},
        }
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> DaemonProcess:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", MAIN, self.role, "run"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=ROOT,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self, within: float = patience(20)) -> int:
        """Its exit code, once it has ended."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), within)

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far; what is no JSON fails."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    async def line(self, message: str, within: float = patience(30), **values: object) -> dict[str, Any]:
        """The newest line whose message contains ``message`` and that has ``values``; it is waited for."""
        async with asyncio.timeout(within):
            while True:
                for line in reversed(self.lines()):
                    if message in line["message"] and all(line.get(name) == value for name, value in values.items()):
                        return dict(line)
                if self._process is not None and self._process.returncode is not None:
                    raise AssertionError(f"it ended with {self._process.returncode}:\n{self.log.read_text()}")
                await asyncio.sleep(0.05)


async def is_serving(address: str) -> bool:
    """What grpc.health.v1 says of the server as a whole."""
    async with open_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=patience(5))
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def metrics_page(address: str) -> str:
    """The text of a metrics page."""
    with urlopen(f"http://{address}/metrics", timeout=patience(10)) as response:
        return str(response.read().decode())
