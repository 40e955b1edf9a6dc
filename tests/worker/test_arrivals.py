"""The state that a receiver keeps of senders, and their deliveries that wait for look-ups (G13, G15)."""

from __future__ import annotations

from collections import deque
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.admission import ArrivalOrder
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.lookups import Admission, WaitingBytes
from millwheel.worker.messages import Delivery, DeliveryOrder

FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
OUT_OF_ORDER = DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER
SIZE = 64 + 1 + 10
"""The bytes that count for one delivery of these tests."""


def made(origin: str, number: int, after: int, sequencer: int = 1, records: int = 1) -> Delivery:
    sender = Sender(origin, sequencer, ALL_KEYS, "u.1")
    ids, order = PositionIds(origin, 0, [number + at for at in range(records)]), DeliveryOrder(number, after, 0)
    keys, values, stamps = [b"k"] * records, [b"0123456789"] * records, [1] * records
    return Delivery(IncarnationId("c.1"), "c.1.j1", "in", sender, ids, keys, values, stamps, number, None, order)


class Receiver:
    """An arrival order whose look-ups the test answers. ``plan`` has the results of the next deliveries."""

    def __init__(self, limit: int | None = None) -> None:
        self.plan: deque[Admission] = deque()
        self.looked_up: list[Delivery] = []
        self.taken: list[tuple[str, int]] = []
        self.room = WaitingBytes(limit)
        self.order = ArrivalOrder(self._admit, self.room)

    def _admit(self, delivery: Delivery, out: list[Any]) -> Admission:
        admission = self.plan.popleft() if self.plan else Admission.TAKEN
        if admission is Admission.WAITS:
            if not self.room.enter(delivery):
                return Admission.NO_ROOM
            self.looked_up.append(delivery)
        if admission is Admission.TAKEN:
            self.taken.append((delivery.sender.name, delivery.token))
        return admission

    def arrives(self, delivery: Delivery, *plan: Admission) -> list[Any]:
        self.plan = deque(plan)
        out: list[Any] = []
        self.order.arrived(delivery, out)
        return [one.outcome for one in out]

    def answers(self, admission: Admission, *plan: Admission, index: int = 0) -> list[Any]:
        """Answer a look-up."""
        self.plan = deque(plan)
        delivery = self.looked_up.pop(index)
        self.room.leave(delivery)
        if admission is Admission.TAKEN:
            self.taken.append((delivery.sender.name, delivery.token))
        out: list[Any] = []
        self.order.settled(delivery, admission, out)
        return [one.outcome for one in out]


@pytest.mark.guarantee("G15", section="6.1.1")
def test_records_behind_the_last_waiting_one_get_a_second_lookup() -> None:
    """Regression: one waiting record was accepted, and the next one looked up.

    Records behind the last waiting one were refused.
    """
    receiver = Receiver()
    receiver.arrives(made("a", 1, 0), Admission.WAITS)
    for number in (2, 3, 4):
        assert receiver.arrives(made("a", number, number - 1)) == []
    receiver.answers(Admission.TAKEN, Admission.TAKEN, Admission.WAITS)
    assert receiver.arrives(made("a", 5, 4)) == []
    receiver.answers(Admission.TAKEN)
    assert receiver.taken == [("a", number) for number in range(1, 6)]


@pytest.mark.guarantee("G13", section="4.1")
def test_the_sender_that_was_silent_longest_is_forgotten() -> None:
    receiver = Receiver()
    with patch("millwheel.worker.ordered_senders.MAX_SENDERS", 2):
        receiver.arrives(made("busy", 1, 0))
        receiver.arrives(made("silent", 1, 0))
        receiver.arrives(made("busy", 2, 1))
        receiver.arrives(made("new", 1, 0))
        assert receiver.arrives(made("busy", 3, 2)) == []
        assert receiver.arrives(made("silent", 2, 1)) == [OUT_OF_ORDER]


