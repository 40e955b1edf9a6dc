"""Large, incomplete and foreign snapshots lose no id (6.1.1)."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.model.keys import ALL_KEYS
from millwheel.store.contract import CorruptValueError
from millwheel.worker.dedup import Dedup, OpaqueIds, Sender

SENDER = Sender("w1", 1, ALL_KEYS, "weak.1")
MANY = 80_000
"""Ids of 16 bytes that need more than one base part of 1 MiB."""


def ids_from(first: int, count: int) -> list[bytes]:
    return [b"%016d" % number for number in range(first, first + count)]


def commit(dedup: Dedup, ids: list[bytes]) -> None:
    verdict = dedup.check(OpaqueIds(ids), [b"a"] * len(ids), [10] * len(ids), SENDER)
    assert verdict.all_fresh
    dedup.committed(dedup.take([(verdict, None)]))


def known(dedup: Dedup, ids: list[bytes]) -> int:
    return len(dedup.check(OpaqueIds(ids), [b"a"] * len(ids), [10] * len(ids), SENDER).duplicates)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_snapshot_of_several_parts_has_every_id() -> None:
    dedup = Dedup(ALL_KEYS, "r1", segment_ids=2 * MANY)
    commit(dedup, ids_from(0, MANY))
    blobs = dedup.snapshot().blobs
    assert len(blobs) > 1
    assert known(Dedup.restore(ALL_KEYS, "r1", blobs, {}), ids_from(0, MANY)) == MANY


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_segment_that_is_on_its_way_to_the_store_is_inherited() -> None:
    """No look-up is possible until both parts of the segment are stored. So a child inherits the ids themselves."""
    dedup = Dedup(ALL_KEYS, "r1", segment_ids=4)
    commit(dedup, ids_from(0, 4))
    (sealed,) = dedup.seal()
    child = Dedup.inherit(ALL_KEYS, "r2", [dedup])
    assert known(child, ids_from(0, 4)) == 4
    dedup.segment_stored(sealed.name)
    assert dedup.snapshot().segments == (sealed.name,)
    assert child.snapshot().segments == ()


@pytest.mark.guarantee("G12", section="6.1.1")
def test_a_replayed_horizon_that_is_known_forgets_nothing() -> None:
    """An id that was committed after the horizon had passed it stays until the next rise, after a takeover, too."""
    first, second = [b"%016d" % number for number in range(2)]
    owner = Dedup(ALL_KEYS, "r1")
    verdict = owner.check(OpaqueIds([first]), [b"a"], [10], SENDER)
    delta = owner.take([(verdict, None)])
    owner.advance(SENDER.group, 500, 0)
    owner.committed(delta)
    base = owner.snapshot().blobs
    verdict = owner.check(OpaqueIds([second]), [b"a"], [900], SENDER)
    delta = owner.take([(verdict, None)])
    owner.committed(delta)
    successor = Dedup.restore(ALL_KEYS, "r1", base, {})
    successor.replay(delta)
    assert [known(one, [first, second]) for one in (owner, successor)] == [2, 2]


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_snapshot_whose_filter_is_missing_is_refused() -> None:
    """Without the filter all ids of the segment would be fresh again."""
    dedup = Dedup(ALL_KEYS, "r1", segment_ids=4)
    commit(dedup, ids_from(0, 4))
    (sealed,) = dedup.seal()
    dedup.segment_stored(sealed.name)
    snapshot = dedup.snapshot()
    assert snapshot.segments == (sealed.name,)
    with pytest.raises(CorruptValueError, match=f"the filter of id segment {sealed.name} is missing"):
        Dedup.restore(ALL_KEYS, "r1", snapshot.blobs, {})


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize(
    ("blob", "message"),
    [((-1, []), "ids of format -1"), ((None, [["crowd", 1]]), "row 'crowd' of a snapshot is unknown")],
)
def test_a_snapshot_that_this_version_cannot_read_is_refused(
    blob: tuple[int | None, list[object]], message: str
) -> None:
    """If the restore skipped the row, its ids would be fresh again."""
    (written,) = Dedup(ALL_KEYS, "r1").snapshot().blobs
    number = blob[0] if blob[0] is not None else msgspec.msgpack.decode(written)[0]
    with pytest.raises(CorruptValueError, match=message):
        Dedup.restore(ALL_KEYS, "r1", [msgspec.msgpack.encode((number, blob[1]))], {})
