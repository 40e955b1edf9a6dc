"""Building blocks that the daemons and the development server share."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from millwheel.coordination.contract import Coordinator, CoordinatorError
from millwheel.model.backoff import Backoff
from millwheel.model.catalog_keys import INTERVALS, split_key
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.store.contract import JournalExistsError, StateStore, StoreError

__all__ = [
    "cancel",
    "ensure_journal",
    "keep",
    "refuse_old_maps",
    "retried",
    "settle_memory",
]

log = logging.getLogger("millwheel")

Result = TypeVar("Result")

RETRY_BACKOFF: Final = Backoff(0.5, 30.0)
_HEALTHY_SECONDS: Final = 60.0
"""Seconds that a run of ``work`` must last to reset the restart back-off."""


def settle_memory() -> None:
    """Tune the interpreter for serving.

    Objects from start-up live as long as the process, so the garbage collector skips them. The collector also runs
    less often. A batch makes some ten thousand objects that live until its commit. A collection within a batch would
    visit them, and free nothing.

    A thread that returns from disk I/O waits for the interpreter lock for up to the switch interval. The default of
    5 ms is several times the duration of a commit.
    """
    sys.setswitchinterval(0.0003)
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 5, 50)


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def keep(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` repeatedly, even if it raises, until this task is cancelled. Pauses grow while runs are short."""
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        began = loop.time()
        try:
            await work()
        except Exception:
            log.exception("%s failed; it starts again", what)
        failures = 1 if loop.time() - began > _HEALTHY_SECONDS else failures + 1
        await asyncio.sleep(RETRY_BACKOFF.delay(failures, 1.0))


async def retried(what: str, work: Callable[[], Awaitable[Result]]) -> Result:
    """Return the result of ``work``. Retry as long as it raises an error of the store or the coordinator."""
    failures = 0
    while True:
        try:
            return await work()
        except (CoordinatorError, StoreError) as error:
            failures += 1
            log.warning("%s failed, trying again: %s", what, error)
        await asyncio.sleep(RETRY_BACKOFF.delay(failures, 0.5))


async def ensure_journal(store: StateStore, journal: str) -> None:
    """Create ``journal`` if it does not exist."""
    try:
        await store.create_journal(journal)
    except JournalExistsError:
        log.info("journal %s: taken up again", journal)


async def refuse_old_maps(coordinator: Coordinator, path: Path) -> None:
    """Raise RequestError if the database in ``path`` has interval maps in the old form, which this version ignores."""
    entries = (await coordinator.list(INTERVALS)).entries
    old = next((entry.key for entry in entries if len(split_key(entry.key)[1]) == 1), None)
    if old is not None:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"the database in {path} is of an earlier version of MillWheel, whose interval maps are in one piece "
            f"({old}): this version does not read it",
            "run it with the version that made it, and let its topologies run out there (`millwheel topology drain`); "
            "or begin with an empty directory",
            reason="DATABASE_TOO_OLD",
        )
