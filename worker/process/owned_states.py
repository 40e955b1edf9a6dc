"""The encoded states of keys, as their owner has them: for inspection and for look-ups."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Final

from millwheel.model.backoff import Backoff
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.store.contract import StateStore
from millwheel.worker.interval import IntervalCore
from millwheel.worker.owner import OwnerPhase
from millwheel.worker.process.appends import after_sync_of
from millwheel.worker.process.rows import read_rows

__all__ = ["OwnedStates", "not_owned"]

_COMMIT_DELAYS: Final = Backoff(first=0.001, largest=0.05)
"""Seconds between two looks whether a commit in flight has ended. A commit takes some milliseconds."""


class OwnedStates:
    """Finds the interval of a key in this process, and the states of its keys.

    Args:
        locate: The journal that has a key of a computation. Empty if there is none.
        core_of: The core of a journal, if it runs here.
        absence: Why an interval that is assigned to this worker does not run here.
        store: The store with the state rows.
    """

    def __init__(
        self,
        locate: Callable[[IncarnationId, bytes], str],
        core_of: Callable[[str], IntervalCore | None],
        absence: Callable[[str], str],
        store: StateStore,
    ) -> None:
        self.locate = locate
        self._core_of = core_of
        self._absence = absence
        self._store = store
        self._after_sync = after_sync_of(store)

    def serves(self, core: IntervalCore) -> bool:
        """Whether ``core`` still serves its interval here."""
        return self._core_of(core.state.config.journal) is core and core.phase is OwnerPhase.SERVING

    def core(self, journal: str, what: str) -> IntervalCore:
        """The core that serves ``journal``.

        Raises:
            RequestError: Says why no core serves it.
        """
        core = self._core_of(journal)
        if core is not None and core.phase is OwnerPhase.SERVING:
            return core
        why = f"it is {core.phase.value}" if core is not None else self._absence(journal)
        raise _not_serving(what, why) if why else not_owned(what)

    async def committed(self, core: IntervalCore, sealed: int, seconds: float | None = None) -> None:
        """Wait until commit ``sealed`` is in the journal, or has ended without an append because it keeps nothing.

        Invariant (G1): what a client is shown is on the disk. A core may have the result of its append before that.

        Args:
            core: The interval.
            sealed: The commit.
            seconds: How long to wait for the append, and for its sync. None: without a limit.

        Raises:
            RequestError: The interval has left this worker.
            TimeoutError: It took longer than ``seconds``.
        """
        journal, looks = core.state.journal, 0
        if journal.committed < min(sealed, journal.sealed):  # most commits are in the journal
            async with asyncio.timeout(seconds):
                while journal.committed < min(sealed, journal.sealed) and self.serves(core):
                    looks += 1
                    await asyncio.sleep(_COMMIT_DELAYS.delay(looks, random.random()))
        synced = asyncio.Event()
        self._after_sync(synced.set)
        if not synced.is_set():
            async with asyncio.timeout(seconds):
                await synced.wait()
        if not self.serves(core):
            raise not_owned(f"journal {core.state.config.journal} any more")

    async def rows(self, core: IntervalCore, keys: Iterable[bytes], damaged: dict[bytes, str]) -> dict[bytes, bytes]:
        """The encoded states of keys that have no cell. ``damaged`` gets the reason for each row that is damaged."""
        asked = list(keys) if core.state.cells.evicted else []
        if not asked:
            return {}
        rows = await read_rows(self._store, core.state.config.incarnation, asked, damaged)
        return {row.key: row.blob for row in rows if row is not None}


def not_owned(what: str) -> RequestError:
    """The error for an interval that this worker does not own."""
    return RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"this worker does not own {what}",
        "ask the owner that the interval map names; it may have just moved",
        reason="NOT_OWNER",
    )


def _not_serving(what: str, why: str) -> RequestError:
    return RequestError(
        FailureCode.UNAVAILABLE,
        f"this worker owns {what}, but does not serve it: {why}",
        "try again if it is being opened; else look at the worker's log",
        reason="NOT_SERVING",
    )
