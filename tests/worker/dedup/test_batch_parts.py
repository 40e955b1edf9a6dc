"""Ids of a batch are written once: later bases name the same parts, until the batch is completed (6.1.1, 6.1.2)."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.model.keys import ALL_KEYS
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.dedup import DEDUP_PART, BatchIds, Dedup, DedupSnapshot, Sender
from millwheel.worker.journal import OwnedJournal
from millwheel.worker.journal_base import FIRST_BATCH_PART
from millwheel.worker.messages import DeleteParts
from millwheel.worker.takeover import restored_ids

SENDER = Sender("injector/in/spark", 1, None, "injector/in")
PER_PART = 4


class Store:
    """The store of one journal: the parts that are written, and those that the head names."""

    def __init__(self, journal: OwnedJournal) -> None:
        self.journal = journal
        self.parts: dict[PartId, bytes] = {}

    def base(self, snapshot: DedupSnapshot) -> list[int]:
        """Write a base, and name it in the next commit. Returns the numbers of the parts that are written for it."""
        journal = self.journal
        write = journal.write_base({}, snapshot, {}, ())
        self.parts |= write.parts
        journal.parts_written(write.number)
        journal.sealed += 1
        journal.append(journal.sealed, b"", 0, lambda: journal.sealed)
        for effect in journal.appended(journal.sealed):
            if isinstance(effect, DeleteParts):
                for part in effect.parts:
                    del self.parts[part]
        assert self.parts.keys() == {*journal.parts}
        return sorted(int(part.name.removeprefix(f"{DEDUP_PART}/")) for part in write.parts)

    def restored(self, *, of_parent: bool = False) -> Dedup:
        """What a takeover reads."""
        dedup, _ = restored_ids(ALL_KEYS, "j", self.parts, of_parent=of_parent)
        assert dedup is not None
        dedup.segment_ids = PER_PART
        return dedup


def ids(first: int, count: int) -> list[bytes]:
    return [b"%016d" % number for number in range(first, first + count)]


def fresh(dedup: Dedup, some: list[bytes], batch: int = 0) -> int:
    """Deliver and commit records of a batch. Returns how many of them are new."""
    verdict = dedup.check(BatchIds("q", batch, some), [b"a"] * len(some), [10] * len(some), SENDER)
    dedup.committed(dedup.take([(verdict, None)]))
    return len(verdict.fresh_indexes)


def opened() -> tuple[Dedup, Store]:
    """A receiver with ten ids of a batch, and its store with a base."""
    dedup, store = Dedup(ALL_KEYS, "j", segment_ids=PER_PART), Store(OwnedJournal("j", 7, False))
    assert fresh(dedup, ids(0, 10)) == 10
    assert store.base(dedup.snapshot()) == [0, FIRST_BATCH_PART, FIRST_BATCH_PART + 1]
    return dedup, store


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_base_names_the_ids_that_an_earlier_one_has_written() -> None:
    dedup, store = opened()
    assert fresh(dedup, ids(10, 3)) == 3
    assert store.base(dedup.snapshot()) == [0, FIRST_BATCH_PART + 2]
    assert store.base(dedup.snapshot()) == [0]
    assert fresh(store.restored(), ids(0, 14)) == 1


@pytest.mark.guarantee("G1", section="6.2")
def test_a_successor_names_the_parts_of_its_predecessor() -> None:
    _, store = opened()
    owner = store.restored()
    assert store.base(owner.snapshot()) == [0]
    assert fresh(owner, ids(10, 2)) == 2
    assert store.base(owner.snapshot()) == [0, FIRST_BATCH_PART + 2]
    assert fresh(store.restored(), ids(0, 12)) == 0


@pytest.mark.guarantee("G13", section="6.1.1")
def test_the_parts_of_a_completed_batch_are_deleted() -> None:
    """Also while a record of it is pending, as a copy may be."""
    dedup, store = opened()
    assert dedup.check(BatchIds("q", 0, ids(10, 1)), [b"a"], [10], SENDER).all_fresh
    assert fresh(dedup, ids(0, 1), batch=1) == 1
    assert store.base(dedup.snapshot()) == [0]
    assert len(store.parts) == 1
    assert fresh(store.restored(), ids(0, 10)) == 0


@pytest.mark.guarantee("G1", section="6.2")
def test_a_child_writes_inherited_ids_into_its_own_journal() -> None:
    dedup, _ = opened()
    child, store = (
        Dedup.inherit(ALL_KEYS, "k", [dedup, dedup], segment_ids=PER_PART),
        Store(OwnedJournal("k", 8, False)),
    )
    assert store.base(child.snapshot()) == [0, FIRST_BATCH_PART, FIRST_BATCH_PART + 1]
    assert fresh(store.restored(), ids(0, 11)) == 1


@pytest.mark.guarantee("G13", section="6.2")
def test_a_child_has_the_ids_in_the_order_of_its_parents() -> None:
    """No id is sorted at the takeover, which is one step of the event loop. What both parents know is written once."""
    parents = []
    for first in (0, 5):
        dedup, store = Dedup(ALL_KEYS, "j", segment_ids=PER_PART), Store(OwnedJournal("j", 7, False))
        assert fresh(dedup, ids(first, 10)[::-1]) == 10
        store.base(dedup.snapshot())
        parents.append(store.restored(of_parent=True))
    child, store = Dedup.inherit(ALL_KEYS, "k", parents, segment_ids=5), Store(OwnedJournal("k", 8, False))
    inherited = b"".join(part.ids for _, _, part in child.snapshot().batch_ids)
    assert inherited == b"".join(ids(0, 10)[::-1] + ids(10, 5)[::-1])
    assert store.base(child.snapshot()) == [0, *range(FIRST_BATCH_PART, FIRST_BATCH_PART + 3)]
    assert fresh(store.restored(), ids(0, 16)) == 1


FIRST = f"{DEDUP_PART}/{FIRST_BATCH_PART}"


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("of_parent", [False, True])
@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        (FIRST, msgspec.msgpack.encode((1, [["counter", 0]])), "it has other content than ids of a batch"),
        (FIRST, msgspec.msgpack.encode((1, [["batch", "q", 0]])), "its ids cannot be read"),
        (FIRST, msgspec.msgpack.encode((1, [["batch", "q", 0, b"x" * 17]])), "its ids cannot be read"),
        (FIRST, b"\xc1", "its ids cannot be read"),
        (f"{DEDUP_PART}/0", b"\xc1", "its ids cannot be read"),
        (f"{DEDUP_PART}/0", msgspec.msgpack.encode((1, [["batch", 5]])), "its ids cannot be read"),
        (f"{DEDUP_PART}/0", msgspec.msgpack.encode((9, [])), "ids of format 9"),
        (f"{DEDUP_PART}/0", None, "it is needed, and the journal's head does not name it"),
    ],
)
def test_a_damaged_part_is_refused_by_its_name(of_parent: bool, name: str, content: bytes | None, why: str) -> None:
    """If the takeover skipped it, its ids would be fresh again. The error quarantines this interval alone."""
    _, store = opened()
    (part,) = (part for part in store.parts if part.name == name)
    if content is None:
        del store.parts[part]
    else:
        store.parts[part] = content
    with pytest.raises(CorruptValueError, match=f"^journal j, base part {name}: {why}"):
        store.restored(of_parent=of_parent)
