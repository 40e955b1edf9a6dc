"""Daemons as processes, with their logs, health and metrics."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from grpc_health.v1 import health_pb2, health_pb2_grpc

from millwheel.rpc.channel import open_channel
from tests.patience import patience, until
from tests.system.server import MAIN, ROOT, RunningCommand


class DaemonProcess(RunningCommand):
    """``millwheel ROLE run`` with settings."""

    def __init__(self, role: str, log: Path, settings: Mapping[str, object]) -> None:
        """``settings``: values by path. The daemon gets them as environment variables."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MILLWHEEL_")},
            "PYTHONPATH": str(ROOT),
            "MILLWHEEL_LOGGING_FORMAT": "json",
            "MILLWHEEL_RPC_LISTEN": "127.0.0.1:0",
            "MILLWHEEL_METRICS_LISTEN": "127.0.0.1:0",
            **{"MILLWHEEL_" + path.upper().replace(".", "_"): str(value) for path, value in settings.items()},
        }
        super().__init__(log, [sys.executable, "-c", MAIN, role, "run"], environment)

    def lines(self) -> list[dict[str, Any]]:
        """The log so far. A line that is not JSON fails the test."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    async def line(self, message: str, within: float = patience(30), **values: object) -> dict[str, Any]:
        """Wait for a line whose message contains ``message`` and that has ``values``. Returns the newest one."""
        return dict(await until(lambda: self._line(message, values), within, every=0.05))

    def _line(self, message: str, values: Mapping[str, object]) -> dict[str, Any] | None:
        for line in reversed(self.lines()):
            if message in line["message"] and all(line.get(name) == value for name, value in values.items()):
                return dict(line)
        code = self.process.returncode
        assert code is None, f"it ended with {code}:\n{self.log.read_text()}"
        return None


async def is_serving(address: str) -> bool:
    """The status of the whole server by grpc.health.v1."""
    async with open_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=patience(5))
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def metrics_page(address: str) -> str:
    """The text of a metrics page."""
    with urlopen(f"http://{address}/metrics", timeout=patience(10)) as response:
        return str(response.read().decode())
