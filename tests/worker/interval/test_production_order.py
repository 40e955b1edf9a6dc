"""A key's productions reach each key and log in the order of its commits, also after refusals and losses (G15)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.admission import ArrivalOrder
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.interval.outbox.flows import INDEX_BITS, ProductionBatch
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.lookups import Admission
from millwheel.worker.messages import AnswerDelivery, Delivery, DeliveryOrder, OwnerEffect

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
OUT_OF_ORDER = DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER


def row(position: int, key: str, stream: str = "s", stamp: int = 0) -> Any:
    return (position, b"p", stream, b"v", stamp, (("c", key.encode()),), b"")


def positions(sent: list[tuple[ProductionBatch, DeliveryOrder]]) -> list[list[int]]:
    return [one.positions for one, _ in sent]


def commits(outbox: Outbox) -> list[tuple[str, list[int]]]:
    """The sends of the outbox now, as journals and their commits."""
    return [(one.journal, [position >> INDEX_BITS for position in one.positions]) for one, _ in outbox.take_ready()]


def delivery(one: ProductionBatch, order: DeliveryOrder, sequencer: int = 1) -> Delivery:
    return Delivery(
        IncarnationId("c"), one.journal, one.stream, Sender("u.j1", sequencer, ALL_KEYS, "u"),
        PositionIds("u.j1", 0, one.positions),
        one.keys, one.values, one.timestamps, one.token, None, order,
    )  # fmt: skip


@dataclass
class Receiver:
    """An owner that accepts, refuses or delays the deliveries that its arrival order admits."""

    taken: list[int] = field(default_factory=list)
    next: list[Admission] = field(default_factory=list)
    put_off: list[Delivery] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order = ArrivalOrder(self.admit)

    def admit(self, one: Delivery, out: list[OwnerEffect]) -> Admission:
        admission = self.next.pop(0) if self.next else Admission.TAKEN
        if admission is Admission.WAITS:
            self.put_off.append(one)
            return admission
        self.decide(one, admission, out)
        return admission

    def decide(self, one: Delivery, admission: Admission, out: list[OwnerEffect]) -> None:
        if admission is Admission.REFUSED:
            out.append(AnswerDelivery(one, FULL))
            return
        assert isinstance(one.ids, PositionIds)
        self.taken += [position for position in one.ids.positions if position not in self.taken]
        out.append(AnswerDelivery(one, ACKED))

    def arrive(self, one: Delivery) -> list[Any]:
        out: list[OwnerEffect] = []
        self.order.arrived(one, out)
        return out

    def settle(self, admission: Admission) -> list[Any]:
        out: list[OwnerEffect] = []
        for one in [self.put_off.pop(0)] if self.put_off else []:
            self.decide(one, admission, out)
            self.order.settled(one, admission, out)
        return out


class Pair:
    """One outbox, the receivers of its journals, and the network between them."""

    def __init__(self) -> None:
        self.version = 0
        self.outbox = Outbox(lambda consumer, key: self.locate(key))
        self.receivers: dict[str, Receiver] = {}
        self.committed: dict[bytes, list[int]] = {}
        self.network: list[Delivery] = []
        self.commits = 0

    def locate(self, key: bytes) -> str:
        return f"j{self.version}" if self.version % 2 == 0 else f"j{self.version}{key.decode()}"

    def produce(self, keys: list[str]) -> None:
        self.commits += 1
        first = self.commits << INDEX_BITS
        self.outbox.add([row(first + index, key, "st"[index % 2]) for index, key in enumerate(keys)], committed=False)

    def send(self) -> None:
        self.network += [delivery(one, order) for one, order in self.outbox.take_ready()]

    def pass_on(self, which: int, lost: bool) -> None:
        if not self.network:
            return
        one = self.network.pop(which % len(self.network))
        if lost:
            self.again(one.token, full=False)
        else:
            self.received(one.journal, self.receiver(one.journal).arrive(one))

    def receiver(self, journal: str) -> Receiver:
        return self.receivers.setdefault(journal, Receiver())

    def received(self, journal: str, answers: list[Any]) -> None:
        gone = not journal.startswith(f"j{self.version}")  # none of its later work is committed
        for answer in answers:
            one = answer.delivery
            if gone:
                self.again(one.token, full=False)
            elif answer.outcome == ACKED:
                for key, position in zip(one.keys, one.ids.positions, strict=True):
                    known = self.committed.setdefault(key, [])
                    if position not in known:
                        known.append(position)
                self.outbox.acknowledged(one.token, ())
            else:
                self.again(one.token, full=answer.outcome == FULL)

    def again(self, token: int, *, full: bool) -> None:
        self.outbox.flows.halt(token)
        self.outbox.flows.refuse(token, full)

    def step(self, what: str, which: int) -> None:
        journals = sorted(self.receivers) or ["j0"]
        journal = journals[which % len(journals)]
        if what == "produce":
            self.produce(["ab"[which % 2], "b", "a"][: 1 + which % 3])
        elif what == "commit":
            self.outbox.release()
        elif what == "flow":
            self.produce(["a", "b"])
            self.outbox.release()
            self.send()
        elif what == "send":
            self.send()
        elif what in ("pass", "first", "lose"):
            self.pass_on(0 if what == "first" else which, what == "lose")
        elif what in ("refuse", "put off"):
            admission = Admission.REFUSED if what == "refuse" else Admission.WAITS
            self.receiver(journal).next = [Admission.TAKEN] * (which % 3) + [admission]
        elif what == "settle":
            self.received(journal, self.receiver(journal).settle([Admission.TAKEN, Admission.REFUSED][which % 2]))
        elif what == "go on":
            self.outbox.flows.go_on()
        elif what == "restart":
            self.receivers[journal] = Receiver()
            for batch in [one for one in self.outbox if one.sent and one.journal == journal]:
                self.again(batch.token, full=False)
        else:
            self.version += 1

    def heal(self) -> None:
        self.outbox.release()
        for receiver in self.receivers.values():
            receiver.next = []
        for batch in [one for one in self.outbox if not one.journal.startswith(f"j{self.version}")]:
            self.again(batch.token, full=False)
        for _ in range(200):
            self.outbox.flows.go_on()
            self.send()
            for journal in list(self.receivers):
                self.received(journal, self.receiver(journal).settle(Admission.TAKEN))
            while self.network:
                one = self.network[0]
                if one.journal.startswith(f"j{self.version}"):
                    self.pass_on(0, lost=False)
                else:
                    self.pass_on(0, lost=True)
            if not len(self.outbox):
                return
        raise AssertionError(f"batches are stuck: {[(one.journal, one.positions) for one in self.outbox]}")


STEPS = ["flow", "flow", "produce", "commit", "send", "pass", "first", "lose", "refuse", "put off", "settle"]
STEPS += ["go on", "restart", "move"]


@pytest.mark.guarantee("G15", section="4.1")
@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9)), max_size=30))
def test_each_keys_productions_stay_in_order_through_failures(steps: list[tuple[str, int]]) -> None:
    pair = Pair()
    for what, which in steps:
        pair.step(what, which)
    pair.heal()
    for found in pair.committed.values():
        assert [position >> INDEX_BITS for position in found] == sorted(position >> INDEX_BITS for position in found)
    assert sum(map(len, pair.committed.values())) == len({one for found in pair.committed.values() for one in found})
    assert (pair.outbox.unacked.records, pair.outbox.unacked.bytes) == (0, 0)


@pytest.mark.guarantee("G15", section="7.1")
def test_work_of_an_ended_journal_is_sent_before_younger_work() -> None:
    pair = Pair()
    pair.produce(["a", "b"])
    pair.outbox.release()
    pair.send()
    pair.version = 1
    pair.produce(["a", "b"])
    pair.outbox.release()
    sent = pair.outbox.take_ready()
    first, second = 1 << INDEX_BITS, 2 << INDEX_BITS
    assert {one.journal: one.positions for one, order in sent if order.after == 0} == {
        "j1a": [first],
        "j1b": [first + 1],
    }
    assert {one.journal: one.positions for one, order in sent if order.after} == {"j1a": [second], "j1b": [second + 1]}


@pytest.mark.guarantee("G15", section="7.1")
def test_after_a_takeover_older_sequences_are_sent_first() -> None:
    outbox = Outbox(lambda consumer, key: "j")
    outbox.add([row(1 << INDEX_BITS, "a")], "u.1.j10")
    outbox.add([row(9 << INDEX_BITS, "a")], "u.1.j9")
    commits = [(1, "s"), (1, "t"), (2, "s"), (3, "s"), (3, "t")]
    outbox.add([row((commit << INDEX_BITS) + at, "a", stream) for at, (commit, stream) in enumerate(commits)])
    outbox.flows.begin_all()
    sent = [one for one, _ in outbox.take_ready()]
    assert [one.sequence for one in sent][:2] == ["u.1.j9", "u.1.j10"]
    own = [position >> INDEX_BITS for one in sent[2:] for position in one.positions]
    assert own == [1, 1, 2, 3, 3]


@pytest.mark.guarantee("G15", section="4.1")
def test_a_refusal_has_what_follows_wait_and_go_on_from_there() -> None:
    pair = Pair()
    for _ in range(4):
        pair.produce(["a"])
        pair.outbox.release()
    pair.receiver("j0").next = [Admission.TAKEN, Admission.REFUSED]
    pair.send()
    for _ in range(4):
        pair.pass_on(0, lost=False)
    assert pair.outbox.take_ready() == [], "nothing is sent before it is time"
    assert len(pair.outbox) == 3
    pair.outbox.flows.go_on()
    ((one, order),) = pair.outbox.take_ready()
    assert (one.positions, order.asks, order.pending) == ([2 << INDEX_BITS], True, 0)
    assert order.after, "what the receiver has is not sent again"
    pair.received("j0", pair.receiver("j0").arrive(delivery(one, order)))
    assert len(pair.outbox.take_ready()) == 2, "twice as many, as the first was taken"


@pytest.mark.guarantee("G15", section="7.1")
def test_a_moved_receiver_that_refused_copies_gets_older_first() -> None:
    where = {"j": "parent"}
    outbox = Outbox(lambda consumer, key: where["j"])
    outbox.add([row(2 << INDEX_BITS, "a"), row(3 << INDEX_BITS, "a")])
    ((one, _),) = outbox.take_ready()
    where["j"] = "child"
    outbox.flows.copies_refused(one, [0])
    outbox.add([row(4 << INDEX_BITS, "a")])
    outbox.flows.go_on()
    assert commits(outbox) == [("child", [2, 3]), ("child", [4])]


@pytest.mark.guarantee("G15", section="7.1")
def test_copies_refused_keep_their_place_among_other_streams() -> None:
    """Regression: records of different batches were combined across a batch of another stream."""
    where = {b"a": "j1", b"b": "j2"}
    outbox = Outbox(lambda consumer, key: where[key])
    made = [(3, "a", "s"), (4, "a", "s"), (5, "b", "s"), (6, "a", "t"), (7, "a", "s"), (8, "b", "s")]
    outbox.add([row(commit << INDEX_BITS, key, stream) for commit, key, stream in made])
    sent = [one for one, _ in outbox.take_ready()]
    outbox.flows.copies_refused(sent[0], [0])
    outbox.take_ready()
    where.update({b"a": "j3", b"b": "j3"})
    for one in list(outbox):
        outbox.flows.halt(one.token)
        outbox.flows.refuse(one.token, full=False)
    outbox.flows.go_on()
    found = commits(outbox)
    while on_their_way := [one for one in outbox if one.sent]:
        outbox.acknowledged(on_their_way[0].token, ())
        found += commits(outbox)
    assert [commit for _, some in found for commit in some if commit not in (5, 8)] == [3, 4, 6, 7]


@pytest.mark.guarantee("G15", section="4.1")
def test_a_late_answer_about_copies_changes_nothing_unsent() -> None:
    outbox = Outbox(lambda consumer, key: "j")
    outbox.add([row(1 << INDEX_BITS, "b", "t"), row((1 << INDEX_BITS) + 1, "b", "s")])
    outbox.add([row(2 << INDEX_BITS, "a"), row(3 << INDEX_BITS, "a")])
    sent = [one for one, _ in outbox.take_ready()]
    outbox.flows.halt(sent[0].token)
    outbox.flows.refuse(sent[0].token, full=False)
    outbox.flows.go_on()
    found = commits(outbox)
    outbox.flows.copies_refused(sent[-1], [0])
    while on_their_way := [one for one in outbox if one.sent]:
        outbox.acknowledged(on_their_way[0].token, ())
        found += commits(outbox)
    assert found == [("j", [1]), ("j", [1]), ("j", [2, 3])]


@pytest.mark.guarantee("G8", section="4.5")
def test_a_delivery_reports_the_oldest_timestamp_behind_it() -> None:
    outbox = Outbox(lambda consumer, key: "j")
    outbox.add([row(1 << INDEX_BITS, "a", stamp=90)])
    ((first, order),) = outbox.take_ready()
    assert (order.pending, order.streams) == (90, ())
    outbox.flows.halt(first.token)
    outbox.add([row(2 << INDEX_BITS, "a", "back", stamp=5)])
    assert outbox.take_ready() == []
    outbox.flows.refuse(first.token, full=True)
    outbox.flows.go_on()
    ((again, order),) = outbox.take_ready()
    assert again is first
    assert (order.pending, order.streams) == (5, ("back",))


@pytest.mark.guarantee("G15", section="4.1")
def test_a_receiver_that_knows_nothing_takes_what_begins_alone() -> None:
    pair = Pair()
    pair.produce(["a"])
    pair.produce(["a"])
    pair.outbox.release()
    (one, begins), (two, follows) = pair.outbox.take_ready()
    receiver = Receiver()
    assert [answer.outcome for answer in receiver.arrive(delivery(two, follows))] == [OUT_OF_ORDER]
    assert [answer.outcome for answer in receiver.arrive(delivery(one, begins))] == [ACKED]
    assert [answer.outcome for answer in receiver.arrive(delivery(two, follows))] == [ACKED]
    assert len(receiver.order) == 1
    receiver.order.forget(["u.j1"])
    assert len(receiver.order) == 0


@pytest.mark.guarantee("G13", section="4.1")
def test_what_waits_behind_one_delivery_is_bounded() -> None:
    receiver = Receiver(next=[Admission.WAITS])
    for number in range(1, 100):
        one = ProductionBatch(number, IncarnationId("c"), "s", "j", "")
        one.positions = [number]
        answers = receiver.arrive(delivery(one, DeliveryOrder(number, number - 1, 0)))
        assert [answer.outcome for answer in answers] == (
            [] if number <= 65 else [FULL if number == 66 else OUT_OF_ORDER]
        )
    receiver.settle(Admission.TAKEN)
    assert receiver.taken == list(range(1, 66))


@pytest.mark.guarantee("G3", section="fig. 12")
def test_a_deposed_sender_is_refused() -> None:
    receiver = Receiver()
    one = ProductionBatch(1, IncarnationId("c"), "s", "j", "")
    receiver.arrive(delivery(one, DeliveryOrder(1, 0, 0), sequencer=2))
    (answer,) = receiver.arrive(delivery(one, DeliveryOrder(7, 0, 0), sequencer=1))
    assert answer.outcome == DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER


@pytest.mark.guarantee("G13", section="7.1")
def test_nothing_is_kept_of_consumers_that_came_and_went() -> None:
    """Regression: each former consumer left a table of flows while the interval was owned."""
    journals: dict[str, str] = {}
    outbox = Outbox(lambda consumer, key: journals.get(consumer, ""))
    for number in range(1, 50):
        consumer = IncarnationId(f"c.{number}")
        journals.clear()
        journals[consumer] = f"{consumer}.j1"
        (made,) = outbox.add([(number, b"p", "s", b"v", 0, ((consumer, b"k"),), b"")])
        outbox.take_ready()
        outbox.acknowledged(made.token, ())
    assert len(outbox.flows.by_consumer) <= 2, "what is kept is bounded"
