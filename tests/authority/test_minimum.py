"""The minimum over the members of a group: its value, and the bound of the work for it (7.2)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.authority.minimum import SlotMinimum
from millwheel.model.time import MAX_TIMESTAMP

MANY = 10_000
"""Members of several rows of blocks."""


class Counted(int):
    """A watermark that counts how often it is compared by size."""

    times = 0

    def __lt__(self, other: int) -> bool:
        Counted.times += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Counted.times += 1
        return int(self) > int(other)


@pytest.mark.guarantee("G7", section="7.2")
@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5), st.booleans()), max_size=300))
def test_the_minimum_is_that_of_all_members(changes: list[tuple[int, int, bool]]) -> None:
    """A member joins, changes in either direction or leaves, and the minimum is read after some changes."""
    minimum, members = SlotMinimum(), dict[int, tuple[int, int]]()
    for member, watermark, is_read in changes:
        if member not in members:
            members[member] = minimum.add(watermark), watermark
        elif watermark:
            minimum.set(members[member][0], watermark)
            members[member] = members[member][0], watermark
        else:
            minimum.free(members.pop(member)[0])
        assert len({slot for slot, _ in members.values()}) == len(members)
        if is_read:
            assert minimum.least() == min((value for _, value in members.values()), default=MAX_TIMESTAMP)


@pytest.mark.guarantee("G7", section="7.2")
def test_the_minimum_of_many_members_is_exact() -> None:
    chance = random.Random(1)
    minimum = SlotMinimum()
    slots = [minimum.add(0) for _ in range(MANY)]
    values = [0] * MANY
    for step in range(1, 301):
        for _ in range(chance.choice((1, 200))):
            place = chance.randrange(MANY)
            values[place] = chance.choice((step, chance.randrange(1_000), MAX_TIMESTAMP))
            minimum.set(slots[place], values[place])
        if step % 20 == 0:
            values = [max(value, step) for value in values]
            for slot, value in zip(slots, values, strict=True):
                minimum.set(slot, value)
        assert minimum.least() == min(values)


@pytest.mark.guarantee("G13", section="7.2")
def test_one_change_costs_the_same_after_any_others() -> None:
    """One member holds the minimum while all others change many times. Then it moves, and nothing is left to drop."""
    minimum = SlotMinimum()
    slots = [minimum.add(Counted(value)) for value in range(MANY)]
    for times in range(1, 4):
        for place in range(1, MANY):
            minimum.set(slots[place], Counted(times * MANY + place))
        assert minimum.least() == 0
    Counted.times = 0
    minimum.set(slots[0], Counted(10 * MANY))
    assert minimum.least() == 3 * MANY + 1
    assert Counted.times <= 150, "a block, a row, and the minima of the rows"


@pytest.mark.guarantee("G13", section="7.2")
def test_a_message_of_reports_has_bounded_work() -> None:
    """It has bounded work also if each report is in another block, and raises the minimum of that block."""
    minimum = SlotMinimum()
    slots = [minimum.add(Counted(place % 64)) for place in range(MANY)]
    minimum.least()
    Counted.times = 0
    changed = slots[::64]
    for slot in changed:
        minimum.set(slot, Counted(1_000))
    assert minimum.least() == 1
    assert Counted.times <= len(changed) * 70


@pytest.mark.guarantee("G13")
def test_slots_of_members_that_left_are_used_again() -> None:
    minimum, chance = SlotMinimum(), random.Random(2)
    slots: list[int] = []
    for value in range(2_000):
        slots.append(minimum.add(value))
        while len(slots) > 50:
            minimum.free(slots.pop(chance.randrange(len(slots))))
    assert max(slots) <= 51
