"""Containers as processes: the command, environment and probes of a manifest, exactly as written.

Names of hosts become addresses, and paths of volumes become folders: that is all that is changed. Each container has a
loopback address of its own, as a pod has an address of its own, so its ports are those of the manifest. With TLS it
listens on every address, as in the manifest, because a page on loopback has no TLS. Then its ports are other ones.
"""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from deploy.local.child import ChildProcess, free_ports
from tests.deploy import dockerfile
from tests.deploy.variables import unknown
from tests.house.tree import ROOT
from tests.patience import SLOWNESS, patience

_BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """A probe by HTTP, and the seconds within which it must succeed."""

    path: str
    port: int
    secured: bool
    within: float


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a manifest, or of a service. ``command`` has the image's entry point.

    ``health_check``: the command by which an engine asks. ``grace``: seconds from SIGTERM to SIGKILL.
    """

    name: str
    role: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    grace: float
    probes: Mapping[str, HttpProbe] = field(default_factory=dict)
    health_check: tuple[str, ...] = ()


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@dataclass(frozen=True, slots=True)
class Place:
    """Where a container is reached. ``ports``: those in place of the manifest's, if it listens on every address."""

    address: str
    ports: Mapping[int, int]

    def port(self, port: int) -> int:
        """The port in place of one of the manifest."""
        return self.ports.get(port, port)

    def at(self, port: int) -> str:
        """host:port in place of a port of the manifest."""
        return f"{self.address}:{self.port(port)}"

    def listening(self, text: str) -> str:
        """The value of a variable that may say where to listen."""
        if not self.ports:
            return text.replace("0.0.0.0", self.address)
        return re.sub(r"(?<=^0\.0\.0\.0:)\d+$|^8433$", lambda found: str(self.port(int(found.group()))), text)


PORTS = {"master": (7433, 9433, 8433), "authority": (7434, 9434), "worker": (7450, 9450)}
"""The ports of each role: service, metrics, console."""


def places_of(containers: Sequence[Container], *, secured: bool) -> dict[str, Place]:
    """A place for each container, by its name. Other test processes use other ones."""
    if secured:
        free = iter(free_ports(sum(len(PORTS[one.role]) for one in containers)))
        return {one.name: Place("127.0.0.1", dict(zip(PORTS[one.role], free, strict=False))) for one in containers}
    block = f"127.{64 + os.getpid() % 128}.{os.getpid() // 128 % 250 + 1}"
    return {one.name: Place(f"{block}.{number}", {}) for number, one in enumerate(containers, 1)}


@dataclass(frozen=True, slots=True)
class Loopback:
    """What stands in place of names and paths. Longer ones are replaced first."""

    places: Mapping[str, str]

    def text(self, text: str) -> str:
        """The text with addresses and folders of this machine."""
        for name in sorted(self.places, key=len, reverse=True):
            text = text.replace(name, self.places[name])
        return text


class RunningContainer:
    """A container's process."""

    def __init__(self, container: Container, place: Place, loopback: Loopback, log: Path) -> None:
        """Does not start it."""
        assert unknown(dict(container.environment)) == set()
        self.container = container
        self.place = place
        self.environment = {
            # A worker's own name is no name of a host, also where both are one word.
            name: value if name == "MILLWHEEL_WORKER_ID" else place.listening(loopback.text(value))
            for name, value in container.environment.items()
        }
        self.environment |= {"PATH": f"{_BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        self.process = ChildProcess(list(container.command), log, self.environment)

    def answers(self, probe: HttpProbe) -> str:
        """Why the probe fails now. Empty: it succeeds. Like the kubelet, it checks no certificate and shows none."""
        url = f"{'https' if probe.secured else 'http'}://{self.place.at(probe.port)}{probe.path}"
        try:
            urllib.request.urlopen(url, timeout=patience(5), context=_trusting() if probe.secured else None).close()
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError as error:
            return str(error)
        return ""

    def _succeeds(self, probe: HttpProbe) -> bool:
        return not self.answers(probe)

    def is_healthy(self) -> bool:
        """Whether the health check of the engine succeeds now. Its command is a file of the image."""
        program, *arguments = self.container.health_check
        command = [sys.executable, str(dockerfile.script(program)), *arguments]
        done = subprocess.run(command, env=self._own(), capture_output=True, text=True, timeout=patience(10))
        return done.returncode == 0

    def until_healthy(self) -> None:
        """Wait for the health check."""
        self.until(self.is_healthy, patience(60), "the health check fails")

    def until_ready(self, names: Iterable[str] = ("startup", "liveness", "readiness")) -> None:
        """Wait until the probes succeed. The first one has the time that the manifest gives, on a slow machine."""
        limit = self.container.probes["startup"].within * SLOWNESS
        for name in names:
            self.until(partial(self._succeeds, self.container.probes[name]), limit, f"the probe {name} fails")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command in the container, as ``kubectl exec`` or ``docker compose exec`` does."""
        return subprocess.run(arguments, env=self._own(), capture_output=True, text=True, timeout=patience(60))

    def stop(self) -> float:
        """SIGTERM, as an engine stops it. Returns how long it took. It must end in order, by itself."""
        began = time.monotonic()
        self.process.stop(self.container.grace * SLOWNESS)
        code = self.process.exit_code
        assert code == 0, f"{self.container.name} ended with {code}:\n{self.process.last_lines()}"
        return time.monotonic() - began

    def _own(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def until(self, holds: Callable[[], bool], within: float, what: str) -> None:
        """Wait until it is true, while the process runs."""
        end = time.monotonic() + within
        while not holds():
            name = self.container.name
            assert self.process.is_running, f"{name} has ended:\n{self.process.last_lines()}"
            assert time.monotonic() < end, f"{name}: {what}:\n{self.process.last_lines()}"
            time.sleep(0.1)


@contextmanager
def running(
    containers: Sequence[Container], places: Mapping[str, Place], loopback: Loopback, folder: Path
) -> Iterator[dict[str, RunningContainer]]:
    """Run containers, by their names. They are killed at the end if they still run."""
    made = {}
    for one in containers:
        own = Loopback({**loopback.places, "/var/cache/millwheel": str(folder / one.name)})
        made[one.name] = RunningContainer(one, places[one.name], own, folder / f"{one.name}.log")
    try:
        for started in made.values():
            started.process.start()
        yield made
    finally:
        ChildProcess.stop_all([started.process for started in made.values()], patience(5))
