"""What the core of the tight world deals with: senders that keep what is not ACKed, and sinks that are often full."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.admission import ArrivalOrder
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.lookups import Admission
from millwheel.worker.messages import Acknowledge, Delivery, DeliveryOrder, OwnerEffect, SendDelivery
from tests.interval.tight_programs import Work
from tests.interval.world import BACKOFF, INJECTOR, Task

if TYPE_CHECKING:
    from tests.interval.tight_world import TightWorld

__all__ = ["Again", "Sink", "Taking", "Upstream"]

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
OUT_OF_ORDER = DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER


@dataclass(eq=False)
class _Batch:
    """Records that were sent together; ``left``: the indexes of those that are not ACKed."""

    positions: list[int]
    works: list[Work]
    values: list[bytes]
    timestamps: list[int]
    late: set[int]
    left: set[int]
    number: int = 0
    """Of its last sending."""
    again: bool = False
    """Whether it is to be sent again soon."""


@dataclass(eq=False)
class Again:
    """The back-off is over: send that batch again, or (None) what was refused with all that follows."""

    upstream: Upstream
    batch: _Batch | None


class Upstream:
    """A sender: a process of an injector, or an interval, which keeps an order and goes back to the oldest (G15)."""

    def __init__(self, world: TightWorld, number: int, ordered: bool) -> None:
        self.world = world
        self.ordered = ordered
        self.origin = f"u.1.j{number}" if ordered else f"{INJECTOR}/p{number}"
        self.declared: int = MIN_TIMESTAMP
        self.watermark: int = MIN_TIMESTAMP
        self.batches: list[_Batch] = []
        """Those that are not wholly ACKed, oldest first."""
        self.names: list[tuple[str, str]] = []
        """(key, name) of all records, in their order."""
        self._sendings: dict[int, tuple[_Batch, list[int], int]] = {}
        """By number: the batch, which records of it, and the number that came before."""
        self._position = 0
        self._last = 0
        self._refused: tuple[int, bool] | None = None
        """The first number that was refused, and whether it was for want of room and nothing else."""

    def add(self, works: list[tuple[Work, int]]) -> None:
        """Send new records, as (work, timestamp)."""
        codec = self.world.topology.plan().streams["events"].codec
        assert codec is not None
        stamps = [stamp for _, stamp in works]
        positions = list(range(self._position + 1, self._position + 1 + len(works)))
        self._position += len(works)
        late = {index for index, stamp in enumerate(stamps) if stamp < self.watermark}
        made = [work for work, _ in works]
        values = [codec.checked(work) for work in made]
        batch = _Batch(positions, made, values, stamps, late, set(range(len(works))))
        self.names += [(work.key, work.name) for work in made]
        for index, (work, stamp) in enumerate(works):
            self.world.expect(work, stamp, late=index in late)
        self.batches.append(batch)
        if self._refused is None:
            self._send(batch)

    def publish(self) -> int:
        """Its low watermark: no record that is not ACKed is below it, but those that were late when they came."""
        held = [one.timestamps[at] for one in self.batches for at in one.left if at not in one.late]
        self.watermark = max(self.watermark, min([self.declared, *held]))
        return self.watermark

    def _send(self, batch: _Batch) -> None:
        batch.again = False
        indexes = sorted(batch.left)
        number = batch.number = len(self._sendings) + 1
        self._sendings[number] = batch, indexes, self._last
        order = None
        if self.ordered:
            behind = self.batches[self.batches.index(batch) :]
            pending = min(one.timestamps[at] for one in behind for at in one.left)
            order = DeliveryOrder(number, self._last, pending, (), self.world.random.random() < 0.3)
            self._last = number
        mark = min(one.positions[at] for one in self.batches for at in one.left)
        keys = ALL_KEYS if self.ordered else None
        delivery = Delivery(
            "mapper",
            self.world.journal,
            "events",
            Sender(self.origin, 1, keys, INJECTOR, self.watermark),
            PositionIds(self.origin, mark, [batch.positions[at] for at in indexes]),
            [batch.works[at].key.encode() for at in indexes],
            [batch.values[at] for at in indexes],
            [batch.timestamps[at] for at in indexes],
            number,
            self,
            order,
        )
        self.world.tasks.append(Task(None, SendDelivery(delivery)))

    def send_again(self, batch: _Batch | None) -> None:
        """Send a batch again, if it is not ACKed; None: what was refused, and all that follows."""
        if batch is not None:
            if self._refused is not None:
                self._later(batch)  # nothing is sent before what was refused
                return
            batch.again = False
            if batch.left:
                self._send(batch)
        elif self._refused is not None:
            number, full = self._refused
            refused, _, after = self._sendings[number]
            if full and refused in self.batches:
                self._go_on(self.batches.index(refused), after)
            else:
                self.begin()

    def begin(self) -> None:
        """Send everything that is not ACKed, from the oldest on."""
        self._go_on(0, 0)

    def _go_on(self, place: int, after: int) -> None:
        self._refused, self._last = None, after
        for one in self.batches[place:]:
            self._send(one)

    def answered(self, one: Acknowledge) -> None:
        """A receiver answers a sending."""
        number = one.delivery.token
        batch, indexes, _ = self._sendings[number]
        if one.outcome != ACKED:
            assert one.outcome in (FULL, OUT_OF_ORDER), one
            self.refused(number, full=one.outcome == FULL, partly=bool(one.remaining))
            return
        remaining = set(one.remaining)
        batch.left -= {at for place, at in enumerate(indexes) if place not in remaining}
        if not batch.left and batch in self.batches:
            self.batches.remove(batch)
        self.world.publish()

    def refused(self, number: int, *, full: bool = False, partly: bool = False) -> None:
        """That sending was refused, in whole or in part, or lost: it is sent again later.

        A receiver that minds the order and refuses a part has taken the sending: that batch alone is sent again.
        """
        batch = self._sendings[number][0]
        if partly or not self.ordered:
            if batch.left and not batch.again:
                batch.again = True
                self._later(batch)
        elif number == batch.number:
            if self._refused is None:
                self._later(None)
            if self._refused is None or number < self._refused[0]:
                self._refused = number, full

    def _later(self, batch: _Batch | None) -> None:
        self.world.later.append((self.world.now + BACKOFF, Task(None, Again(self, batch))))


class Taking(Enum):
    """What a sink takes."""

    ALL = "everything"
    HOLDERS = "what holds the watermark, as a consumer that is full"
    NOTHING = "nothing"


class Sink:
    """A consumer of one stream: takes what it likes, and ACKs it when it likes."""

    def __init__(self, world: TightWorld) -> None:
        self.world = world
        self.taking = Taking.ALL
        self.order = ArrivalOrder(self._admit)
        self._open: list[tuple[Delivery, list[int], list[int]]] = []
        """What is taken and not ACKed: the delivery, which records of it, and which were refused as copies."""
        self._queued: set[Any] = set()
        self._done: set[Any] = set()

    def arrive(self, delivery: Delivery) -> None:
        out: list[OwnerEffect] = []
        self.order.arrived(delivery, out)
        self._answer(out)

    def _answer(self, out: list[OwnerEffect]) -> None:
        self.world.tasks += [Task(None, one) for one in out]

    def _admit(self, delivery: Delivery, out: list[OwnerEffect]) -> Admission:
        assert delivery.order is not None
        if not self._wants(delivery.order.pending):
            out.append(Acknowledge(delivery, FULL))
            return Admission.REFUSED
        names = _names(delivery)
        copies = [index for index, name in enumerate(names) if name in self._queued]
        fresh = [index for index, name in enumerate(names) if name not in self._queued and name not in self._done]
        self.world.take_out(delivery)
        if copies:
            out.append(Acknowledge(delivery, FULL, copies))
        if not fresh:
            out.append(Acknowledge(delivery, ACKED, copies))
            return Admission.TAKEN
        if delivery.order.asks or len(fresh) + len(copies) < len(names):
            out.append(Acknowledge(delivery, ACKED, sorted([*fresh, *copies])))
        self._queued.update(names[index] for index in fresh)
        self._open.append((delivery, fresh, copies))
        return Admission.TAKEN

    def _wants(self, timestamp: int) -> bool:
        if self.taking is Taking.HOLDERS:
            return timestamp <= self.world.broadcast.get("mapper", MIN_TIMESTAMP)
        return self.taking is Taking.ALL

    def acknowledge(self, *, at_once: bool) -> None:
        """ACK what it may: all of it, or some of one delivery."""
        ready = [one for one in self._open if self._wants(min(one[0].timestamps[index] for index in one[1]))]
        if not ready:
            return
        random = self.world.random
        for delivery, fresh, copies in ready if at_once else [random.choice(ready)]:
            self._open = [one for one in self._open if one[0] is not delivery]
            kept: list[int] = []
            if not at_once and len(fresh) > 1 and random.random() < 0.3:
                kept = fresh[1:]
                self._open.append((delivery, kept, copies))
            names = _names(delivery)
            done = {names[index] for index in fresh if index not in kept}
            self._done |= done
            self._queued -= done
            self._answer([Acknowledge(delivery, ACKED, sorted({*kept, *copies}))])


def _names(delivery: Delivery) -> list[Any]:
    ids = delivery.ids
    if isinstance(ids, PositionIds):
        return [(ids.sequence, position) for position in ids.positions]
    return list(ids.ids)
