"""Positions at the edges of marks, batches and merged intervals, against the set of those committed (6.1.1)."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.worker.dedup import Dedup, DeliveryVerdict, PositionIds, Sender

LEFT, RIGHT = ALL_KEYS.split(b"m")
SENDER = Sender("j1", 1, ALL_KEYS, "up.1")
POSITIONS = 14


class Step(NamedTuple):
    """A delivery to a parent or to the child, its sender's mark, and whether its fresh records are committed.

    ``prefix``: the mark passes only committed records. ``unheard``: committed records whose ACK was lost.
    """

    right: bool
    positions: set[int]
    mark: int
    prefix: bool
    unheard: set[int]
    commits: bool


STEPS = st.lists(
    st.builds(Step, st.booleans(), st.sets(st.integers(0, POSITIONS - 1), max_size=6), st.integers(0, POSITIONS),
              st.booleans(), st.sets(st.integers(0, POSITIONS - 1), max_size=2), st.booleans()),
    max_size=8,
)  # fmt: skip


def key_of(position: int) -> bytes:
    return b"z" if position % 2 else b"a"


class ReferenceModel:
    """The committed positions, and those in processing at a receiver."""

    def __init__(self) -> None:
        self.committed: set[int] = set()
        self.pending: dict[int, set[int]] = {}

    def deliver(self, dedup: Dedup, step: Step, positions: list[int]) -> None:
        """Invariant: a copy of a committed record is a duplicate, and no other record is."""
        pending = self.pending.setdefault(id(dedup), set())
        unacked = [one for one in range(step.mark) if one in step.unheard or one not in self.committed]
        mark = min([step.mark, *unacked]) if step.prefix else step.mark
        ids = PositionIds("j1", mark, positions, [] if step.prefix else unacked)
        verdict: DeliveryVerdict = dedup.check(ids, [key_of(one) for one in positions], [10] * len(positions), SENDER)
        found = {
            "fresh": [positions[index] for index in verdict.fresh_indexes],
            "duplicates": [positions[index] for index in verdict.duplicates],
            "waiting": [positions[index] for index in verdict.waiting],
        }
        assert found == {
            "fresh": [one for one in positions if one not in self.committed and one not in pending],
            "duplicates": [one for one in positions if one in self.committed],
            "waiting": [one for one in positions if one in pending],
        }
        if step.commits:
            dedup.committed(dedup.take([(verdict, None)]))
            self.committed.update(found["fresh"])
        else:
            pending.update(found["fresh"])


def admitted(keys: KeyInterval, journal: str) -> Dedup:
    dedup = Dedup(keys, journal)
    dedup.admit("j1")
    return dedup


@pytest.mark.guarantee("G1", section="6.1.1")
@given(STEPS, STEPS)
@settings(max_examples=300, report_multiple_bugs=False)
def test_a_position_is_known_exactly_if_it_is_committed(before: list[Step], after: list[Step]) -> None:
    model = ReferenceModel()
    left, right = admitted(LEFT, "l"), admitted(RIGHT, "r")
    for step in before:
        model.deliver(right if step.right else left, step, [one for one in step.positions if one % 2 == step.right])
    child = Dedup.inherit(ALL_KEYS, "c", [left, right])
    for step in after:
        model.deliver(child, step, sorted(step.positions))
