"""Sends batches to other workers, and brings the answers to the senders (section 6.1.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import grpc

from millwheel.model.deliveries import Delivery
from millwheel.model.outbound import OutstandingAttempts, answer_kind
from millwheel.rpc.deliveries import answered_tokens, encode_delivery, without_columns
from millwheel.rpc.delivery_connection import DeliveryConnection
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome

__all__ = ["PeerConnection"]

_MAX_QUEUED_BATCHES: Final = 1_000
"""Maximum number of batches that wait for one connection. Further ones are sent again later."""


class AnswerChannel(Protocol):
    """The destination of answers to one interval's batches."""

    def reply(self, token: int, outcome: DeliveryOutcome.ValueType, indexes: Sequence[int], message: str) -> None:
        """The receiver's answer for the batch ``token``."""

    def later(self, token: int, why: str = "", indexes: Sequence[int] = (), *, full: bool = False) -> None:
        """Send the batch again later. ``full``: it was refused only for lack of room."""


class PeerConnection:
    """Batches for the intervals of one worker. Each batch has a number in this connection, which its answer names."""

    def __init__(self, address: str, open_channel: Callable[[str], grpc.aio.Channel]) -> None:
        self._outstanding = OutstandingAttempts[tuple[AnswerChannel, int]]()
        self._next = 1
        self._by_rows = False
        """Whether the worker has answered that it reads no columns. The next process there may read them."""
        self._connection = DeliveryConnection[wire.DeliverRequest](address, lambda made: made, self, open_channel)

    @property
    def broken_seconds(self) -> float:
        """For how long the worker has not been reached; 0: it is. Any thread may ask."""
        return self._connection.broken_seconds

    def send(self, delivery: Delivery, channel: AnswerChannel) -> None:
        """Queue a batch. ``channel`` receives the answer, or a request to send the batch again."""
        if self._connection.queued >= _MAX_QUEUED_BATCHES:
            channel.later(delivery.token, full=True)
            return
        number, self._next = self._next, self._next + 1
        # Encoded here: a batch that cannot be encoded ends its own interval, not every delivery to the worker.
        request = encode_delivery(without_columns(delivery) if self._by_rows else delivery, number)
        self._outstanding.add(number, len(delivery.keys), (channel, delivery.token))
        self._connection.send(request)

    async def close(self) -> None:
        """End the connection. Unanswered batches are sent again to the present owners of their keys."""
        await self._connection.close()
        self._fail_open()

    # Events of the connection.

    def connected(self, address: str) -> None:
        """The queued batches are sent now."""

    def disconnected(self, address: str) -> None:
        """The stream has ended: unanswered batches are sent again."""
        self._by_rows = False
        self._fail_open()

    def broke(self, address: str, error: Exception) -> bool:
        """Connect again after any error. Without a connection, every batch for this worker would wait for ever."""
        return True

    def answered(self, response: wire.DeliverResponse) -> None:
        """Bring an answer to the senders of its batches."""
        if response.outcome == DeliveryOutcome.DELIVERY_OUTCOME_NO_COLUMNS:
            self._by_rows = True
        kind = answer_kind(response.outcome)
        for number in answered_tokens(response):
            known = self._outstanding.answered(number, kind, response.indexes)
            if known is not None:
                channel, token = known
                channel.reply(token, response.outcome, response.indexes, response.message)

    def _fail_open(self) -> None:
        """Have unanswered batches sent again, with the same ids and bytes."""
        for channel, token in self._outstanding.clear():
            channel.later(token)
