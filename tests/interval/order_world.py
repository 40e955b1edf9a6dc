"""A sender, its receivers and the network between them, through everything that may break order (G15).

The outbox and the receivers' order of arrival are the real ones. A receiver keeps a queue by key, and refuses copies of
what is in it one by one. Owners that were deposed go on for as long as the world lets them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.admission import ArrivalOrder
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.interval.flows import INDEX_BITS
from millwheel.worker.interval.outbox import Outbox
from millwheel.worker.lookups import Admission
from millwheel.worker.messages import Acknowledge, Delivery, OwnerEffect

__all__ = ["OrderWorld"]

ACKED: Final = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
FULL: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
DEPOSED: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER


class Owner:
    """One owner of the sending interval: an outbox, and what is to be sent again later."""

    def __init__(self, world: OrderWorld, sequencer: int) -> None:
        self.world = world
        self.sequencer = sequencer
        self.outbox = Outbox(lambda consumer, key: world.locate(key))
        self.refused: dict[int, set[int] | None] = {}
        """Records that were refused, by token; None: all."""
        self.full: set[int] = set()
        self.gone = False

    def send(self) -> None:
        if self.gone:
            return
        for one, order in self.outbox.take_ready():
            sender = Sender("u.j1", self.sequencer, ALL_KEYS, "u")
            ids = PositionIds("u.j1", 0, one.positions)
            sent = Delivery(
                "c", one.journal, one.stream, sender, ids, one.keys, one.values, one.timestamps, one.token, self, order
            )  # fmt: skip
            self.world.network.append((self.world.receiver(one.journal), sent))

    def received(self, answer: Acknowledge) -> None:
        token, full = answer.delivery.token, answer.outcome == FULL
        if self.gone:
            return
        if answer.outcome == ACKED:
            self.outbox.acknowledged(token, answer.remaining)
            self.send()
        elif answer.outcome == DEPOSED:
            assert self.outbox.get(token) is None or self is not self.world.owner, "the present owner is refused"
            self.gone = self is not self.world.owner
        else:
            self.later(token, answer.remaining if full else (), full and not answer.remaining)

    def later(self, token: int, indexes: Any = (), full: bool = False) -> None:
        """The sending was refused, or lost."""
        if self.gone:
            return
        if not indexes:
            self.outbox.halt(token)
        if full and token not in self.refused:
            self.full.add(token)
        elif not full:
            self.full.discard(token)
        before = self.refused.get(token, set())
        self.refused[token] = None if not indexes or before is None else before | set(indexes)

    def resend(self) -> None:
        """The back-off is over."""
        if self.gone:
            return
        refused, self.refused = self.refused, {}
        full, self.full = self.full, set()
        for token in sorted(refused):
            indexes, batch = refused[token], self.outbox.get(token)
            if batch is None:
                continue
            if indexes is None:
                self.outbox.refuse(token, token in full)
            else:
                self.outbox.copies_refused(batch, indexes)
        self.outbox.go_on()
        self.send()


@dataclass
class _Taken:
    """A delivery of which records are in the queue."""

    delivery: Delivery
    open: set[int]
    excluded: list[int]


@dataclass(eq=False)
class Receiver:
    """One owner of a receiving journal."""

    world: OrderWorld
    journal: str
    sequencer: int
    gone: bool = False
    queue: list[tuple[bytes, int, int, _Taken]] = field(default_factory=list)
    put_off: list[Delivery] = field(default_factory=list)
    unanswered: dict[int, Delivery] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.order = ArrivalOrder(self.admit)

    def answer(self, out: list[Any]) -> None:
        for one in out:
            if one.outcome != ACKED and not one.remaining:
                self.unanswered.pop(id(one.delivery), None)
            one.delivery.channel.received(one)

    def arrive(self, one: Delivery) -> None:
        self.unanswered[id(one)] = one
        out: list[OwnerEffect] = []
        self.order.arrived(one, out)
        self.answer(out)

    def admit(self, one: Delivery, out: list[OwnerEffect]) -> Admission:
        if self.world.chance(0.1):
            self.put_off.append(one)
            return Admission.WAITS
        return self.judge(one, out)

    def settle(self) -> None:
        if self.put_off:
            one, out = self.put_off.pop(0), list[OwnerEffect]()
            self.order.settled(one, self.judge(one, out), out)
            self.answer(out)

    def judge(self, one: Delivery, out: list[OwnerEffect]) -> Admission:
        assert isinstance(one.ids, PositionIds)
        assert one.order is not None
        if one.sender.sequencer < self.sequencer:
            out.append(Acknowledge(one, DEPOSED))
            return Admission.REFUSED
        self.sequencer = one.sender.sequencer
        queued = {position for _, position, _, _ in self.queue}
        new = [index for index, position in enumerate(one.ids.positions) if position not in self.world.committed]
        copies = [index for index in new if one.ids.positions[index] in queued]
        fresh = [index for index in new if one.ids.positions[index] not in queued]
        if fresh and self.world.chance(0.1):
            out.append(Acknowledge(one, FULL))
            return Admission.REFUSED
        left = bool(fresh) or len(copies) == len(one.keys)
        if left and one.order.asks:
            out.append(Acknowledge(one, ACKED, range(len(one.keys))))
        if copies:
            out.append(Acknowledge(one, FULL, copies))
        if not left:
            out.append(Acknowledge(one, ACKED, copies))
        taken = _Taken(one, set(fresh), copies)
        self.queue += [(one.keys[index], one.ids.positions[index], index, taken) for index in fresh]
        return Admission.TAKEN

    def commit(self) -> None:
        """Commit the oldest record of one key; the others wait, as if their keys were blocked."""
        if not self.queue or not self.world.owns(self):
            return
        key = self.world.random.choice(sorted({one[0] for one in self.queue}))
        at = next(at for at, one in enumerate(self.queue) if one[0] == key)
        _, position, index, taken = self.queue.pop(at)
        self.world.commit(key, position, taken.delivery.sender.sequencer)
        taken.open.discard(index)
        if not taken.open:
            self.unanswered.pop(id(taken.delivery), None)
            self.answer([Acknowledge(taken.delivery, ACKED, taken.excluded)])
        elif self.world.chance(0.3):
            self.answer([Acknowledge(taken.delivery, ACKED, sorted({*taken.open, *taken.excluded}))])

    def stop(self) -> None:
        """Its connections break: what was not answered is lost."""
        self.gone = True
        for one in list(self.unanswered.values()):
            one.channel.later(one.token)
        self.unanswered.clear()
        self.queue.clear()
        self.put_off.clear()


class OrderWorld:
    """One sending interval whose owners change, and receivers that are split, merged and replaced."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.calm = False
        self.version = 0
        self.rows: dict[int, Any] = {}
        """The sender's journal."""
        self.known_acked: set[int] = set()
        self.committed: dict[int, bytes] = {}
        """What receivers have committed, in order."""
        self.newest_sender = 0
        self.commits = 0
        self.network: list[tuple[Receiver, Delivery]] = []
        self.receivers: dict[str, Receiver] = {}
        self.deposed: list[Receiver] = []
        self.owners: list[Owner] = []
        self.take_over()

    @property
    def owner(self) -> Owner:
        return self.owners[-1]

    def chance(self, share: float) -> bool:
        return not self.calm and self.random.random() < share

    def locate(self, key: bytes) -> str:
        """All keys are in one interval, or each in its own."""
        return f"j{self.version}" if self.version % 2 == 0 else f"j{self.version}{key.decode()}"

    def receiver(self, journal: str) -> Receiver:
        if journal not in self.receivers:
            self.receivers[journal] = Receiver(self, journal, self.newest_sender)
        return self.receivers[journal]

    def owns(self, one: Receiver) -> bool:
        return self.receivers.get(one.journal) is one and one.journal in {self.locate(b"a"), self.locate(b"b")}

    def commit(self, key: bytes, position: int, sequencer: int) -> None:
        assert position not in self.committed
        commit = position >> INDEX_BITS
        for other, of in reversed(self.committed.items()):
            if of == key:
                same = self.rows[other][2] == self.rows[position][2]
                assert other < position if same else other >> INDEX_BITS <= commit, "younger productions came first"
                break
        self.committed[position] = key
        self.newest_sender = max(self.newest_sender, sequencer)

    # What happens.

    def produce(self) -> None:
        self.commits += 1
        for index in range(self.random.randint(1, 3)):
            position = (self.commits << INDEX_BITS) + index
            stream = self.random.choice("st") if self.random.random() < 0.3 else "s"
            key = self.random.choice("ab").encode()
            self.rows[position] = (position, b"p", stream, b"v", 0, (("c", key),), b"")
        fresh = [row for position, row in self.rows.items() if position >> INDEX_BITS == self.commits]
        self.owner.outbox.add(fresh, committed=False)
        self.owner.outbox.release()
        self.owner.send()

    def take_over(self) -> None:
        """The sending interval has a new owner, which begins with what the journal has."""
        owner = Owner(self, len(self.owners) + 1)
        self.owners.append(owner)
        owner.outbox.add([row for position, row in self.rows.items() if position not in self.known_acked])
        owner.outbox.begin_all()
        owner.send()

    def _take_over(self) -> None:
        if self.random.random() < 0.5:
            waiting = {position for one in self.owner.outbox for position in one.positions}
            self.known_acked |= self.committed.keys() - waiting
        self.owner.gone = self.random.random() < 0.5
        self.take_over()

    def pass_on(self, at: int) -> None:
        receiver, one = self.network.pop(at)
        if receiver.gone or self.chance(0.05):
            one.channel.later(one.token)
        else:
            receiver.arrive(one)

    def replace(self, journal: str) -> None:
        """A receiving journal has a new owner; the former may go on."""
        former = self.receivers.pop(journal)
        self.deposed.append(former)
        if self.random.random() < 0.6:
            former.stop()

    def step(self) -> None:
        random, what = self.random, self.random.random()
        receivers = list(self.receivers.values())
        if what < 0.2:
            self.produce()
        elif what < 0.5 and self.network:
            self.pass_on(0 if random.random() < 0.8 else random.randrange(len(self.network)))
        elif what < 0.62:
            for owner in self.owners[-2:]:
                if random.random() < 0.6:
                    owner.resend()
        elif what < 0.7 and receivers:
            random.choice([*receivers, *self.deposed]).settle()
        elif what < 0.88 and receivers:
            random.choice(receivers).commit()
        elif what < 0.92 and receivers:
            self.replace(random.choice(receivers).journal)
        elif what < 0.95:
            self.version += 1
        elif what < 0.98:
            self._take_over()
        elif self.deposed:
            self.deposed.pop(random.randrange(len(self.deposed))).stop()

    def heal(self) -> None:
        """Nothing fails any more: everything arrives."""
        self.calm = True
        for owner in self.owners[:-1]:
            owner.gone = True
        for one in self.deposed:
            one.stop()
        for _ in range(400):
            if len(self.committed) == len(self.rows) and not len(self.owner.outbox):
                return
            for one in self.receivers.values():
                if not self.owns(one):
                    one.stop()
            while self.network:
                self.pass_on(0)
            for one in list(self.receivers.values()):
                for _ in range(20):
                    one.settle()
                    one.commit()
            self.owner.resend()
        raise AssertionError(f"{len(self.rows) - len(self.committed)} productions did not arrive")
