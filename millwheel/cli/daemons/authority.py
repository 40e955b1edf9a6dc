"""``millwheel authority run``: a candidate for every shard of the low watermark authority (section 7.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from millwheel.authority.candidate import Candidate, CandidateSettings
from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shell import ShellSettings
from millwheel.cli.daemons.frame import Daemon, Role
from millwheel.cli.daemons.pieces import cancel, keep
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server

__all__ = ["AUTHORITY"]

_GRACE: Final = 10.0
_COALESCE: Final = 0.02
"""Seconds from one append of a shard to its next, at least. Watermarks change all the time: to append as soon as the
append before is done would have the store work more for them than for the records."""
_REST: Final = 6.0
"""How many times as long as an append took a shard leaves the store alone: at most a seventh of its time it appends."""


@asynccontextmanager
async def _authority(daemon: Daemon) -> AsyncIterator[None]:
    backends, settings = daemon.backends, daemon.settings
    candidate = Candidate(
        backends.coordinator,
        backends.store,
        daemon.address,
        daemon.shards,
        CandidateSettings(lease=settings.authority.lease_seconds, shell=ShellSettings(coalesce=_COALESCE, rest=_REST)),
    )
    daemon.registry.register(candidate.metrics)
    add_WatermarkServiceServicer_to_server(WatermarkServicer(candidate), daemon.server)
    # Leaving gives up what is served here: others are elected at once.
    task = asyncio.create_task(keep("the authority", candidate.run))
    try:
        yield
    finally:
        await cancel(task)


AUTHORITY: Final = Role("authority", ("millwheel.v1.WatermarkService",), _authority, lambda settings: _GRACE)
