"""A development server in a separate process, and the requests to it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["ROOT", "DemoServer", "Server", "figures", "millwheel_command", "submit"]

ROOT: Final = Path(__file__).parents[2]
_START: Final = ("server", "start-dev", "--port", "0")
_READY: Final = re.compile(r"millwheel is ready at (\S+);")
_CONSOLE: Final = re.compile(r"its console is at (\S+)")


class Server(Protocol):
    """What the passes need of the system on which they run."""

    @property
    def address(self) -> str:
        """The master's address. Several addresses are separated by commas."""

    def counts(self, computation: str) -> dict[str, int]:
        """A computation's totals: records. A single process also has late_records, duplicates and dead_letters."""


class DemoServer:
    """``millwheel server start-dev`` on free ports and a temporary database. Use it as ``with``."""

    def __init__(self, log: Path) -> None:
        """``log``: the file for the server's output."""
        self._log = log
        self._metrics_port = _free_port()
        self._process: subprocess.Popen[str] | None = None
        self.address = ""
        self.console = ""
        """The URL of the web console."""

    def __enter__(self) -> DemoServer:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*millwheel_command(*_START), "--metrics-port", str(self._metrics_port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )
        assert self._process.stdout is not None
        found = _READY.match(self._process.stdout.readline())
        if found is None:
            self._process.communicate()
            raise RuntimeError(f"the server did not start:\n{self._log.read_text()[-2_000:]}")
        self.address = found[1]
        console = _CONSOLE.match(self._process.stdout.readline())
        self.console = console[1] if console is not None else ""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def submit(self, target: str) -> str:
        """Submit the topology at ``module:attribute``. Return the command's output."""
        return submit(self.address, target)

    def counts(self, computation: str) -> dict[str, int]:
        """A computation's totals from its metrics: records, late_records, duplicates, dead_letters."""
        counted = figures(f"127.0.0.1:{self._metrics_port}", computation)
        totals = {name: int(value) for name, value in counted.items() if name.endswith("_total")}
        return {name.removeprefix("millwheel_").removesuffix("_total"): value for name, value in totals.items()}


def submit(address: str, target: str) -> str:
    """Submit the topology at ``module:attribute``. Return the command's output."""
    done = subprocess.run(
        millwheel_command("topology", "submit", target, "--address", address),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    if done.returncode:
        raise RuntimeError(f"the topology was not taken:\n{done.stderr}")
    return done.stdout.strip()


def figures(metrics: str, computation: str) -> dict[str, float]:
    """The values of a computation on the metrics page at ``metrics`` (host:port)."""
    with urlopen(f"http://{metrics}/metrics", timeout=10) as response:
        text = response.read().decode()
    label = f'computation="{computation}"'
    its = "".join(f"{line}\n" for line in text.splitlines() if label in line)  # to parse all takes long
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(its)
        for sample in family.samples
        if sample.labels.get("computation") == computation
    }


def millwheel_command(*arguments: str) -> list[str]:
    """The ``millwheel`` command of this tree."""
    return [sys.executable, "-c", "from millwheel.cli.main import main; main()", *arguments]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
