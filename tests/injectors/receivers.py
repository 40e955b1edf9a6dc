"""Doubles of an injector's receivers: the real duplicate check, with commits, refusals, moves, splits and crashes."""

from __future__ import annotations

from millwheel.model.deliveries import Delivery
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1 import catalog_pb2, common_pb2, control_pb2, topology_pb2
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import CheckOutcome, PositionIds
from tests.worker.dedup.receivers import Copy, Receiver, Receivers, Record, ReferenceModel

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER
FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
SUPERSEDED = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER

Answer = tuple[Delivery, DeliveryOutcome.ValueType, list[int]]
Row = tuple[object, bytes, bytes, int]
"""A record as (id, key, value, timestamp)."""


class Consumer(Receivers):
    """All intervals of one consumer, their owners and their answers."""

    def __init__(self, name: str, owner: str) -> None:
        super().__init__(ReferenceModel(prefix=f"{name}.j"))
        self.name = name
        self.owners = {self.all[0].journal: owner}
        self.tenures: dict[str, int] = {}
        self.hold = False
        """While true, nothing is committed."""
        self._acked: dict[int, Answer] = {}
        """ACKs that are not sent yet, by the delivery's ``id()``."""

    def receive(self, delivery: Delivery, refuse: int) -> list[Answer]:
        """Take a batch. Refuse every record whose index is below ``refuse``."""
        ids = delivery.ids.positions if isinstance(delivery.ids, PositionIds) else delivery.ids.ids
        rows = zip(ids, delivery.values, delivery.keys, delivery.timestamps, strict=True)
        records = [Record((id_, value), key, timestamp) for id_, value, key, timestamp in rows]
        unacked = {record: index for index, record in enumerate(records)}

        def acked(record: Record) -> None:
            unacked.pop(record, None)
            self._acked[id(delivery)] = (delivery, ACKED, list(unacked.values()))

        receiver = self.receivers[delivery.journal]
        verdict = receiver.deliver(Copy(receiver.journal, delivery.ids, records, delivery.sender, acked))
        if verdict.outcome is CheckOutcome.REFUSED_SEQUENCER:
            return [(delivery, SUPERSEDED, [])]
        if verdict.outcome is CheckOutcome.SEND_AGAIN:
            return [(delivery, FULL, list(unacked.values()))]
        assert verdict.outcome is CheckOutcome.CHECKED
        given_up = [index for index in verdict.fresh_indexes if index < refuse]
        receiver.abandon([(verdict, index) for index in given_up])
        excluded = sorted({*verdict.waiting, *given_up})
        return [*([(delivery, FULL, excluded)] if excluded else []), *self._answers()]

    def commit_some(self, journal: str, most: int) -> list[Answer]:
        """Commit up to ``most`` records of an interval."""
        self.receivers[journal].take(most)
        self.receivers[journal].commit()
        return self._answers()

    def _answers(self) -> list[Answer]:
        answers, self._acked = list(self._acked.values()), {}
        return answers

    @property
    def receivers(self) -> dict[str, Receiver]:
        """The receivers, by journal."""
        return {one.journal: one for one in self.all}

    def move(self, journal: str, owner: str) -> None:
        """Give an interval to another owner, or again to the same one."""
        self.receivers[journal].crash()
        self.owners[journal] = owner
        self.tenures[journal] = self.tenures.get(journal, 0) + 1

    def halve(self, journal: str, at: bytes, owner: str) -> None:
        """Split the interval at the key ``at``, if it is inside. The upper child goes to ``owner``."""
        interval = self.receivers[journal].interval
        if at in interval and at != interval.start:
            self.split(at, applied=False)
            self.owners[self.owner(interval.start).journal] = self.owners.pop(journal)
            self.owners[self.owner(at).journal] = owner

    def route(self) -> control_pb2.ConsumerRoute:
        """The consumer's routing, as the master sends it. Its key is the field "k"."""
        intervals = [
            catalog_pb2.IntervalRecord(
                keys=common_pb2.KeyInterval(start=receiver.interval.start, end=receiver.interval.end),
                journal=journal,
                sequencer=1 + self.tenures.get(journal, 0),
                owner=common_pb2.Endpoint(address=self.owners[journal]) if self.owners[journal] else None,
            )
            for journal, receiver in self.receivers.items()
        ]
        return control_pb2.ConsumerRoute(
            incarnation=IncarnationId(self.name),
            topology="t",
            computation=self.name,
            key=topology_pb2.KeySpec(fields=["k"]),
            intervals=catalog_pb2.IntervalMapRecord(computation=self.name, intervals=intervals),
        )

    def committed(self) -> list[Row]:
        """Every record that took effect."""
        return [(one.identity[0], one.key, one.identity[1], one.timestamp) for one in self.model.committed]
