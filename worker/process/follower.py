"""Follows the coordinator's catalog: one read model, updated by a watch."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from millwheel.coordination.contract import CompactedError, Coordinator, CoordinatorUnavailableError, DamagedValueError
from millwheel.model.backoff import Backoff
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import CANDIDATES, DEPARTURES, ELECTIONS, LOGS, MASTERS, SEQUENCER, TOPOLOGIES
from millwheel.worker.process.tasks import BackgroundTasks

__all__ = ["CatalogFollower", "follow", "read_topologies"]

log = logging.getLogger("millwheel.worker")

_OF_OTHERS: Final = (DEPARTURES, MASTERS, CANDIDATES, SEQUENCER, ELECTIONS)
"""The prefixes of keys that do not concern a worker."""

BACKOFF: Final = Backoff(0.5, 0.5)

_STEP_BACKOFF: Final = Backoff(0.25, 30.0)
"""Seconds until the catalog is processed again after a step has failed."""


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
    """Keep ``catalog`` at the coordinator's newest content. Yields after each change that may concern a worker.

    The first load is such a change. Masters' elections and the allocation of sequencers are not. While the coordinator
    is unreachable the catalog stays unchanged. Records keep flowing until the worker's lease ends.
    """
    while True:
        try:
            snapshot = await coordinator.list("")
            catalog.load(snapshot)
            yield
            async with aclosing(coordinator.watch("", snapshot.revision)) as changes:  # type: ignore[type-var]
                async for change in changes:
                    if catalog.apply(change) and not all(one.key.startswith(_OF_OTHERS) for one in change):
                        yield
        except CompactedError:
            continue
        except CoordinatorUnavailableError as error:
            log.warning("the coordinator is away, trying again: %s", error)
        except Exception:
            # Without this the caller would stop for ever without notice. Read everything again instead.
            log.exception("the catalog cannot be followed, trying again")
        await asyncio.sleep(BACKOFF.delay(1, random.random()))


class CatalogFollower:
    """Processes the catalog after each change, and again later if a step was not complete."""

    def __init__(
        self,
        coordinator: Coordinator,
        catalog: Catalog,
        step: Callable[[], Awaitable[bool]],
        background: BackgroundTasks,
    ) -> None:
        """``step`` processes the whole catalog. It returns False if something must be tried again."""
        self._coordinator = coordinator
        self._catalog = catalog
        self._step = step
        self._background = background
        self._lock = asyncio.Lock()
        self.next_attempt: asyncio.TimerHandle | None = None
        """Waits after an incomplete step."""
        self.failures = 0
        """Incomplete steps in succession."""

    def start(self) -> None:
        """Follow the catalog."""
        self._background.run(self._run())

    def catch_up_soon(self) -> None:
        """Something besides the catalog has changed: process the catalog again."""
        self._background.run(self.catch_up())

    async def _run(self) -> None:
        async with aclosing(follow(self._coordinator, self._catalog)) as changes:  # type: ignore[type-var]
            async for _ in changes:
                await self.catch_up()

    async def catch_up(self) -> None:
        """Process the catalog. If a step fails, repeat it after a delay, or at the next change."""
        async with self._lock:
            try:
                done = await self._step()
            except DamagedValueError as error:
                log.error("what runs here goes on as it is, and nothing else is begun: %s", error)
                done = False
            except Exception:
                log.exception("the catalog could not be followed; trying again")
                done = False
        if self.next_attempt is not None:
            self.next_attempt.cancel()
            self.next_attempt = None
        if done:
            self.failures = 0
            return
        self.failures += 1
        delay = _STEP_BACKOFF.delay(self.failures, random.random())
        self.next_attempt = asyncio.get_running_loop().call_later(delay, self.catch_up_soon)

    def close(self) -> None:
        """Start no further attempt."""
        if self.next_attempt is not None:
            self.next_attempt.cancel()
