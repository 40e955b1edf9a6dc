"""Channels for answers: how the answer to a delivery reaches its sender, in this process or over a stream."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final, Protocol

from millwheel.model.backoff import Backoff
from millwheel.model.outbound import AnswerKind, answer_kind
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.messages import Acknowledged, Halted, Refused, Resend
from millwheel.worker.shell.host import CoreHost

__all__ = ["Channel", "LocalChannel", "answer"]

log = logging.getLogger("millwheel.worker")

_BACKOFF: Final = Backoff(0.02, 1.0)
"""Seconds until refused batches are sent again."""

_TELL_SECONDS: Final = 60.0
"""Minimum seconds between two log lines about continuing refusals."""


class Channel(Protocol):
    """The destination of answers to deliveries."""

    def reply(self, token: int, outcome: DeliveryOutcome.ValueType, remaining: Sequence[int], message: str) -> None:
        """The receiver's answer for the batch ``token``."""


class LocalChannel:
    """Answers to one host's batches. ACKs are posted at once. Refusals are posted as ``Resend`` after a delay."""

    def __init__(self, host: CoreHost) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._refused: dict[int, set[int] | None] = {}
        """The records to send again, for each batch: the indexes, or None for all."""
        self._full: set[int] = set()
        """Those of the batches that were refused for lack of room."""
        self._failures = 0
        """Resends in succession without an ACK between them."""
        self._timer: asyncio.TimerHandle | None = None
        self._tell_at = 0.0

    def reply(self, token: int, outcome: DeliveryOutcome.ValueType, remaining: Sequence[int], message: str) -> None:
        """Post the answer to the sending host."""
        answer(self._host, self, token, outcome, remaining, message)

    def acknowledged(self, token: int, remaining: Sequence[int]) -> None:
        """The receiver has ACKed all records except ``remaining``."""
        self._failures = 0
        self._host.post(Acknowledged(token, remaining))

    def later(self, token: int, why: str = "", indexes: Sequence[int] = (), *, full: bool = False) -> None:
        """Send the batch, or the records ``indexes`` of it, again later. Other batches refused meanwhile are sent with
        it.

        ``why``: the receiver's message, which is logged at intervals if the refusals continue. ``full``: the batch was
        refused only for lack of room.
        """
        if not indexes:
            self._host.post(Halted(token))
        if not self._refused:
            self._failures += 1
            self._timer = self._loop.call_later(_BACKOFF.delay(self._failures, random.random()), self._resend)
            if why and _BACKOFF.step(self._failures) >= _BACKOFF.largest and self._loop.time() >= self._tell_at:
                self._tell_at = self._loop.time() + _TELL_SECONDS
                log.warning("journal %s: its deliveries are refused, and sent again: %s", self._host.journal, why)
        if full and token not in self._refused:
            self._full.add(token)
        elif not full:
            self._full.discard(token)
        before = self._refused.get(token, set())
        self._refused[token] = None if not indexes or before is None else before.union(indexes)

    def resend_now(self) -> None:
        """Resend now: intervals have moved, so refused batches are sent at once to the present owners of their keys."""
        self._failures = 0
        if self._timer is not None and self._refused:
            self._timer.cancel()
            self._resend()

    def _resend(self) -> None:
        self._timer = None
        refused, self._refused = self._refused, {}
        parts = {token: indexes for token, indexes in refused.items() if indexes is not None}
        full, self._full = self._full, set()
        self._host.post(Resend(sorted(refused), parts, full))


def answer(
    host: CoreHost,
    channel: LocalChannel,
    token: int,
    outcome: DeliveryOutcome.ValueType,
    remaining: Sequence[int],
    message: str,
) -> None:
    """Post a receiver's answer to the sending host."""
    kind = answer_kind(outcome)
    if kind is AnswerKind.ACKED:
        channel.acknowledged(token, remaining)
    elif kind is AnswerKind.SUPERSEDED:
        host.post(Refused(token, f"a receiver refused the sequencer: {message}"))
    else:
        if kind is AnswerKind.INVALID:
            log.warning("journal %s: a batch was refused as invalid, and is sent again: %s", host.journal, message)
        full = kind is AnswerKind.FULL
        channel.later(token, message, remaining if full else (), full=full and not remaining)
