"""Batches that a receiver refused, or that were lost: after a delay they are sent again (6.1.1)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final

from millwheel.model.backoff import Backoff
from millwheel.worker.messages import Halted, Resend
from millwheel.worker.process.host import CoreHost

__all__ = ["RefusedBatches"]

log = logging.getLogger("millwheel.worker")

BACKOFF: Final = Backoff(0.02, 1.0)
"""Seconds until refused batches are sent again."""

_LOG_SECONDS: Final = 60.0
"""Minimum seconds between two log lines about continuing refusals."""
MOVE_SECONDS: Final = 20.0
"""For so long, refusals by another owner are those of a move, and no reason for a warning."""


class RefusedBatches:
    """The refused batches of one host. They are posted together as one ``Resend``."""

    def __init__(self, host: CoreHost) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._refused: dict[int, set[int] | None] = {}
        """The records to send again, for each batch: the indexes, or None for all."""
        self._full: set[int] = set()
        """Those of the batches that were refused for lack of room."""
        self.failures = 0
        """Resends in succession without an ACK between them."""
        self._timer: asyncio.TimerHandle | None = None
        self._log_at = 0.0
        self._since: float | None = None
        """When the refusals began. None: there has been an ACK since the last one."""

    def later(
        self, token: int, why: str = "", indexes: Sequence[int] = (), *, full: bool = False, moved: bool = False
    ) -> None:
        """Send the batch, or the records ``indexes`` of it, again later. Other batches refused meanwhile are sent with
        it.

        ``why``: the receiver's message, which is logged at intervals if the refusals continue. ``full``: the batch was
        refused only for lack of room. ``moved``: it was refused by a worker that does not own the keys, or has not
        got what comes before.
        """
        if not indexes:
            self._host.post(Halted(token))
        if not self._refused:
            self.failures += 1
            if self._since is None:
                self._since = self._loop.time()
            self._timer = self._loop.call_later(BACKOFF.delay(self.failures, random.random()), self._resend)
            if why and BACKOFF.step(self.failures) >= BACKOFF.largest:
                self._log_refusals(why, moved and self._loop.time() - self._since < MOVE_SECONDS)
        if full and token not in self._refused:
            self._full.add(token)
        elif not full:
            self._full.discard(token)
        before = self._refused.get(token, set())
        self._refused[token] = None if not indexes or before is None else before.union(indexes)

    def _log_refusals(self, why: str, moves: bool) -> None:
        """Log that refusals go on. ``moves``: as a move of an interval takes some seconds, it is no reason to act."""
        if moves:
            log.debug("journal %s: its records wait for an interval that moves: %s", self._host.journal, why)
        elif self._loop.time() >= self._log_at:
            self._log_at = self._loop.time() + _LOG_SECONDS
            log.warning("journal %s: its deliveries are refused, and sent again: %s", self._host.journal, why)

    def acked(self) -> None:
        """The receiver has ACKed something: it is well again."""
        self.failures, self._since = 0, None

    def resend_now(self) -> None:
        """Resend now: intervals have moved, so refused batches are sent at once to the present owners of their keys."""
        self.failures = 0
        if self._timer is not None and self._refused:
            self._timer.cancel()
            self._resend()

    def _resend(self) -> None:
        self._timer = None
        refused, self._refused = self._refused, {}
        parts = {token: indexes for token, indexes in refused.items() if indexes is not None}
        full, self._full = self._full, set()
        self._host.post(Resend(sorted(refused), parts, full))
