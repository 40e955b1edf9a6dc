"""Following the coordinator's catalog: one read model, brought up to date by a watch."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

from millwheel.coordination.contract import CompactedError, Coordinator, CoordinatorUnavailableError
from millwheel.core.catalog import Catalog
from millwheel.core.catalog_keys import LOGS, TOPOLOGIES

__all__ = ["follow", "read_topologies"]

log = logging.getLogger("millwheel.worker")

_AGAIN: Final = 0.5


async def read_topologies(coordinator: Coordinator) -> Catalog:
    """The topologies and logs, by linearizable reads.

    DamagedValueError if one cannot be read: it may consume any stream, so nothing can be run without it.
    A process that runs may know it from before, and go on. One that does not must not stand by its side, to be given
    intervals that it cannot run.
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
    """Keep ``catalog`` at the coordinator's newest contents; yields after each change, the first load included.

    While the coordinator is away the catalog stays as it was: records keep flowing, until the worker's lease is over.
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
            # Whoever follows would stand still for good, and nobody be told: it is all read again.
            log.exception("the catalog cannot be followed, trying again")
        await asyncio.sleep(_AGAIN * random.uniform(0.5, 1.5))
