"""Workers as an injector meets them: the real duplicate check, commits, refusals, moves, splits, deaths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millwheel.client.injector.routing import ConsumerRouting, Route
from millwheel.model.deliveries import Delivery
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import CheckOutcome, PositionIds
from tests.worker.dedup.world import Copy, Receivers, Record, World
from tests.worker.dedup.world import Receiver as AnyReceiver

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER
FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
SUPERSEDED = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER

Answer = tuple[Delivery, DeliveryOutcome.ValueType, list[int]]
Row = tuple[object, bytes, bytes, int]
"""id, key, value, timestamp."""


@dataclass(eq=False)
class _Received(Copy):
    delivery: Delivery
    open: set[int]
    """Indexes of what is not ACKed."""


class Receiver(AnyReceiver):
    """One interval, which answers by the outcomes of deliveries."""

    answers: Sequence[Answer] = ()

    def ack(self, copy: Copy, indexes: Sequence[int]) -> None:
        super().ack(copy, indexes)
        assert isinstance(copy, _Received)
        copy.open.difference_update(indexes)
        if indexes:
            self.answers = [*self.answers, (copy.delivery, ACKED, sorted(copy.open))]

    def receive(self, delivery: Delivery, refuse: int) -> list[Answer]:
        """Take a batch in, or refuse every record whose index is below ``refuse``."""
        ids = delivery.ids.positions if isinstance(delivery.ids, PositionIds) else delivery.ids.ids
        rows = zip(ids, delivery.values, delivery.keys, delivery.timestamps, strict=True)
        records = [Record((id_, value), key, timestamp) for id_, value, key, timestamp in rows]
        everything = range(len(records))
        copy = _Received(
            self.journal, delivery.ids, records, delivery.sender, lambda _: None, delivery, set(everything)
        )
        verdict = self.deliver(copy)
        if verdict.outcome is CheckOutcome.REFUSED_SEQUENCER:
            return [(delivery, SUPERSEDED, [])]
        if verdict.outcome is CheckOutcome.SEND_AGAIN:
            return [(delivery, FULL, list(everything))]
        assert verdict.outcome is CheckOutcome.JUDGED
        given_up = [index for index in verdict.fresh_indexes if index < refuse]
        self.abandon([(verdict, index) for index in given_up])
        excluded = sorted({*verdict.waiting, *given_up})
        return [*([(delivery, FULL, excluded)] if excluded else []), *self._answered()]

    def commit_some(self, most: int) -> list[Answer]:
        """Commit up to ``most`` records."""
        self.take(most)
        self.commit()
        return self._answered()

    def _answered(self) -> list[Answer]:
        answers, self.answers = list(self.answers), ()
        return answers


class Consumer(Receivers[Receiver]):
    """All intervals of one consumer, and who owns them."""

    def __init__(self, name: str, owner: str) -> None:
        super().__init__(World(prefix=f"{name}.j"), Receiver)
        self.name = name
        self.owners = {self.all[0].journal: owner}
        self.tenures: dict[str, int] = {}
        self.hold = False
        """Whether nothing is committed for the moment."""

    @property
    def receivers(self) -> dict[str, Receiver]:
        """By journal."""
        return {one.journal: one for one in self.all}

    def move(self, journal: str, owner: str) -> None:
        """Another owner, or the same one anew."""
        self.receivers[journal].crash()
        self.owners[journal] = owner
        self.tenures[journal] = self.tenures.get(journal, 0) + 1

    def halve(self, journal: str, at: bytes, owner: str) -> None:
        """Two intervals instead of one, if ``at`` splits it; the upper one goes to ``owner``."""
        interval = self.receivers[journal].interval
        if at in interval and at != interval.start:
            self.split(at, applied=False)
            self.owners[self.owner(interval.start).journal] = self.owners.pop(journal)
            self.owners[self.owner(at).journal] = owner

    def routing(self) -> ConsumerRouting:
        """What the master says of it."""
        routes = [
            Route(receiver.interval, journal, self.owners[journal], (self.tenures.get(journal, 0), 0))
            for journal, receiver in self.receivers.items()
        ]
        return ConsumerRouting(IncarnationId(self.name), routes, computation=self.name)

    def committed(self) -> list[Row]:
        """Every record that took effect."""
        return [(one.identity[0], one.key, one.identity[1], one.timestamp) for one in self.world.committed]
