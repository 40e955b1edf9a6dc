"""Workers as an injector meets them: the real duplicate check, commits, refusals, moves, splits, deaths."""

from __future__ import annotations

from dataclasses import dataclass, field

from millwheel.client.injector.routing import ConsumerRouting, Route
from millwheel.model.deliveries import Delivery
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import CheckOutcome, Dedup, DeliveryVerdict, PositionIds

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER
FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
SUPERSEDED = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER

Answer = tuple[Delivery, DeliveryOutcome.ValueType, list[int]]
Row = tuple[object, bytes, bytes, int]
"""id, key, value, timestamp."""


@dataclass
class _Receipt:
    delivery: Delivery
    verdict: DeliveryVerdict
    open: set[int]
    excluded: set[int]


class Receiver:
    """One interval: what is committed, and what is taken and not committed."""

    def __init__(self, keys: KeyInterval, journal: str, dedup: Dedup | None = None) -> None:
        self.keys = keys
        self.journal = journal
        self.dedup = dedup or Dedup(keys, journal)
        self.committed: list[Row] = []
        self.receipts: list[_Receipt] = []

    def deliver(self, delivery: Delivery, refuse: int) -> list[Answer]:
        """Take a batch in, or refuse every record whose index is below ``refuse``."""
        assert all(key in self.keys for key in delivery.keys), "a record went to an interval that lacks its key"
        verdict = self.dedup.check(delivery.ids, delivery.keys, delivery.timestamps, delivery.sender)
        if verdict.outcome is CheckOutcome.REFUSED_SEQUENCER:
            return [(delivery, SUPERSEDED, [])]
        if verdict.outcome is CheckOutcome.SEND_AGAIN:
            return [(delivery, FULL, list(range(len(delivery.keys))))]
        assert verdict.outcome is CheckOutcome.JUDGED
        fresh = [index for index in verdict.fresh_indexes if index >= refuse]
        given_up = [index for index in verdict.fresh_indexes if index < refuse]
        if given_up:
            self.dedup.abandon(verdict, given_up)
        excluded = {*verdict.waiting, *given_up}
        out: list[Answer] = [(delivery, FULL, sorted(excluded))] if excluded else []
        if fresh:
            self.receipts.append(_Receipt(delivery, verdict, set(fresh), excluded))
        else:
            out.append((delivery, ACKED, sorted(excluded)))
        return out

    def commit(self, most: int) -> list[Answer]:
        """Commit up to ``most`` records."""
        out: list[Answer] = []
        taken: list[tuple[DeliveryVerdict, list[int]]] = []
        for receipt in list(self.receipts):
            now = sorted(receipt.open)[: most - sum(len(indexes) for _, indexes in taken)]
            if not now:
                break
            taken.append((receipt.verdict, now))
            receipt.open.difference_update(now)
            if not receipt.open:
                self.receipts.remove(receipt)
            one = receipt.delivery
            ids = one.ids.positions if isinstance(one.ids, PositionIds) else one.ids.ids
            self.committed += [(ids[at], one.keys[at], one.values[at], one.timestamps[at]) for at in now]
            out.append((one, ACKED, sorted(receipt.open | receipt.excluded)))
        self.dedup.committed(self.dedup.take(taken))
        return out

    def crash(self) -> None:
        """Another process takes over: what was not committed is not known any more."""
        for receipt in self.receipts:
            self.dedup.abandon(receipt.verdict, sorted(receipt.open))
        self.receipts.clear()

    def split(self, at: bytes, journals: tuple[str, str]) -> tuple[Receiver, Receiver]:
        """The children; what is committed stays where it was committed."""
        self.crash()
        halves = self.keys.split(at)
        low, high = (
            Receiver(keys, journal, Dedup.inherit(keys, journal, [self.dedup]))
            for keys, journal in zip(halves, journals, strict=True)
        )
        return low, high


@dataclass
class Consumer:
    """All intervals of one consumer, and who owns them. ``retired`` are parents of splits."""

    name: str
    since: int
    receivers: dict[str, Receiver] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    tenures: dict[str, int] = field(default_factory=dict)
    retired: list[Receiver] = field(default_factory=list)
    journals: int = 1
    hold: bool = False
    """Whether nothing is committed for the moment."""

    @classmethod
    def new(cls, name: str, owner: str, since: int = 0) -> Consumer:
        """A consumer with one interval; it gets the records from number ``since`` on."""
        made = cls(name, since)
        made.receivers[f"{name}.j1"] = Receiver(ALL_KEYS, f"{name}.j1")
        made.owners[f"{name}.j1"] = owner
        return made

    def move(self, journal: str, owner: str) -> None:
        """Another owner, or the same one anew."""
        self.receivers[journal].crash()
        self.owners[journal] = owner
        self.tenures[journal] = self.tenures.get(journal, 0) + 1

    def split(self, journal: str, at: bytes, owner: str) -> None:
        """Two intervals instead of one, if ``at`` splits it; the upper one goes to ``owner``."""
        receiver = self.receivers[journal]
        if at not in receiver.keys or at == receiver.keys.start:
            return
        names = f"{self.name}.j{self.journals + 1}", f"{self.name}.j{self.journals + 2}"
        self.journals += 2
        lower, upper = receiver.split(at, names)
        self.retired.append(self.receivers.pop(journal))
        owners = self.owners.pop(journal), owner
        for child, whose in zip((lower, upper), owners, strict=True):
            self.receivers[child.journal] = child
            self.owners[child.journal] = whose

    def routing(self) -> ConsumerRouting:
        """What the master says of it."""
        routes = [
            Route(receiver.keys, journal, self.owners[journal], (self.tenures.get(journal, 0), 0))
            for journal, receiver in self.receivers.items()
        ]
        return ConsumerRouting(IncarnationId(self.name), routes, computation=self.name)

    def committed(self) -> list[Row]:
        """Every record that took effect."""
        return [row for receiver in [*self.retired, *self.receivers.values()] for row in receiver.committed]
