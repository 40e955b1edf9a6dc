"""What an injector sends again, and when (section 6.1.1). Pure.

The reasons are a broken connection, another owner of the interval, a receiver's refusal, and a missing answer.

A missing answer proves nothing: the receiver may be slow, or the answer lost. So a *copy* of the batch goes out, and
the earlier attempts stay in flight: an ACK of any of them counts. The receiver finds the duplicates by their ids.

Invariant: a record is in at most ``MAX_COPIES`` + 1 attempts in flight, and the oldest of them stays until it is
answered or its connection is lost (G8, G13). Who could break it: a receiver that takes longer than any copy's wait.

Invariant: a batch has no two attempts that its connection has not written yet. So a receiver that reads nothing gets no
copies, however long that lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Final

from millwheel.client.injector.ids import IdScope
from millwheel.client.injector.messages import Limits
from millwheel.client.injector.outbound import OutboundQueues
from millwheel.client.injector.outbound_queue import InjectedAttempt, InjectedBatch, OutboundQueue
from millwheel.model.backoff import Backoff, jittered
from millwheel.model.outbound import AnswerKind

__all__ = ["MAX_COPIES", "ResendingQueues"]

MAX_COPIES: Final = 4
"""The most copies of a batch in flight, beside its first attempt. Before each the wait doubles. Later ones replace the
last one, and wait as long as it did: 4 to 8 minutes by default."""


class ResendingQueues(OutboundQueues):
    """All outbound queues, with what is sent again. It also knows which addresses are connected."""

    def __init__(self, limits: Limits, chance: Callable[[], float]) -> None:
        """``chance`` returns numbers in [0, 1), used as jitter."""
        # Drawn once, so that batches with the same number of copies are due in the order of their sending.
        waits = (int(jittered(limits.resend_after << copies, chance())) for copies in range(1, MAX_COPIES + 1))
        super().__init__(limits, [limits.resend_after, *waits])
        self._backoff = Backoff(limits.retry_first, limits.retry_last)
        self._chance = chance
        self.unwritten: Mapping[str, int] = {}
        """By address: the first token that its connection has not written yet. For the next ``resend_overdue``."""

    def oldest_position(self, scope: IdScope, otherwise: int) -> int:
        """The least position of ``scope`` that some consumer has not ACKed. ``otherwise`` if there is none."""
        return min(
            (_first_position(queue) for queue in self._queues.values() if queue.scope == scope), default=otherwise
        )

    # Connections and owners.

    def link_to(self, wanted: set[str]) -> tuple[list[str], list[str]]:
        """Set the addresses to connect to. Returns the removed addresses and the added ones."""
        gone = [address for address in self._links if address not in wanted]
        new = sorted(wanted.difference(self._links))
        for address in gone:
            self.disconnected(address)
            del self._links[address]
        self._links.update(dict.fromkeys(new))
        return gone, new

    def connected(self, address: str) -> dict[OutboundQueue, None]:
        """Mark ``address`` as connected. Returns the queues that have something to send to it."""
        if address not in self._links:
            return {}
        if self._links[address] is None:
            self._links[address] = {}
        return {queue: None for queue in self._busy if queue.route.address == address}

    def disconnected(self, address: str) -> None:
        """Mark ``address`` as not connected. Batches in flight to it have to be sent again."""
        tokens = self._links.get(address)
        if tokens is None:
            return
        for token in list(tokens):
            self._bring_back(self._attempts[token])
        self._links[address] = None
        self.without_columns.discard(address)  # the next process there may read them

    def recall(self, queue: OutboundQueue) -> None:
        """Send all batches in flight again at once, because the interval has another owner."""
        for batch in queue.batches:
            for attempt in list(batch.open_attempts):
                self._bring_back(attempt)
            batch.resume_at = 0
        queue.resume_at = queue.failures = queue.extra_at = 0
        queue.cap = self._limits.max_in_flight

    def _bring_back(self, attempt: InjectedAttempt) -> None:
        """End an attempt, and send its unanswered records again at once."""
        self._end(attempt)
        attempt.batch.resume_at = 0
        self._require(attempt.batch, attempt.open())

    def _require(self, batch: InjectedBatch, indexes: set[int]) -> None:
        """Queue records of a batch to be sent again, except those that are ACKed."""
        if batch.waiting is not None:
            indexes = indexes & batch.waiting
        batch.unsent = None if batch.unsent is None or len(indexes) == len(batch.keys) else batch.unsent | indexes
        batch.queue.to_send[batch] = None
        self._busy[batch.queue] = None

    # Refusals and missing answers.

    def refused(self, attempt: InjectedAttempt, kind: AnswerKind, refused: Sequence[int], now: int) -> None:
        """A receiver did not accept some records of an attempt. The records are sent again after a back-off.

        A record that is also in another attempt of the same batch is left out: the receiver is processing that copy.

        Args:
            attempt: The attempt.
            kind: Why. If the receiver had no room, fewer batches are then kept in flight.
            refused: The refused records, as indexes within the attempt. Without any: the complete attempt.
            now: The time, in microseconds.
        """
        batch, queue = attempt.batch, attempt.batch.queue
        indexes = set(attempt.resolve(attempt.answered(kind, refused)))
        if attempt.over:
            self._end(attempt)
        for other in batch.open_attempts:
            if other is not attempt:
                indexes = indexes - other.open()
        if batch.waiting is not None:
            indexes = indexes & batch.waiting
        if not indexes:
            return
        if batch.tries == 1:
            queue.failures += 1
            queue.resume_at = now + self._delay(queue.failures)
            if kind is AnswerKind.FULL:
                queue.cap = max(1, queue.in_flight // 2)
        batch.resume_at = now + self._delay(batch.tries)
        self._require(batch, indexes)

    def _delay(self, failures: int) -> int:
        """Microseconds to wait after ``failures`` failed attempts."""
        return int(self._backoff.delay(failures, self._chance()))

    def resend_overdue(self, now: int) -> None:
        """Send copies of the batches whose answers are overdue."""
        unwritten, self.unwritten = self.unwritten, {}
        for since, wait in zip(self._awaiting, self._waits, strict=True):
            due = now - wait
            for batch in list(takewhile(lambda one: since[one] <= due, since)):  # noqa: B023 - used up at once
                del since[batch]
                newest = batch.open_attempts[-1]
                if newest.token >= unwritten.get(newest.address, self._next_token):
                    since[batch] = now
                else:
                    self._copy(batch)

    def _copy(self, batch: InjectedBatch) -> None:
        """Send the records in flight once more."""
        records = set().union(*(attempt.open() for attempt in batch.open_attempts))
        if len(batch.open_attempts) > MAX_COPIES:
            self._end(batch.open_attempts[-1])
        batch.copies = min(batch.copies + 1, MAX_COPIES)
        self._require(batch, records)

    # Queues that end.

    def remove(self, queue: OutboundQueue) -> None:
        """Remove a queue. Its records go to other queues or are discarded."""
        if queue.filling is not None:
            self._seal(queue)
        batches = list(queue.batches)
        for batch in batches:
            self._forget(batch)
        self._drop(queue)


def _first_position(queue: OutboundQueue) -> int:
    """The least un-ACKed position. The scope must have positions, and the queue must not be empty."""
    batch = next(queue.all_batches())
    position: int = batch.ids[batch.indexes()[0]]
    return position
