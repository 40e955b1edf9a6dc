"""Un-ACKed records on their way to one interval (section 6.1.1). Pure.

A *lane* is one interval of one consumer, for ids of one scope. Its records travel in *batches*; a batch
that is on its way is a *flight*, and may be several, for what is not ACKed is sent again with the same
ids and bytes. An ACK counts whichever copy it answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from millwheel.client.injector.ids import IdKind, IdScope
from millwheel.client.injector.messages import Limits
from millwheel.client.injector.routing import Route

__all__ = ["Batch", "Flight", "Lane", "backoff"]

_HOLES: Final = 64
"""Stuck records that a mark may pass, at most: they are listed in every message."""


def backoff(limits: Limits, failures: int, chance: float) -> int:
    """Microseconds before the next attempt, after ``failures`` failed ones; ``chance`` in [0, 1) spreads them."""
    step = min(limits.retry_last, limits.retry_first << min(max(failures - 1, 0), 30))
    return int(step * (0.5 + chance / 2))


class Batch:
    """Records of one lane, as columns.

    ``waiting`` are the indexes that are not ACKed, ``unsent`` those of them that have to be sent (again); None
    stands for all. ``held`` is the least timestamp of those waiting, ``first`` a lower bound on the number
    under which its records were accepted.
    """

    __slots__ = (
        "bytes",
        "first",
        "flights",
        "held",
        "ids",
        "keys",
        "lane",
        "resume_at",
        "timestamps",
        "tries",
        "unsent",
        "values",
        "waiting",
    )

    def __init__(self, lane: Lane, first: int) -> None:
        self.lane = lane
        self.first = first
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.timestamps: list[int] = []
        self.ids: list[Any] = []
        self.bytes = 0
        self.held = 0
        self.waiting: set[int] | None = None
        self.unsent: set[int] | None = None
        self.flights: list[Flight] = []
        self.tries = 0
        self.resume_at = 0

    def extend(
        self, keys: Sequence[bytes], values: Sequence[bytes], timestamps: Sequence[int], ids: Sequence[Any], size: int
    ) -> None:
        """Append records; ``size`` is what their values come to. Only before the batch is sealed."""
        oldest = min(timestamps)
        self.held = min(self.held, oldest) if self.keys else oldest
        self.keys += keys
        self.values += values
        self.timestamps += timestamps
        self.ids += ids
        self.bytes += size

    def count(self) -> int:
        """How many records are not ACKed."""
        return len(self.keys) if self.waiting is None else len(self.waiting)

    def indexes(self) -> Sequence[int]:
        """The records that are not ACKed, in order."""
        return range(len(self.keys)) if self.waiting is None else sorted(self.waiting)

    def require(self, indexes: set[int]) -> None:
        """Have these records sent again, unless they were ACKed meanwhile."""
        if self.waiting is not None:
            indexes = indexes & self.waiting
        self.unsent = None if self.unsent is None or len(indexes) == len(self.keys) else self.unsent | indexes

    def take_unsent(self) -> list[int] | None:
        """The records to be sent now, None if that is all of the batch; none are left to be sent."""
        unsent, self.unsent = self.unsent, set()
        if unsent is None:
            return None if self.waiting is None else sorted(self.waiting)
        return sorted(unsent if self.waiting is None else unsent & self.waiting)


class Flight:
    """One sending of a batch: the ``indexes`` (None: all) of its records; ``open`` are those without an answer."""

    __slots__ = ("address", "batch", "indexes", "open", "sent_at", "token")

    def __init__(self, token: int, batch: Batch, address: str, indexes: list[int] | None, sent_at: int) -> None:
        self.token = token
        self.batch = batch
        self.address = address
        self.indexes = indexes
        self.sent_at = sent_at
        self.open = set(range(len(batch.keys)) if indexes is None else indexes)

    def resolve(self, answered: Sequence[int]) -> set[int]:
        """The batch's indexes of those named by an answer; what was never sent is not among them."""
        sent = self.indexes
        if sent is None:
            return {index for index in answered if index < len(self.batch.keys)}
        return {sent[index] for index in answered if index < len(sent)}


class Lane:
    """The un-ACKed batches of one (consumer, interval, scope).

    Invariants: within ``batches`` and then ``filling``, positions rise; ``queue`` holds exactly the batches with
    something to send; ``flying`` counts the flights.
    """

    __slots__ = (
        "batches",
        "cap",
        "consumer",
        "extra_at",
        "failures",
        "filling",
        "flying",
        "opened_at",
        "queue",
        "resume_at",
        "route",
        "scope",
    )

    def __init__(self, consumer: str, scope: IdScope, route: Route, cap: int) -> None:
        self.consumer = consumer
        self.scope = scope
        self.route = route
        self.batches: dict[Batch, None] = {}
        self.filling: Batch | None = None
        self.queue: dict[Batch, None] = {}
        self.flying = 0
        self.opened_at = 0
        self.cap = cap
        """Flights at a time: halved by a refusal, raised by ACKs."""
        self.failures = 0
        self.resume_at = 0
        """Nothing new is sent before."""
        self.extra_at = 0
        """When one flight more than ``cap`` may start, so that unanswered ones never stop the lane; 0: unset."""

    @property
    def empty(self) -> bool:
        """Nothing is un-ACKed."""
        return not self.batches and self.filling is None

    def all_batches(self) -> Iterator[Batch]:
        """Sealed batches and the one being filled, by rising positions."""
        yield from self.batches
        if self.filling is not None:
            yield self.filling

    def first_position(self) -> int:
        """The least position that is not ACKed; only for a lane of positions that is not empty."""
        batch = next(self.all_batches())
        position: int = batch.ids[batch.indexes()[0]]
        return position

    def mark(self) -> tuple[int, list[int]]:
        """All positions due to this interval are ACKed below the mark, but for those listed.

        Batches of which most is ACKed are passed, and what is left of them listed, so that one record
        that is stuck does not make receivers remember everything after it.
        """
        if self.scope.kind is not IdKind.POSITION:
            return 0, []
        listed: list[int] = []
        for batch in self.all_batches():
            waiting = batch.waiting
            if waiting is None or len(listed) + len(waiting) > _HOLES:
                return batch.ids[batch.indexes()[0]], listed
            listed += [batch.ids[index] for index in sorted(waiting)]
        return (listed[-1] + 1 if listed else 0), listed
