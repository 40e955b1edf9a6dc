"""At a full receiver, senders whose records hold the low watermark come in one after the other (G8, G13)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.worker.turns import MAX_WAITING, HolderTurns

BOUND = 100


@dataclass
class Flow:
    """The records that one sender still has to send, in order. ``alive``: it still sends."""

    origin: str
    left: list[int]
    alive: bool = True

    @property
    def pending(self) -> int:
        return min(self.left, default=BOUND + 1)


@dataclass
class Full:
    """A receiver that is always full, and commits on the test's request."""

    done: set[int] = field(default_factory=set)
    inside: dict[int, str] = field(default_factory=dict)
    """Records that were received in their turns: their senders, by receipt."""
    before: dict[int, str] = field(default_factory=dict)
    """Other received records that hold the watermark: their senders, by receipt."""
    next: int = 0

    def __post_init__(self) -> None:
        self.turns: HolderTurns[int] = HolderTurns(lambda receipt, _: receipt in self.done)

    def try_one(self, flow: Flow) -> bool:
        if not flow.left or flow.pending > BOUND:
            self.turns.leave(flow.origin)
            return False
        if not self.turns.may_enter(flow.origin, flow.pending):
            return False
        assert not {origin for receipt, origin in self.inside.items() if receipt not in self.done} - {flow.origin}
        stamp = flow.left.pop(0)
        receipt = None
        if stamp <= BOUND:
            self.next += 1
            receipt = self.next
        self.turns.entered(flow.origin, stamp, receipt)
        if receipt is not None:
            (self.inside if self.turns.holding == receipt else self.before)[receipt] = flow.origin
        return True

    def commit(self) -> None:
        self.done.update(self.inside, self.before)


@pytest.mark.guarantee("G8", section="4.5")
@settings(max_examples=300)
@given(
    st.lists(st.lists(st.integers(95, 105), min_size=1, max_size=6), min_size=1, max_size=5),
    st.lists(
        st.tuples(st.sampled_from(["try", "try", "try", "commit", "dies", "more"]), st.integers(0, 9)), max_size=60
    ),
)
def test_every_record_that_holds_the_watermark_gets_in(flows: list[list[int]], steps: list[tuple[str, int]]) -> None:
    """Before it, senders died in their turns, and others found more late records."""
    senders = [Flow(str(number), left) for number, left in enumerate(flows)]
    full = Full()
    for what, number in steps:
        flow = senders[number % len(senders)]
        if what == "try" and flow.alive:
            full.try_one(flow)
        elif what == "commit":
            full.commit()
        elif what == "dies":
            flow.alive = False
        elif what == "more":
            flow.left.append(90 + number)
    rounds, most = 0, 3 * (sum(len(flow.left) for flow in senders) + len(senders) + 1)
    while any(flow.alive and flow.pending <= BOUND for flow in senders):
        rounds += 1
        assert rounds < most, "they stand still"
        for flow in senders:
            if flow.alive:
                full.try_one(flow)
        full.commit()


@pytest.mark.guarantee("G13", section="4.5")
def test_a_second_sender_waits_until_the_first_is_committed() -> None:
    full = Full()
    first, second = Flow("first", [500, 500, 100, 500]), Flow("second", [500, 100])
    assert full.try_one(first)
    assert not full.try_one(second)
    assert full.try_one(first)
    assert full.try_one(first), "this is the record that holds the watermark"
    for _ in range(3):
        assert not full.try_one(second), "it is not committed yet"
    full.commit()
    assert full.try_one(second)
    assert not full.try_one(first)


@pytest.mark.guarantee("G8", section="7.1")
def test_a_sender_that_died_in_its_turn_loses_it_to_an_eager_one() -> None:
    full = Full()
    dead, live = Flow("dead", [500, 100]), Flow("live", [100])
    assert full.try_one(dead)
    assert not full.try_one(live)
    assert full.try_one(live)


@pytest.mark.guarantee("G8", section="4.5")
def test_the_sender_that_waited_longest_is_next() -> None:
    full = Full()
    busy, other = Flow("busy", [100, 100, 100]), Flow("other", [100])
    assert full.try_one(busy)
    assert not full.try_one(other)
    full.commit()
    assert not full.try_one(busy), "what it has more lets the other in first"
    assert full.try_one(other)


@pytest.mark.guarantee("G8", section="6.1.1")
def test_with_copies_of_its_record_alone_a_sender_ends_its_turn() -> None:
    turns: HolderTurns[int] = HolderTurns(lambda receipt, _: False)
    assert turns.may_enter("first", 100)
    turns.entered("first", 100, None)
    assert turns.may_enter("second", 100)


@pytest.mark.guarantee("G8", section="4.5")
def test_a_turn_is_lost_though_all_that_are_noted_are_dead() -> None:
    turns: HolderTurns[int] = HolderTurns(lambda receipt, _: True)
    assert turns.may_enter("first", 100)
    turns.entered("first", 500, None)
    for number in range(MAX_WAITING):
        assert not turns.may_enter(f"dead {number}", 100)
    assert any(turns.may_enter(f"live {number % 3}", 100) for number in range(2 * MAX_WAITING))
