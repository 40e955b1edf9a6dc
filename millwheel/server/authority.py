"""``millwheel authority run``: a candidate for every shard of the low watermark authority (section 7.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from millwheel.authority.candidate import Candidate, CandidateSettings
from millwheel.authority.catalog_members import CatalogMembers
from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import ShardSettings
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.server.daemon import Daemon, Role
from millwheel.server.startup import cancel, keep

__all__ = ["AUTHORITY"]

_GRACE_SECONDS: Final = 10.0
_APPEND_INTERVAL_SECONDS: Final = 0.02
"""Minimum seconds from one append of a shard to its next. Watermarks change all the time. Without this pause the store
would spend more work on watermarks than on records."""
_REST_PER_APPEND: Final = 6.0
"""Idle time after a shard's append, as a multiple of the append's duration. A shard appends for at most 1 / (1 + 6),
a seventh, of its time."""


@asynccontextmanager
async def _authority(daemon: Daemon) -> AsyncIterator[None]:
    backends, settings = daemon.backends, daemon.settings
    candidate = Candidate(
        backends.coordinator,
        backends.store,
        daemon.address,
        daemon.shards,
        CandidateSettings(
            lease=settings.authority.lease_seconds,
            shard=ShardSettings(coalesce=_APPEND_INTERVAL_SECONDS, rest=_REST_PER_APPEND),
        ),
    )
    daemon.registry.register(candidate.metrics)
    members = CatalogMembers(backends.coordinator)
    add_WatermarkServiceServicer_to_server(WatermarkServicer(candidate, members.check), daemon.server)
    # The cancellation at the end resigns this process's shards, so other candidates are elected at once.
    task = asyncio.create_task(keep("the authority", candidate.run))
    try:
        yield
    finally:
        await cancel(task)


AUTHORITY: Final = Role("authority", ("millwheel.v1.WatermarkService",), _authority, lambda settings: _GRACE_SECONDS)