@pytest.mark.guarantee("G13", section="6.1.1")
def test_nothing_is_kept_of_a_sender_retired_while_it_waited() -> None:
    receiver = Receiver()
    receiver.arrives(made("gone", 1, 0), Admission.WAITS)
    receiver.arrives(made("gone", 2, 1))
    receiver.order.forget(["gone"])
    receiver.answers(Admission.TAKEN)
    assert len(receiver.order) == 0
    receiver.arrives(made("gone", 3, 0), Admission.REFUSED)
    assert len(receiver.order) == 0, "what arrives late of it leaves nothing behind"


@pytest.mark.guarantee("G13", section="4.1")
def test_bytes_waiting_for_lookups_are_bounded_over_all_senders() -> None:
    """Regression: each of thousands of senders could have 64 waiting deliveries of a megabyte."""
    receiver = Receiver(3 * SIZE)
    assert receiver.arrives(made("a", 1, 0), Admission.WAITS) == []
    assert receiver.arrives(made("a", 2, 1)) == []
    assert receiver.arrives(made("b", 1, 0), Admission.WAITS) == []
    assert receiver.arrives(made("a", 3, 2)) == [FULL]
    assert receiver.arrives(made("b", 2, 1)) == [FULL]
    receiver.answers(Admission.TAKEN)
    assert receiver.room.used == SIZE
    assert receiver.arrives(made("a", 4, 2)) == []
    assert receiver.taken == [("a", 1), ("a", 2), ("a", 4)]


@pytest.mark.guarantee("G8", section="6.1.1")
def test_small_deliveries_do_not_keep_a_large_one_out() -> None:
    """Regression: small deliveries of other senders overlapped, so there was never room for the large one."""
    receiver = Receiver(4 * SIZE)
    receiver.arrives(made("small", 1, 0), Admission.WAITS)
    assert receiver.arrives(made("large", 1, 0, records=4), Admission.WAITS) == []
    assert receiver.looked_up[-1].sender.name == "small", "it was refused"
    receiver.arrives(made("other", 1, 0), Admission.WAITS)
    receiver.answers(Admission.TAKEN)
    assert len(receiver.room) == 0, "room is kept for the large one"
    receiver.arrives(made("large", 2, 0, records=4), Admission.WAITS)
    assert [one.sender.name for one in receiver.looked_up] == ["large"]
    receiver.arrives(made("other", 2, 0), Admission.WAITS)
    receiver.answers(Admission.TAKEN)
    receiver.arrives(made("other", 3, 0), Admission.WAITS)
    assert [one.sender.name for one in receiver.looked_up] == ["other"]


@pytest.mark.guarantee("G8", section="6.1.1")
def test_what_leaves_the_room_that_is_kept_enters() -> None:
    receiver = Receiver(4 * SIZE)
    receiver.arrives(made("first", 1, 0, records=3), Admission.WAITS)
    receiver.arrives(made("refused", 1, 0, records=2), Admission.WAITS)
    receiver.answers(Admission.TAKEN)
    receiver.arrives(made("other", 1, 0, records=3), Admission.WAITS)
    assert len(receiver.room) == 0
    receiver.arrives(made("other", 2, 0, records=2), Admission.WAITS)
    receiver.arrives(made("refused", 2, 0, records=2), Admission.WAITS)
    assert [one.sender.name for one in receiver.looked_up] == ["other", "refused"]


@pytest.mark.guarantee("G8", section="6.1.1")
def test_no_room_is_reserved_for_an_ended_sender() -> None:
    receiver = Receiver(SIZE)
    receiver.arrives(made("first", 1, 0), Admission.WAITS)
    for origin in ("gone", "retired"):
        receiver.arrives(made(origin, 1, 0), Admission.WAITS)
    receiver.order.forget(["retired"])
    receiver.answers(Admission.TAKEN)
    for number, waiting in ((1, 0), (2, 1)):
        receiver.arrives(made("other", number, 0), Admission.WAITS)
        assert len(receiver.room) == waiting
    receiver.answers(Admission.TAKEN)
    receiver.arrives(made("another", 1, 0), Admission.WAITS)
    assert len(receiver.room) == 1, "no room is kept for either"


