"""Follows the coordinator's catalog: one read model, updated by a watch."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

from millwheel.coordination.contract import CompactedError, Coordinator, CoordinatorUnavailableError
from millwheel.model.backoff import Backoff
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import LOGS, TOPOLOGIES

__all__ = ["follow", "read_topologies"]

log = logging.getLogger("millwheel.worker")

_BACKOFF: Final = Backoff(0.5, 0.5)


async def read_topologies(coordinator: Coordinator) -> Catalog:
    """The topologies and logs, by linearizable reads.

    A process that already runs may know the damaged value from before, and continue. A process that starts must not
    register: it would be assigned intervals that it cannot run.

    Raises:
        DamagedValueError: A record cannot be read. It may consume any stream, so nothing can run without it.
    """
    known = Catalog()
    for prefix in (TOPOLOGIES, LOGS):
        part = Catalog()
        part.load(await coordinator.list(prefix))
        part.check_shape()
        known.topologies.update(part.topologies)
        known.logs.update(part.logs)
    return known


async def follow(coordinator: Coordinator, catalog: Catalog) -> AsyncIterator[None]:
    """Keep ``catalog`` at the coordinator's newest content. Yields after each change, including the first load.

    While the coordinator is unreachable the catalog stays unchanged. Records keep flowing until the worker's lease
    ends.
    """
    while True:
        try:
            snapshot = await coordinator.list("")
            catalog.load(snapshot)
            yield
            async with aclosing(coordinator.watch("", snapshot.revision)) as changes:  # type: ignore[type-var]
                async for change in changes:
                    if catalog.apply(change):
                        yield
        except CompactedError:
            continue
        except CoordinatorUnavailableError as error:
            log.warning("the coordinator is away, trying again: %s", error)
        except Exception:
            # Without this the caller would stop for ever without notice. Read everything again instead.
            log.exception("the catalog cannot be followed, trying again")
        await asyncio.sleep(_BACKOFF.delay(1, random.random()))
