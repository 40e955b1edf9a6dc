"""Quix Streams as it is measured: processes of one consumer group, with transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from bench.peers.environments import QUIX
from bench.peers.jobs import Job, Started, program_environment, started_by
from deploy.local.child import ChildProcess

__all__ = ["Quix"]

_PROGRAM: Final = str(Path(__file__).with_name("programs") / "quix_app.py")


@dataclass(frozen=True, slots=True)
class Quix:
    """Quix Streams with exactly-once processing on. Its state is in RocksDB and in topics of changes."""

    name: str = "quix"
    guarantee: str = "exactly once"

    def install(self) -> None:
        QUIX.install()

    def versions(self) -> dict[str, str]:
        return QUIX.versions()

    def settings(self, job: Job) -> dict[str, str]:
        return {
            "processes": str(job.processes),
            "commit_interval": str(job.commit_seconds),
            "processing_guarantee": "exactly-once",
        }

    @asynccontextmanager
    async def ready(self, job: Job) -> AsyncIterator[Started]:
        processes = [self._process(job, number) for number in range(job.processes)]
        async with started_by(lambda: processes) as started:
            yield started

    def _process(self, job: Job, number: int) -> ChildProcess:
        place = Path(job.place) / f"process-{number}"
        place.mkdir(parents=True)
        given = msgspec.structs.replace(job, place=str(place), settings=self.settings(job))
        return ChildProcess([str(QUIX.python), _PROGRAM], place / "quix.log", program_environment(given, {}))
