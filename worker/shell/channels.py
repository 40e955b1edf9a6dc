"""The way back to a sender: how the answer to a delivery reaches it, in this process or over a stream."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Final, Protocol

from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.messages import Acknowledged, Halted, Refused, Resend
from millwheel.worker.shell.host import CoreHost

__all__ = ["Channel", "LocalChannel", "answer"]

log = logging.getLogger("millwheel.worker")

_RESEND_FIRST: Final = 0.02
_RESEND_LAST: Final = 1.0
"""Seconds until refused batches are sent again, doubled from refusal to refusal, with jitter."""

_TELL_SECONDS: Final = 60.0
"""How often the log is told, at most, of refusals that go on."""


class Channel(Protocol):
    """Where answers to deliveries go."""

    def reply(self, token: int, outcome: DeliveryOutcome.ValueType, remaining: Sequence[int], message: str) -> None:
        """The receiver's answer for the batch ``token``."""


class LocalChannel:
    """Answers to one host's batches, wherever the receiver is: ACKs go in, refusals come back as Resend in a while."""

    def __init__(self, host: CoreHost) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._refused: dict[int, set[int] | None] = {}
        """What is to be sent again, by batch: the records of these indexes, or all (None)."""
        self._full: set[int] = set()
        """Those of the batches that were refused for want of room."""
        self._delay = _RESEND_FIRST
        self._timer: asyncio.TimerHandle | None = None
        self._tell_at = 0.0

    def reply(self, token: int, outcome: DeliveryOutcome.ValueType, remaining: Sequence[int], message: str) -> None:
        """Post the answer to the sending host."""
        answer(self._host, self, token, outcome, remaining, message)

    def acknowledged(self, token: int, remaining: Sequence[int]) -> None:
        """The receiver has it."""
        self._delay = _RESEND_FIRST
        self._host.post(Acknowledged(token, remaining))

    def later(self, token: int, why: str = "", indexes: Sequence[int] = (), *, full: bool = False) -> None:
        """Have the batch, or these records of it, sent again, together with others that were refused meanwhile.

        ``why``: what the receiver said, which the log is told once in a while if it goes on. ``full``: there was no
        room for the batch, and nothing else was wrong.
        """
        if not indexes:
            self._host.post(Halted(token))
        if not self._refused:
            self._timer = self._loop.call_later(self._delay * random.uniform(0.5, 1.5), self._resend)
            if why and self._delay >= _RESEND_LAST and self._loop.time() >= self._tell_at:
                self._tell_at = self._loop.time() + _TELL_SECONDS
                log.warning("journal %s: its deliveries are refused, and sent again: %s", self._host.journal, why)
            self._delay = min(self._delay * 2, _RESEND_LAST)
        if full and token not in self._refused:
            self._full.add(token)
        elif not full:
            self._full.discard(token)
        before = self._refused.get(token, set())
        self._refused[token] = None if not indexes or before is None else before.union(indexes)

    def hurry(self) -> None:
        """Intervals have changed hands: what was refused is sent again at once, to whoever owns its keys now."""
        self._delay = _RESEND_FIRST
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
    """Bring a receiver's answer to the sending host."""
    if outcome == DeliveryOutcome.DELIVERY_OUTCOME_ACKED:
        channel.acknowledged(token, remaining)
    elif outcome == DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER:
        host.post(Refused(token, f"a receiver refused the sequencer: {message}"))
    else:
        if outcome == DeliveryOutcome.DELIVERY_OUTCOME_INVALID:
            log.warning("journal %s: a batch was refused as invalid, and is sent again: %s", host.journal, message)
        full = outcome == DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
        channel.later(token, message, remaining if full else (), full=full and not remaining)
