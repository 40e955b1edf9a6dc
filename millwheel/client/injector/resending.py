"""What an injector sends again, and when (section 6.1.1). Pure.

The reasons are a broken connection, another owner of the interval, a receiver's refusal, and a missing answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millwheel.client.injector.ids import IdScope
from millwheel.client.injector.messages import Limits
from millwheel.client.injector.outbound import Flight, Lane, LaneSender
from millwheel.model.backoff import Backoff
from millwheel.model.outbound import AnswerKind

__all__ = ["OutboundBatches"]


class OutboundBatches(LaneSender):
    """All un-ACKed records of an injector. It also knows which addresses are connected."""

    def __init__(self, limits: Limits, chance: Callable[[], float]) -> None:
        """``chance`` returns numbers in [0, 1), used as jitter."""
        super().__init__(limits)
        self._backoff = Backoff(limits.retry_first, limits.retry_last)
        self._chance = chance

    def oldest_position(self, scope: IdScope, otherwise: int) -> int:
        """The least position of ``scope`` that some consumer has not ACKed. ``otherwise`` if there is none."""
        return min((lane.first_position() for lane in self._lanes.values() if lane.scope == scope), default=otherwise)

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

    def connected(self, address: str) -> dict[Lane, None]:
        """Mark ``address`` as connected. Returns the queues that have something to send to it."""
        if address not in self._links:
            return {}
        if self._links[address] is None:
            self._links[address] = {}
        return {lane: None for lane in self._busy if lane.route.address == address}

    def disconnected(self, address: str) -> None:
        """Mark ``address`` as not connected. Batches in flight to it have to be sent again."""
        tokens = self._links.get(address)
        if tokens is None:
            return
        for token in list(tokens):
            self._bring_back(self._flights[token])
        self._links[address] = None

    def recall(self, lane: Lane) -> None:
        """Send all batches in flight again at once, because the interval has another owner."""
        for batch in lane.batches:
            for flight in list(batch.flights):
                self._bring_back(flight)
            batch.resume_at = 0
        lane.resume_at = lane.failures = lane.extra_at = 0
        lane.cap = self._limits.max_flights

    def _bring_back(self, flight: Flight) -> None:
        """End an attempt, and send its unanswered records again at once."""
        self._end(flight)
        flight.batch.resume_at = 0
        self._require(flight.batch, flight.open())

    # Refusals and missing answers.

    def refused(self, flight: Flight, kind: AnswerKind, refused: Sequence[int], now: int) -> None:
        """A receiver did not accept some records of an attempt. The records are sent again after a back-off.

        A record that is also in another attempt of the same batch is left out: the receiver is processing that copy.

        Args:
            flight: The attempt.
            kind: Why. If the receiver had no room, fewer batches are then kept in flight.
            refused: The refused records, as indexes within the attempt. Without any: the complete attempt.
            now: The time, in microseconds.
        """
        batch, lane = flight.batch, flight.batch.lane
        indexes = set(flight.resolve(flight.answered(kind, refused)))
        if flight.over:
            self._end(flight)
        for other in batch.flights:
            if other is not flight:
                indexes = indexes - other.open()
        if batch.waiting is not None:
            indexes = indexes & batch.waiting
        if not indexes:
            return
        if batch.tries == 1:
            lane.failures += 1
            lane.resume_at = now + self._delay(lane.failures)
            if kind is AnswerKind.FULL:
                lane.cap = max(1, lane.flying // 2)
        batch.resume_at = now + self._delay(batch.tries)
        self._require(batch, indexes)

    def _delay(self, failures: int) -> int:
        """Microseconds to wait after ``failures`` failed attempts."""
        return int(self._backoff.delay(failures, self._chance()))

    def resend_overdue(self, now: int) -> None:
        """Send batches without an answer again. An answer to the first copy still counts."""
        due = now - self._limits.resend_after
        overdue = []
        for flight in self._flights.values():
            if flight.sent_at > due:
                break
            overdue.append(flight)
        for flight in overdue:
            # The attempt moves to the end, so that ``_flights`` stays ordered by ``sent_at``.
            self._flights[flight.token] = self._flights.pop(flight.token)
            flight.sent_at = now
            if len(flight.batch.flights) > 1:
                self._end(flight)
            self._require(flight.batch, flight.open())

    # Queues that end.

    def remove(self, lane: Lane) -> None:
        """Remove a queue. Its records go to other queues or are discarded."""
        if lane.filling is not None:
            self._seal(lane)
        batches = list(lane.batches)
        for batch in batches:
            self._forget(batch)
        self._drop(lane)