@pytest.mark.guarantee("G8", section="6.1.1")
@pytest.mark.parametrize("end", [Admission.TAKEN, Admission.REFUSED])
def test_no_room_is_reserved_for_a_sender_with_nothing_waiting(end: Admission) -> None:
    """A delivery finds no room behind a waiting one. When it comes again, no delivery waits."""
    receiver = Receiver(6 * SIZE)
    receiver.arrives(made("known", 1, 0, records=3), Admission.WAITS)
    assert receiver.arrives(made("known", 2, 1, records=4)) == [FULL]
    receiver.answers(Admission.TAKEN)
    receiver.arrives(made("known", 3, 1, records=4), end)
    receiver.arrives(made("large", 1, 0, records=3), Admission.WAITS)
    assert [one.sender.name for one in receiver.looked_up] == ["large"]


@pytest.mark.guarantee("G8", section="6.1.1")
def test_what_follows_a_refused_delivery_does_not_lose_its_place() -> None:
    """A sender sends ahead, so deliveries behind the refused one arrive out of order."""
    receiver = Receiver(4 * SIZE)
    receiver.arrives(made("small", 1, 0), Admission.WAITS)
    receiver.arrives(made("large", 1, 0, records=4), Admission.WAITS)
    assert receiver.arrives(made("large", 2, 1)) == [OUT_OF_ORDER]
    receiver.answers(Admission.TAKEN)
    receiver.arrives(made("small", 2, 0), Admission.WAITS)
    assert len(receiver.room) == 0, "room is kept for the large one"


@pytest.mark.guarantee("G8", section="6.1.1")
def test_an_ended_senders_room_expires_though_others_wait() -> None:
    """Regression: a small delivery fitted beside the reserved room, again and again.

    So the reservation of the ended sender never expired.
    """
    receiver = Receiver(6 * SIZE)
    receiver.arrives(made("first", 1, 0, records=3), Admission.WAITS)
    receiver.arrives(made("gone", 1, 0, records=4), Admission.WAITS)
    receiver.answers(Admission.TAKEN)
    for number in (1, 2):
        receiver.arrives(made("small", number, 0, records=2), Admission.WAITS)
        assert [one.sender.name for one in receiver.looked_up] == ["small"]
        receiver.arrives(made("large", number, 0, records=3), Admission.WAITS)
        if len(receiver.looked_up) == 1:
            receiver.answers(Admission.TAKEN)
    assert [one.sender.name for one in receiver.looked_up] == ["small", "large"]


@pytest.mark.guarantee("G8", section="6.1.1")
def test_room_is_kept_for_a_sender_that_comes_as_often_as_others() -> None:
    receiver = Receiver(4 * SIZE)
    receiver.arrives(made("small", 1, 0), Admission.WAITS)
    for number in range(1, 9):
        receiver.arrives(made("large", number, 0, records=4), Admission.WAITS)
        receiver.arrives(made("other", number, 0), Admission.WAITS)
    receiver.answers(Admission.TAKEN)
    receiver.arrives(made("large", 9, 0, records=4), Admission.WAITS)
    assert [one.sender.name for one in receiver.looked_up] == ["large"]


@pytest.mark.guarantee("G8", section="6.1.1")
def test_forgotten_senders_that_ended_keep_no_room() -> None:
    receiver = Receiver(SIZE)
    receiver.arrives(made("first", 1, 0), Admission.WAITS)
    with patch("millwheel.worker.lookups.MAX_REFUSED_SENDERS", 2):
        for origin in ("gone", "gone too"):
            receiver.arrives(made(origin, 1, 0), Admission.WAITS)
        receiver.answers(Admission.TAKEN)
        visits = 0
        while len(receiver.room) == 0:
            visits += 1
            assert visits < 9, "its place is not remembered, and theirs are for ever"
            receiver.arrives(made("other", visits, 0), Admission.WAITS)
    assert receiver.looked_up[-1].sender.name == "other"


