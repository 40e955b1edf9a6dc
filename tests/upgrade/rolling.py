"""A load that runs while the versions of a cluster change."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.local.child import ChildProcess
from tests.faults import program
from tests.faults.checking import check
from tests.faults.history import Received, read
from tests.faults.program import STREAMS
from tests.patience import patience, until
from tests.upgrade.running import ROOT, Versions

SEED = 11
RESULTS = 200
"""Results that must come after each change of versions."""


class RollingLoad:
    """The clients, as one process at a time."""

    def __init__(self, address: str, place: Path, versions: Versions) -> None:
        self._address = address
        self._place = place
        self._versions = versions
        code = versions.module("clients", "tests.upgrade.clients")
        self._process = _program(code, [address, str(SEED), str(place)], place / "clients.log", address)

    @property
    def history(self) -> Path:
        """The file with what was sent and what came."""
        return self._place / "history.jsonl"

    def submit(self, tree: Path) -> None:
        """Submit the program by a version's command line."""
        self._versions.set("submit", tree)
        copy = shutil.copy(program.__file__, self._place)
        words = ["topology", "submit", f"{copy}:faults"]
        run = _program(self._versions.code("submit"), words, self._place / "submit.log", self._address)
        run.start()
        assert run.wait(patience(90)) == 0, run.last_lines()

    def start(self, tree: Path) -> None:
        """Start the clients with a version's library. Clients that run are killed, as in a crash."""
        self._process.kill()
        self._versions.set("clients", tree)
        self._process.start()

    async def flows(self) -> None:
        """Wait until results have come in a number that takes a while, each stream's among them."""
        before = self.received()
        assert await until(lambda: self._more_than(before), patience(60), every=1.0), self._process.last_lines()

    def _more_than(self, before: Counter[str]) -> bool:
        assert self._process.is_running, self._process.last_lines()
        new = self.received() - before
        return new.total() >= RESULTS and new.keys() == STREAMS.keys()

    def received(self) -> Counter[str]:
        """The number of records that came from each stream. Some may have come again."""
        found = Counter[str]()
        for event in read(self.history) if self.history.exists() else ():
            if isinstance(event, Received):
                found[event.stream] += len(event.values)
        return found

    async def finish(self) -> list[str]:
        """End the load. Return a line for each violation of a guarantee."""
        (self._place / "stop").touch()
        code = await asyncio.to_thread(self._process.wait, patience(180))
        assert code == 0, self._process.last_lines(30)
        return [f"{one.kind}: {one.text}" for one in check(read(self.history))]

    @contextmanager
    def running(self) -> Iterator[None]:
        """No process is left at the end of the block."""
        try:
            yield
        finally:
            self._process.kill()


def _program(code: str, words: list[str], log: Path, address: str) -> ChildProcess:
    environment = {"PYTHONPATH": str(ROOT), "MILLWHEEL_ADDRESS": address, "NO_COLOR": "1"}
    return ChildProcess([sys.executable, "-c", code, *words], log, environment)
