"""Histories that are rare in a simulation and each break one mechanism; and the check's protocol with its caller."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.worker.dedup import (
    BatchIds,
    CheckOutcome,
    Dedup,
    DedupError,
    DeliveryIds,
    DeliveryVerdict,
    IdDelta,
    OpaqueIds,
    PositionIds,
    Sender,
    decode_delta,
    split_ids,
)
from simulation.held_ids import pending_ids, seen_ids

LEFT, RIGHT = ALL_KEYS.split(b"m")
STRONG = Sender("j1", 1, ALL_KEYS, "up.1")
SPARK = Sender("injector/in/spark", 1, None, "injector/in")
X, Y = b"x" * 16, b"y" * 16


def weak(sequencer: int = 1, watermark: int | None = None) -> Sender:
    return Sender("w1", sequencer, ALL_KEYS, "weak.1", watermark)


def judge(dedup: Dedup, ids: DeliveryIds, key: bytes = b"a", sender: Sender = STRONG) -> DeliveryVerdict:
    size = len(ids.positions) if isinstance(ids, PositionIds) else len(ids.ids)
    return dedup.check(ids, [key] * size, [10] * size, sender)


def commit(dedup: Dedup, ids: DeliveryIds, key: bytes = b"a", sender: Sender = STRONG) -> IdDelta:
    verdict = judge(dedup, ids, key, sender)
    assert verdict.all_fresh
    delta = dedup.take([(verdict, None)])
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(delta.to_wire()))
    dedup.committed(delta)
    return decode_delta(wire)


def restored(dedup: Dedup, interval: KeyInterval = ALL_KEYS) -> Dedup:
    return Dedup.restore(interval, "r1", dedup.snapshot().blobs, {})


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_merge_asks_again_where_a_parent_retired_the_sequence() -> None:
    left, right = Dedup(LEFT, "l"), Dedup(RIGHT, "r")
    for dedup, key, position in ((left, b"a", 1), (right, b"z", 2)):
        dedup.admit("j1")
        commit(dedup, PositionIds("j1", 0, [position]), key)
    right.retire("j1")
    child = Dedup.inherit(ALL_KEYS, "c", [left, right])
    assert judge(child, PositionIds("j1", 0, [2]), b"z").outcome is CheckOutcome.UNKNOWN_SEQUENCE


@pytest.mark.guarantee("G1", section="6.1.1")
def test_ids_seen_for_unadmitted_keys_outlive_a_mark_at_replay() -> None:
    left, right = Dedup(LEFT, "l"), Dedup(RIGHT, "r")
    left.admit("j1")
    child = Dedup.inherit(ALL_KEYS, "c", [left, right])
    # Restored from a base part that is older than the admission. Only the ids show that z was admitted.
    child.replay(IdDelta(positions=[("j1", [2])]))
    child.replay(IdDelta(marks=[("j1", 9, ())]))
    child.admit("j1")
    assert judge(child, PositionIds("j1", 0, [2]), b"z").duplicates == [0]


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_retired_sequence_is_asked_for_and_not_taken() -> None:
    dedup = Dedup(ALL_KEYS, "r1")
    assert judge(dedup, PositionIds("j1", 0, [1])).outcome is CheckOutcome.UNKNOWN_SEQUENCE
    dedup.admit("j1")
    commit(dedup, PositionIds("j1", 0, [1]))
    dedup.retire("j1")
    assert judge(dedup, PositionIds("j1", 0, [1])).outcome is CheckOutcome.UNKNOWN_SEQUENCE


@pytest.mark.guarantee("G1", section="6.1.1")
def test_collection_learns_the_broadcasts_sequencers_first() -> None:
    """A zombie that states no watermark is recognised by its sequencer alone."""
    dedup = Dedup(ALL_KEYS, "r1")
    commit(dedup, OpaqueIds([X]), sender=weak(1))
    dedup.learn("weak.1", [(ALL_KEYS, 2)])
    dedup.advance("weak.1", 1_000, 0)
    assert seen_ids(dedup) == 0
    for known in (dedup, restored(dedup), Dedup.inherit(ALL_KEYS, "c", [dedup])):
        assert judge(known, OpaqueIds([X]), sender=weak(1)).outcome is CheckOutcome.REFUSED_SEQUENCER


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_merged_receiver_keeps_the_higher_horizon() -> None:
    left, right = Dedup(LEFT, "l"), Dedup(RIGHT, "r")
    commit(left, OpaqueIds([X]), sender=weak(1, 5))
    commit(right, OpaqueIds([Y]), b"z", weak(1, 5))
    left.learn("weak.1", [(ALL_KEYS, 1)])
    left.advance("weak.1", 1_000, 0)
    for parents in ([left, right], [right, left]):
        child = Dedup.inherit(ALL_KEYS, "c", parents)
        assert judge(child, OpaqueIds([X]), sender=weak(1, 5)).outcome is CheckOutcome.SEND_AGAIN


@pytest.mark.guarantee("G1", section="6.1.1")
def test_merged_receivers_take_the_larger_completed_batch() -> None:
    left, right = Dedup(LEFT, "l"), Dedup(RIGHT, "r")
    for batch in (4, 5):
        commit(left, BatchIds("q", batch, [X]), sender=SPARK)
    commit(right, BatchIds("q", 3, [Y]), b"z", SPARK)
    for parents in ([left, right], [right, left]):
        child = Dedup.inherit(ALL_KEYS, "c", parents)
        assert list(judge(child, BatchIds("q", 4, [X]), sender=SPARK).duplicates) == [0]
        assert judge(child, BatchIds("q", 6, [X]), sender=SPARK).all_fresh


@pytest.mark.guarantee("G12", section="6.1.1")
def test_replayed_deltas_give_what_the_owner_knew() -> None:
    owner = Dedup(ALL_KEYS, "r1")
    successor = restored(owner)
    owner.admit("j1")
    for number in range(5):
        successor.replay(commit(owner, PositionIds("j1", 10 * number, [10 * number, 10 * number + 3])))
        successor.replay(commit(owner, OpaqueIds([bytes([number]) * 16]), sender=weak(1, number)))
        successor.replay(commit(owner, BatchIds("q", number, [X, Y]), sender=SPARK))
    owner.learn("weak.1", [(ALL_KEYS, 1)])
    owner.advance("weak.1", 11, 0)
    successor.replay(owner.take([]))
    assert seen_ids(successor) == seen_ids(owner)
    assert msgspec.msgpack.decode(successor.snapshot().blobs[0]) == msgspec.msgpack.decode(owner.snapshot().blobs[0])


@pytest.mark.paper(section="6.1.1")
def test_injector_sequences_need_no_admission_until_retirement() -> None:
    dedup = Dedup(ALL_KEYS, "r1")
    injector = Sender("injector/in/p", 1, None, "injector/in")
    delta = commit(dedup, PositionIds("in/p/0", 0, [7]), sender=injector)
    successor = restored(Dedup(ALL_KEYS, "r1"))
    successor.replay(delta)
    for known in (dedup, successor):
        known.retire_injector("injector/in/p")
        assert seen_ids(known) == 0
        assert judge(known, PositionIds("in/p/0", 0, [7]), sender=injector).outcome is CheckOutcome.REFUSED_SEQUENCER


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_source_that_others_continue_outlives_its_retirement() -> None:
    dedup = Dedup(ALL_KEYS, "r1")
    first, second = (Sender(f"injector/in/{name}", 1, None, "injector/in") for name in "pq")
    commit(dedup, PositionIds("in/shared/0", 0, [7]), sender=first)
    dedup.retire_injector("injector/in/p")
    assert judge(dedup, PositionIds("in/shared/0", 0, [7]), sender=second).duplicates == [0]
    assert judge(dedup, PositionIds("in/shared/0", 0, [8]), sender=first).outcome is CheckOutcome.REFUSED_SEQUENCER


@pytest.mark.guarantee("G13")
def test_a_retired_query_is_forgotten_when_its_records_are_in() -> None:
    dedup = Dedup(ALL_KEYS, "r1")
    commit(dedup, BatchIds("q", 3, [X]), sender=SPARK)
    verdict = judge(dedup, BatchIds("q", 3, [Y]), sender=SPARK)
    dedup.retire_query("q")
    assert judge(dedup, BatchIds("q", 3, [X]), sender=SPARK).duplicates == [0], "it is said again later"
    dedup.committed(dedup.take([(verdict, None)]))
    dedup.retire_query("q")
    assert (seen_ids(dedup), pending_ids(dedup)) == (0, 0)
    dedup.retire_query("q")
    assert seen_ids(restored(dedup)) == 0


@pytest.mark.guarantee("G13", section="6.1.1")
def test_an_injectors_own_positions_end_with_its_sequencer() -> None:
    """Regression: a process without ids of its own left a sequence in every receiver at each start.

    Its predecessors are refused by their sequencers. Positions of a partition belong to whichever process sends them.
    """
    dedup, successor = Dedup(ALL_KEYS, "r1"), restored(Dedup(ALL_KEYS, "r1"))
    for number in range(1, 20):
        sender = Sender("injector/in/p", number, None, "injector/in")
        successor.replay(commit(dedup, PositionIds(f"in/p/s{number}", 0, [1]), sender=sender))
        successor.replay(commit(dedup, PositionIds("in/p/p:0/s1", 0, [number]), sender=sender))
    old = Sender("injector/in/p", 18, None, "injector/in")
    for known in (dedup, successor, restored(dedup)):
        assert seen_ids(known) == 1 + 19
        assert judge(known, PositionIds("in/p/s18", 0, [1]), sender=old).outcome is CheckOutcome.REFUSED_SEQUENCER
        assert judge(known, PositionIds("in/p/p:0/s1", 0, [3]), sender=sender).duplicates == [0]


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_predecessors_uncommitted_positions_stay() -> None:
    dedup = Dedup(ALL_KEYS, "r1")
    verdict = judge(dedup, PositionIds("in/p/s1", 0, [1]), sender=Sender("injector/in/p", 1, None, "injector/in"))
    commit(dedup, PositionIds("in/p/s2", 0, [1]), sender=Sender("injector/in/p", 2, None, "injector/in"))
    dedup.committed(dedup.take([(verdict, None)]))
    assert seen_ids(dedup) == 2


def test_a_record_is_not_taken_twice() -> None:
    dedup = Dedup(ALL_KEYS, "r1")
    verdict = judge(dedup, OpaqueIds([X]), sender=weak())
    first, second = dedup.take([(verdict, None)]), dedup.take([(verdict, None)])
    dedup.committed(first)
    with pytest.raises(DedupError, match="taken twice"):
        dedup.committed(second)


def test_an_unsure_record_is_not_taken_before_it_is_resolved() -> None:
    dedup = Dedup(ALL_KEYS, "r1", segment_ids=1)
    commit(dedup, OpaqueIds([X]), sender=weak())
    [sealed] = dedup.seal()
    dedup.segment_stored(sealed.name)
    verdict = judge(dedup, OpaqueIds([X]), sender=weak())
    with pytest.raises(DedupError, match="not resolved"):
        dedup.take([(verdict, [0])])
    assert dedup.resolve(verdict, {sealed.name: sealed.ids}).duplicates == [0]


@pytest.mark.guarantee("G1", section="6.1.1")
def test_an_id_that_only_the_filters_take_for_known_is_fresh() -> None:
    """The filters know only the second half of an id. Here it is that of another record in a stored segment."""
    dedup = Dedup(ALL_KEYS, "r1", segment_ids=1)
    commit(dedup, OpaqueIds([X]), sender=weak())
    [sealed] = dedup.seal()
    dedup.segment_stored(sealed.name)
    other = b"y" * 8 + X[8:]
    verdict = judge(dedup, OpaqueIds([other, X]), sender=weak())
    resolution = dedup.resolve(verdict, {sealed.name: sealed.ids})
    assert (resolution.fresh, resolution.duplicates) == ([0], [1])


@pytest.mark.guarantee("G13", section="6.1.1")
def test_ids_of_a_long_replay_make_many_small_segments() -> None:
    dedup = Dedup(ALL_KEYS, "r1")
    deltas = [[number.to_bytes(16) for number in range(at, at + 1_000)] for at in range(0, 300_000, 1_000)]
    for ids in deltas:
        commit(dedup, OpaqueIds(ids), sender=weak())
    sealed = dedup.seal()
    assert len(sealed) == 4
    assert max(len(one.ids) for one in sealed) <= 17 * 66_000
    for one in sealed:
        dedup.segment_stored(one.name)
    blobs = {one.name: one.ids for one in sealed}
    for ids in (deltas[0], deltas[150], deltas[-1]):
        verdict = judge(dedup, OpaqueIds(ids), sender=weak())
        found = dedup.resolve(verdict, {name: blobs[name] for name in verdict.segments}).duplicates
        assert len(found) + len(verdict.duplicates) == len(ids)
    assert dedup.seal() == []


def test_ids_of_another_format_or_length_are_refused() -> None:
    with pytest.raises(DedupError, match="format 99"):
        decode_delta([99])
    with pytest.raises(ValueError, match="no whole number"):
        split_ids(b"x" * 17)


@pytest.mark.guarantee("G1", section="6.2")
@pytest.mark.parametrize("ids", [OpaqueIds([X]), PositionIds("in/p", 0, [1])])
def test_a_merge_drops_ids_of_a_life_that_one_parent_ended(ids: DeliveryIds) -> None:
    left, right = Dedup(LEFT, "l"), Dedup(RIGHT, "r")
    for dedup, key in ((left, b"a"), (right, b"z")):
        commit(dedup, ids, key, SPARK)
    right.begin_life("injector/in", 5)
    child = Dedup.inherit(ALL_KEYS, "c", [left, right])
    assert judge(child, ids, sender=SPARK).outcome is CheckOutcome.REFUSED_SEQUENCER
    assert commit(child, ids, b"a", Sender("injector/in/spark", 6, None, "injector/in"))


@pytest.mark.guarantee("G1", section="6.2")
def test_a_snapshot_before_a_floors_commit_does_not_have_it() -> None:
    """A delta of the former life may follow it. Replayed on the floor, its ids would be those of the new life."""
    dedup = Dedup(ALL_KEYS, "r1")
    late = dedup.take([(judge(dedup, OpaqueIds([X]), sender=SPARK), None)])
    dedup.begin_life("injector/in", 5)
    blobs = dedup.snapshot().blobs
    dedup.committed(late)
    restarted = Dedup.restore(ALL_KEYS, "r1", blobs, {})
    restarted.replay(decode_delta(late.to_wire()))
    restarted.begin_life("injector/in", 5, first=True)
    new = Sender("injector/in/spark", 6, None, "injector/in")
    for one in (dedup, restarted):
        commit(one, OpaqueIds([X]), sender=new)
        assert judge(restored(one), OpaqueIds([X]), sender=SPARK).outcome is CheckOutcome.REFUSED_SEQUENCER


@pytest.mark.guarantee("G1", section="6.2")
def test_a_former_floors_commit_does_not_commit_the_next() -> None:
    """Regression: a base then had the next floor, and lacked the ids of the former life that the journal had."""
    dedup = Dedup(ALL_KEYS, "r1")
    dedup.begin_life("injector/in", 5)
    former = Sender("injector/in/spark", 6, None, "injector/in")
    late = dedup.take([(judge(dedup, OpaqueIds([X]), sender=former), None)])
    dedup.begin_life("injector/in", 9)
    dedup.committed(late)
    assert dedup.tables.uncommitted_floors == {"injector/in"}
    dedup.committed(dedup.take([]))
    assert not dedup.tables.uncommitted_floors


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_retired_process_may_send_in_its_streams_next_life() -> None:
    dedup = Dedup(ALL_KEYS, "r1")
    commit(dedup, OpaqueIds([X]), sender=SPARK)
    dedup.retire_injector("injector/in/spark")
    dedup.begin_life("injector/in", 5)
    commit(dedup, OpaqueIds([X]), sender=Sender("injector/in/spark", 6, None, "injector/in"))
    assert judge(restored(dedup), OpaqueIds([X]), sender=SPARK).outcome is CheckOutcome.REFUSED_SEQUENCER


@pytest.mark.guarantee("G1", section="6.2")
@pytest.mark.parametrize(
    ("old", "new"),
    [(OpaqueIds([X]), OpaqueIds([Y])), (PositionIds("in/p", 0, [1]), PositionIds("in/p", 0, [0]))],
)
def test_a_replayed_floor_drops_ids_of_earlier_entries(old: DeliveryIds, new: DeliveryIds) -> None:
    dedup = Dedup(ALL_KEYS, "r1")
    entries = [commit(dedup, old, sender=SPARK)]
    dedup.begin_life("injector/in", 5)
    present = Sender("injector/in/spark", 6, None, "injector/in")
    entries.append(commit(dedup, new, sender=present))
    restarted = Dedup(ALL_KEYS, "r1")
    for entry in entries:
        restarted.replay(entry)
    restarted.begin_life("injector/in", 5, first=True)
    for one in (dedup, restarted):
        assert judge(one, new, sender=present).duplicates, "a copy in the present life"
        assert commit(one, old, sender=present)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_an_id_committed_again_is_kept_by_its_last_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor that replays both commits still has the first one, in a run that ends earlier."""
    monkeypatch.setattr("millwheel.worker.dedup.opaque.MAX_RUN_IDS", 2)
    owner = Dedup(ALL_KEYS, "r1")
    successor = restored(owner)
    deltas = [commit(owner, OpaqueIds([X]), sender=weak(1, 10))]
    other = owner.take([(judge(owner, OpaqueIds([Y]), sender=weak(1, 50)), None)])
    owner.advance("weak.1", 20, 0)  # forgets X
    owner.committed(other)
    deltas += [other, commit(owner, OpaqueIds([X]), sender=weak(1, 100))]
    for delta in deltas:
        successor.replay(decode_delta(msgspec.msgpack.decode(msgspec.msgpack.encode(delta.to_wire()))))
    for dedup in (owner, successor):
        dedup.advance("weak.1", 60, 0)  # forgets Y
        assert list(judge(dedup, OpaqueIds([X]), sender=weak(1, 100)).duplicates) == [0]


@pytest.mark.guarantee("G1", section="6.1.1")
def test_of_two_times_of_a_merged_id_the_larger_counts() -> None:
    left, right = Dedup(LEFT, "l"), Dedup(RIGHT, "r")
    commit(left, OpaqueIds([X]), sender=weak(1, 20))
    commit(right, OpaqueIds([X]), b"z", weak(1, 100))
    for parents in ([left, right], [right, left]):
        child = Dedup.inherit(ALL_KEYS, "c", parents)
        child.advance("weak.1", 60, 0)
        assert list(judge(child, OpaqueIds([X]), sender=weak(1, 100)).duplicates) == [0]
