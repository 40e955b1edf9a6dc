"""The systems that are measured: how each runs a query, and how its results are read."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, Protocol

import msgspec

from bench.nexmark.models import Row
from bench.nexmark.program import SINK
from bench.nexmark.rows import UPDATED, changelog_rows, list_rows, object_rows, value_rows, written_lines
from bench.nexmark.sql import SQL
from bench.peers.jobs import BoundedRun, Bytewax, Flink, PeerJob
from bench.peers.millwheel import variables
from bench.server import ServerProcess, submit
from millwheel.client.control import ControlClient
from millwheel.client.holds.watermark import open_authority, read_watermark
from millwheel.client.shards import ShardedWatermarks
from millwheel.model.time import MAX_TIMESTAMP

__all__ = ["SYSTEMS", "BoundedPeer", "NexmarkSystem", "QueryJob", "query_job"]

_PROGRAMS: Final = Path(__file__).with_name("programs")
_DEADLINE: Final = 10.0
_OUT_OF_ORDER_MS: Final = 4_000


class QueryJob(PeerJob, kw_only=True):
    """A query between files. ``source`` is a file of JSON lines, and ``target`` a folder.

    Attributes:
        query: Such as ``q5``.
        sql: The same for Flink.
        updated: Whether results are corrected later.
    """

    query: str
    sql: str
    updated: bool


def query_job(query: str, source: Path, place: Path, processes: int) -> QueryJob:
    """The job of a query, with a folder of its own for results."""
    (place / "results").mkdir(parents=True)
    return QueryJob(
        source=str(source.resolve()),
        target=str((place / "results").resolve()),
        out_of_order_ms=_OUT_OF_ORDER_MS,
        processes=processes,
        commit_seconds=1,
        place=str(place.resolve()),
        query=query,
        sql=SQL[query],
        updated=query in UPDATED,
    )


class BoundedPeer(Protocol):
    """A system that runs a query to the end of its file."""

    @property
    def name(self) -> str:
        """For people and for ``--only``."""

    def install(self) -> None:
        """See to it that it can run. InstallError says why it cannot."""

    def versions(self) -> dict[str, str]:
        """Of what it is made of."""

    def ready(self, job: QueryJob) -> AbstractAsyncContextManager[BoundedRun]:
        """A block in which it is ready. Its processes end with the block."""


@dataclass(frozen=True, slots=True)
class NexmarkSystem:
    """A system, and the rows that it has written for a job."""

    peer: BoundedPeer
    rows: Callable[[QueryJob], Counter[Row]]


@dataclass(slots=True)
class _Reading:
    """A server that runs, and gets the topology. It has ended when its sink's low watermark is plus infinity."""

    address: str
    client: ControlClient
    authority: ShardedWatermarks
    group: str = ""

    async def start(self) -> None:
        await asyncio.to_thread(submit, self.address, "nexmark", "bench.nexmark.program", include=["examples"])
        self.group = (await self.client.get_topology("nexmark")).topology.incarnations[SINK]

    async def has_ended(self) -> bool:
        return (await read_watermark(self.authority, self.group)).value == MAX_TIMESTAMP


@dataclass(frozen=True, slots=True)
class FilesServer:
    """``millwheel server start-dev`` between files: all roles and the store in one process."""

    name: str = "millwheel-dev"

    def install(self) -> None:
        """It is this checkout."""

    def versions(self) -> dict[str, str]:
        return {"openmillwheel": version("openmillwheel")}

    @asynccontextmanager
    async def ready(self, job: QueryJob) -> AsyncIterator[BoundedRun]:
        given = {"QUERY": job.query, "FROM": job.source, "TO": job.target, "OUT_OF_ORDER_MS": str(job.out_of_order_ms)}
        with variables({f"NEXMARK_{name}": value for name, value in given.items()}):
            server = await asyncio.to_thread(ServerProcess, Path(job.place))
            try:
                async with ControlClient(server.address) as client:
                    await client.list_topologies()
                    async with await open_authority(client, _DEADLINE) as authority:
                        yield _Reading(server.address, client, authority)
            finally:
                await asyncio.to_thread(server.stop)


def _millwheel_rows(job: QueryJob) -> Counter[Row]:
    return value_rows(job.query, map(msgspec.json.decode, written_lines(Path(job.target))))


def _bytewax_rows(job: QueryJob) -> Counter[Row]:
    return list_rows(job.query, map(msgspec.json.decode, written_lines(Path(job.target))))


def _flink_rows(job: QueryJob) -> Counter[Row]:
    if job.updated:
        return changelog_rows(job.query, (Path(job.place) / "flink.log").read_text().splitlines())
    return object_rows(map(msgspec.json.decode, written_lines(Path(job.target))))


SYSTEMS: Final = (
    NexmarkSystem(FilesServer(), _millwheel_rows),
    NexmarkSystem(Bytewax(_PROGRAMS / "bytewax_flow.py"), _bytewax_rows),
    NexmarkSystem(Flink("flink-sql", _PROGRAMS / "flink_sql.py", {}, kafka=False), _flink_rows),
)
