"""Repetition of calls whose outcome is unknown, until it is known (section 6.2; G1, G3)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from millwheel.model.backoff import Backoff
from millwheel.store.contract import Append, SequencerRefusedError, StateStore, StoreUnavailableError

__all__ = ["RetriedCalls"]

log = logging.getLogger("millwheel.store")

T = TypeVar("T")

_BACKOFF: Final = Backoff(0.02, 2.0)
"""Seconds between two attempts. The delay doubles each time, with jitter."""


class RetriedCalls:
    """The calls of one owner of a journal. A call is repeated, with identical bytes, until its outcome is known."""

    def __init__(self, owner: str, unavailable: tuple[type[Exception], ...] = (StoreUnavailableError,)) -> None:
        """``owner``: its name in the log. ``unavailable``: the errors that leave the outcome unknown."""
        self._owner = owner
        self._unavailable = unavailable
        self.repeated = 0
        """Calls in flight that have failed at least once."""
        self.failing_since = 0.0
        """Since when there have been such calls, by the loop's clock."""
        self.last_error = ""

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until its outcome is known."""
        failures = 0
        try:
            while True:
                try:
                    return await call()
                except self._unavailable as error:
                    log.warning("%s: trying again: %s", self._owner, error)
                    if not self.repeated:
                        self.failing_since = asyncio.get_running_loop().time()
                    self.last_error = str(error)
                    self.repeated += not failures
                    failures += 1
                    await asyncio.sleep(_BACKOFF.delay(failures, random.random()))
        finally:
            self.repeated -= bool(failures)

    async def append(
        self, store: StateStore, journal: str, append: Append, failed: StoreUnavailableError | None = None
    ) -> None:
        """Append to the journal. ``failed``: the error of a first attempt that was made already.

        Raises:
            SequencerRefusedError: There is a newer owner.
        """
        uncertain = False

        async def attempt() -> None:
            nonlocal uncertain, failed
            try:
                if failed is not None:
                    before, failed = failed, None
                    raise before
                await store.append(journal, append)
            except StoreUnavailableError:
                uncertain = True
                raise
            except SequencerRefusedError as error:
                # Refused with our sequencer and number after an attempt of unknown outcome: that attempt was applied.
                if not uncertain or (error.sequencer, error.commit) != (append.sequencer, append.commit):
                    raise

        await self.call(attempt)
