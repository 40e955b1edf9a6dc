"""Positions at the edges of marks, batches and merged intervals, against the set of those committed (6.1.1)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.worker.dedup import Dedup, DeliveryVerdict, PositionIds, Sender, decode_delta

LEFT, RIGHT = ALL_KEYS.split(b"m")
SENDER = Sender("j1", 1, ALL_KEYS, "up.1")
POSITIONS = 14


class Step(NamedTuple):
    """A delivery to a parent or to the child, its sender's mark, and whether its fresh records are committed.

    ``prefix``: the mark passes only committed records. ``unheard``: committed records whose ACK was lost.
    ``complete``: the delivery has each record between that is due and not ACKed. ``kept``: records that are not
    committed with the others.
    """

    right: bool
    positions: set[int]
    mark: int
    prefix: bool
    unheard: set[int]
    commits: bool
    complete: bool
    kept: set[int]


STEPS = st.lists(
    st.builds(Step, st.booleans(), st.sets(st.integers(0, POSITIONS - 1), max_size=6), st.integers(0, POSITIONS),
              st.booleans(), st.sets(st.integers(0, POSITIONS - 1), max_size=2), st.booleans(), st.booleans(),
              st.sets(st.integers(0, POSITIONS - 1), max_size=2)),
    max_size=8,
)  # fmt: skip


UNHEARD = [
    Step(False, {0, 1}, 0, False, set(), True, True, set()),
    Step(False, {3}, 3, False, {0}, False, False, set()),
    Step(False, {0}, 0, False, {0}, False, False, set()),
]
"""A mark passes a record whose ACK was lost. Then the record comes again."""


def key_of(position: int) -> bytes:
    return b"z" if position % 2 else b"a"


class ReferenceModel:
    """The committed positions, and those in processing at a receiver."""

    def __init__(self) -> None:
        self.committed: set[int] = set()
        self.pending: dict[Dedup, set[int]] = {}
        self.entries: dict[Dedup, list[bytes]] = {}

    def deliver(self, dedup: Dedup, step: Step, due: list[int]) -> None:
        """Invariant: a copy of a committed record is a duplicate, and no other record is.

        ``due``: the positions of the records that are due to this receiver.
        """
        pending = self.pending.setdefault(dedup, set())
        unacked = [one for one in range(step.mark) if one in step.unheard or one not in self.committed]
        mark = min([step.mark, *unacked]) if step.prefix else step.mark
        positions = [one for one in due if one in step.positions]
        if step.complete and positions:
            between = range(positions[0], positions[-1] + 1)
            positions = [one for one in due if one in between and (one in step.positions or one not in self.committed)]
        ids = PositionIds("j1", mark, positions, [] if step.prefix else unacked, step.complete)
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
        taken = [index for index in verdict.fresh_indexes if step.commits and positions[index] not in step.kept]
        delta = dedup.take([(verdict, taken)])
        self.entries.setdefault(dedup, []).append(msgspec.msgpack.encode(delta.to_wire()))
        dedup.committed(delta)
        self.committed.update(positions[index] for index in taken)
        pending.update(set(found["fresh"]) - self.committed)

    def taken_over(self, dedup: Dedup, *, snapshot: bool) -> Dedup:
        """What the next owner knows: from a base, or from the entries alone. It has nothing in processing."""
        blobs = dedup.snapshot().blobs if snapshot else ()
        after = Dedup.restore(dedup.tables.interval, dedup.tables.journal, blobs, {})
        for entry in [] if snapshot else self.entries.get(dedup, []):
            after.replay(decode_delta(msgspec.msgpack.decode(entry)))
        after.admit("j1")
        return after


def admitted(keys: KeyInterval, journal: str) -> Dedup:
    dedup = Dedup(keys, journal)
    dedup.admit("j1")
    return dedup


@pytest.mark.guarantee("G1", section="6.1.1")
@given(STEPS, STEPS, STEPS, st.booleans(), st.booleans())
@example([], UNHEARD, [], False, False)
@settings(max_examples=300, report_multiple_bugs=False)
def test_a_position_is_known_exactly_if_it_is_committed(
    before: list[Step], after: list[Step], later: list[Step], by_entries: bool, by_base: bool
) -> None:
    model = ReferenceModel()
    left, right = admitted(LEFT, "l"), admitted(RIGHT, "r")
    for step in before:
        model.deliver(right if step.right else left, step, [one for one in range(POSITIONS) if one % 2 == step.right])
    if by_entries:
        left, right = (model.taken_over(one, snapshot=False) for one in (left, right))
    child = Dedup.inherit(ALL_KEYS, "c", [left, right])
    for step in after:
        model.deliver(child, step, list(range(POSITIONS)))
    if by_base:
        child = model.taken_over(child, snapshot=True)
    halves = [Dedup.inherit(LEFT, "l2", [child]), Dedup.inherit(RIGHT, "r2", [child])]
    for step in later:
        model.deliver(halves[step.right], step, [one for one in range(POSITIONS) if one % 2 == step.right])


@pytest.mark.guarantee("G8", section="6.1.1")
def test_long_ranges_have_a_snapshot() -> None:
    """Ranges that touch are joined, however long they become. So a snapshot can be taken of all that was committed."""
    dedup, parts = admitted(ALL_KEYS, "l"), [(0, 1 << 62), ((1 << 62) + 1, (1 << 63) + 5)]
    for ends in parts:
        verdict = dedup.check(PositionIds("j1", 0, ends, (), True), [b"a", b"b"], [10, 10], SENDER)
        delta = dedup.take([(verdict, range(2))])
        dedup.committed(decode_delta(msgspec.msgpack.decode(msgspec.msgpack.encode(delta.to_wire()))))
    known = Dedup.restore(ALL_KEYS, "l", dedup.snapshot().blobs, {})
    known.admit("j1")
    positions = [0, 5, 1 << 62, 1 << 63]
    verdict = known.check(PositionIds("j1", 0, positions, ()), [b"a"] * 4, [10] * 4, SENDER)
    assert list(verdict.duplicates) == [0, 1, 2, 3]


@pytest.mark.guarantee("G13", section="6.1.1")
def test_pieces_that_are_merged_back_are_one() -> None:
    """A sequence that is silent states no mark, which would join them."""
    dedup = admitted(ALL_KEYS, "p")
    delta = dedup.take(
        [(dedup.check(PositionIds("j1", 2, [3, 5], (), True), [b"a", b"z"], [10, 10], SENDER), range(2))]
    )
    dedup.committed(delta)
    for at in (b"c", b"m", b"x"):
        parts = ALL_KEYS.split(at)
        dedup = Dedup.inherit(ALL_KEYS, "c", [Dedup.inherit(part, "h", [dedup]) for part in parts])
        assert len(dedup.tables.positions["j1"].pieces) == 1
    verdict = dedup.check(PositionIds("j1", 2, [1, 3, 4, 5, 6], ()), [b"a"] * 5, [10] * 5, SENDER)
    assert [list(verdict.duplicates), list(verdict.fresh_indexes)] == [[0, 1, 2, 3], [4]]