@pytest.mark.guarantee("G8", section="6.1.1")
def test_a_delivery_over_the_bound_waits_for_its_lookup_alone() -> None:
    """Every look-up ends. If each time the delivery were refused, it would never be accepted."""
    receiver = Receiver(1)
    assert receiver.arrives(made("a", 1, 0), Admission.WAITS) == []
    assert receiver.arrives(made("a", 2, 1)) == [FULL]
    receiver.answers(Admission.TAKEN)
    assert receiver.arrives(made("a", 3, 1)) == []
    assert receiver.taken == [("a", 1), ("a", 3)]


class ArrivalModel(RuleBasedStateMachine):
    """Senders that send, begin again, get successors and are retired, at a receiver that looks things up at random.

    G13, G15: no history leaves a sender or a byte behind, or loses a sender's place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.receiver = Receiver(5 * SIZE)
        self.sent = {"a": (1, 0, 0), "b": (1, 0, 0)}
        """By origin: the sequencer, the last number sent, and the number that the next delivery follows."""
        self.senders = self.receiver.order.senders

    plans = st.lists(st.sampled_from([*Admission, Admission.WAITS]), max_size=6)

    @rule(origin=st.sampled_from("ab"), plan=plans, again=st.integers(0, 4).map(lambda n: n == 0))
    def send(self, origin: str, plan: list[Admission], again: bool) -> None:
        sequencer, number, last = self.sent[origin]
        delivery = made(origin, number + 1, 0 if again else last, sequencer)
        before = self.senders.get(origin)
        follows = before is not None and before.last == delivery.order.after and before.sequencer == sequencer  # type: ignore[union-attr]
        outcomes = self.receiver.arrives(delivery, *plan)
        assert not follows or again or OUT_OF_ORDER not in outcomes
        after = self.senders.get(origin)
        self.sent[origin] = sequencer, number + 1, 0 if after is None else after.last

    @rule(origin=st.sampled_from("ab"))
    def succeed(self, origin: str) -> None:
        self.sent[origin] = self.sent[origin][0] + 1, 0, 0

    @rule(origin=st.sampled_from("ab"))
    def retire(self, origin: str) -> None:
        self.receiver.order.forget([origin])

    @precondition(lambda self: self.receiver.looked_up)
    @rule(plan=plans, admission=st.sampled_from([Admission.TAKEN, Admission.REFUSED]), index=st.integers(0, 9))
    def answer(self, plan: list[Admission], admission: Admission, index: int) -> None:
        looked_up = self.receiver.looked_up
        delivery = looked_up[index % len(looked_up)]
        self.receiver.answers(admission, *plan, index=index % len(looked_up))
        sender = self.senders.get(delivery.sender.name)
        if sender is not None:
            expected = sender.waiting[-1].token if sender.waiting else sender.taken
            assert sender.last == expected

    @invariant()
    def what_waits_is_counted(self) -> None:
        room = self.receiver.room
        waiting = [one for sender in self.senders.values() for one in sender.waiting]
        assert len(room) == len(waiting)
        assert room.used == SIZE * len(waiting) <= 5 * SIZE
        heads = [sender.waiting[0] for sender in self.senders.values() if sender.waiting]
        assert sorted(map(id, heads)) == sorted(map(id, self.receiver.looked_up))

    def teardown(self) -> None:
        """G8: no history keeps a sender out that comes again, when all others are silent."""
        while self.receiver.looked_up:
            self.receiver.answers(Admission.TAKEN)
        for visit in (1, 2):
            self.receiver.arrives(made("c", visit, 0, records=5), Admission.WAITS)
        assert [one.sender.name for one in self.receiver.looked_up] == ["c"]

    @invariant()
    def nothing_is_kept_without_need(self) -> None:
        for sender in self.senders.values():
            assert sender.waiting or (sender.taken and not sender.retired)


TestArrivalModel = pytest.mark.guarantee("G15")(ArrivalModel.TestCase)
TestArrivalModel.settings = settings(max_examples=150, stateful_step_count=30)
