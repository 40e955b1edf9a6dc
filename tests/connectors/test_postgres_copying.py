"""Which changes count while rows are copied, against a model of a database whose commits become visible late (G1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from millwheel.connectors.postgres.copying import Snapshot, counted, keys_of, settled, with_rows
from millwheel.connectors.postgres.pgoutput import (
    UNCHANGED,
    Column,
    Commit,
    Message,
    Relation,
    Row,
    RowMessage,
    TransactionBegin,
)
from millwheel.connectors.postgres.transactions import ChangeReader, Copy, FoundChange, Position

SALES = Relation(7, "shop", "sales", "d", (Column(True, "id", 23), Column(False, "text", 25)))
KEYS = range(1, 9)
Change = tuple[str, int, int]
"""What is done: ``put``, ``delete`` or ``move``, with two keys, of which some need one."""


def key_of(row: Row) -> int:
    assert isinstance(row[0], bytes)
    return int(row[0])


@dataclass
class Transaction:
    lsn: int
    end: int
    xid: int
    changes: list[RowMessage]

    def messages(self) -> Iterator[Message]:
        yield TransactionBegin(self.lsn, self.lsn, self.xid % (1 << 32))
        yield SALES
        yield from self.changes
        yield Commit(self.lsn, self.end, self.lsn)


@dataclass
class World:
    """A database. A row that an invisible transaction has changed is locked, as in PostgreSQL."""

    before: dict[int, bytes]
    log: list[Transaction] = field(default_factory=list)
    locked: dict[int, set[int]] = field(default_factory=dict)
    """By the number of a transaction that has committed and is invisible: the keys that it has changed."""
    first: int = (1 << 33) - 3
    next: int = first
    end: int = 100

    def rows(self, *, visible: bool = False) -> dict[int, bytes]:
        found = dict(self.before)
        for one in self.log:
            if not (visible and one.xid in self.locked):
                for change in one.changes:
                    apply(found, change)
        return found

    def snapshot(self) -> str:
        """It names a running transaction only if a later one has ended."""
        end = 1 + max((one.xid for one in self.log if one.xid not in self.locked), default=self.first - 1)
        running = [one for one in self.locked if one < end]
        return f"{min(running, default=end)}:{end}:{','.join(map(str, running))}"

    def commit(self, wanted: list[Change], *, visible: bool) -> None:
        found, changes, touched = self.rows(), list[RowMessage](), set[int]()
        others = set[int]().union(*self.locked.values())
        for name, key, other in wanted:
            change = self.change(found, name, key, other)
            keys = {key, other} if name == "move" else {key}
            if change is not None and not keys & others:
                touched |= keys
                changes.append(change)
                apply(found, change)
        self.log.append(Transaction(self.end + 1, self.end + 3, self.next, changes))
        if not visible:
            self.locked[self.next] = touched
        self.next, self.end = self.next + 1, self.end + 3

    def change(self, found: dict[int, bytes], name: str, key: int, other: int) -> RowMessage | None:
        after = (b"%d" % other if name == "move" else b"%d" % key, b"%d in %d" % (self.next, self.end))
        if name == "put":
            return RowMessage("U" if key in found else "I", 7, None, False, after)
        if name == "delete" and key in found:
            return RowMessage("D", 7, (b"%d" % key, None), False, None)
        if name == "move" and key in found and other not in found:
            return RowMessage("U", 7, (b"%d" % key, None), False, after)
        return None


def apply(rows: dict[int, bytes], change: RowMessage) -> None:
    """Change rows. What cannot be done is a mistake: an insertion of what is there, for example."""
    if change.before is not None:
        del rows[key_of(change.before)]
    if change.after is not None:
        key, text = key_of(change.after), change.after[1]
        assert isinstance(text, bytes)
        assert (key in rows) == (change.kind == "U" and change.before is None), f"{change} with the rows {rows}"
        rows[key] = text


class Reader:
    """What a session does, with a process that may die before each commit."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.position = Position(world.end, copy=Copy(key=("id",)))
        self.open: dict[int, bytes] | None = None
        self.taken: list[RowMessage] = []

    def copy_rows(self, most: int) -> None:
        copy = self.position.copy
        if copy is None or (copy.snapshot and self.open is None):
            return
        if self.open is None:
            self.open = self.world.rows(visible=True)
            copy = structs.replace(copy, snapshot=self.world.snapshot(), until=self.world.end)
        after = 0 if copy.copied is None else int(copy.copied[0])
        keys = [key for key in sorted(self.open) if key > after][:most]
        self.taken += [RowMessage("I", 7, None, False, (b"%d" % key, self.open[key])) for key in keys]
        ended, last = len(keys) < most, (str(keys[-1]),) if keys else None
        self.position = structs.replace(self.position, copy=with_rows(copy, last, ended=ended))
        if ended:
            self.open = None

    def read_log(self, most: int) -> None:
        if self.open is not None:
            return
        copy, reader = self.position.copy, ChangeReader("shop", "sales", self.position)
        visible, found = Snapshot.parse(self.world.snapshot()), list[FoundChange]()
        for message in (message for one in self.world.log for message in one.messages()):
            invisible = isinstance(message, TransactionBegin) and not visible.sees(message.xid)
            if len(found) == most or (copy is not None and invisible):
                break
            found += reader.read(message)
        else:
            reader.reached(self.world.end)
        for one in found:
            what = one if copy is None else counted(copy, one, beyond(copy, one))
            if what is not None:
                assert isinstance(what.change, RowMessage)
                self.taken.append(what.change)
        self.position = settled(reader.position)


def beyond(copy: Copy, found: FoundChange) -> list[tuple[bool, bool]] | None:
    keys = keys_of(found, ["id"])
    bounds = [0 if one is None else int(one[0]) for one in (copy.settled, copy.copied)]
    return None if keys is None else [(int(key) > bounds[0], int(key) > bounds[1]) for (key,) in keys]


changes = st.tuples(st.sampled_from(["put", "put", "delete", "move"]), st.sampled_from(KEYS), st.sampled_from(KEYS))
steps = st.one_of(
    st.tuples(st.just("commit"), st.lists(changes, max_size=3), st.booleans()),
    st.tuples(st.sampled_from(["copy", "copy", "log", "log"]), st.integers(1, 4), st.booleans()),
    st.tuples(st.sampled_from(["show", "end of rows", "another process"])),
)


@pytest.mark.guarantee("G1")
@given(st.sets(st.sampled_from(KEYS)), st.lists(steps, max_size=40))
def test_each_row_and_change_counts_once(keys: set[int], story: list[tuple[object, ...]]) -> None:
    """What is taken can be applied one by one, without a row twice or a change of what is not there."""
    world = World(dict.fromkeys(keys, b"before"))
    reader = Reader(world)
    for step in story:
        match step:
            case ("commit", list(wanted), bool(visible)):
                world.commit(wanted, visible=visible)
            case ("copy" | "log" as name, int(most), bool(commits)):
                position, taken = reader.position, len(reader.taken)
                (reader.copy_rows if name == "copy" else reader.read_log)(most)
                if not commits:  # the process dies, with its transaction
                    reader.position, reader.open = position, None
                    del reader.taken[taken:]
            case ("show",):
                world.locked.pop(min(world.locked, default=0), None)
            case _:
                reader.open = None
    world.locked.clear()
    while reader.position.copy is not None or reader.position.lsn < world.end:
        reader.copy_rows(3)
        reader.read_log(100)
    rows: dict[int, bytes] = {}
    for change in reader.taken:
        apply(rows, change)
    assert rows == world.rows()


@pytest.mark.parametrize(
    ("text", "xid", "sees"),
    [
        ("10:20:10,14", 9, True),
        ("10:20:10,14", 10, False),
        ("10:20:10,14", 19, True),
        ("10:20:10,14", 20, False),
        ("8589934590:8589934594:8589934593", 0xFFFFFFFE, True),
        ("8589934590:8589934594:8589934593", 1, False),
        ("8589934590:8589934594:8589934593", 0, True),
        ("8589934590:8589934594:8589934593", 2, False),
    ],
)
def test_a_snapshot_knows_numbers_beyond_32_bits(text: str, xid: int, sees: bool) -> None:
    assert Snapshot.parse(text).sees(xid) is sees


def found(change: RowMessage) -> FoundChange:
    return FoundChange(TransactionBegin(1, 1, 1), 1, 1, change, SALES)


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize(
    ("key", "xid", "lsn", "ended", "counts"),
    [
        pytest.param(3, 9, 150, False, True, id="settled"),
        pytest.param(4, 9, 150, False, False, id="in the copied row"),
        pytest.param(5, 25, 150, False, True, id="after the snapshot"),
        pytest.param(5, 9, 200, False, True, id="behind all that it sees"),
        pytest.param(6, 25, 150, False, False, id="not yet copied"),
        pytest.param(6, 9, 150, True, False, id="gone before the snapshot"),
        pytest.param(6, 25, 150, True, True, id="behind the last row"),
    ],
)
def test_which_changes_of_a_copy_count(key: int, xid: int, lsn: int, ended: bool, counts: bool) -> None:
    copy = Copy(("id",), settled=("3",), copied=("5",), ended=ended, snapshot="20:20:", until=200)
    inserted = RowMessage("I", 7, None, False, (b"%d" % key, b""))
    change = FoundChange(TransactionBegin(lsn, 1, xid), 1, 1, inserted, SALES)
    assert (counted(copy, change, beyond(copy, change)) is not None) is counts


@pytest.mark.guarantee("G1")
def test_a_snapshot_is_kept_until_the_log_was_read() -> None:
    copy = Copy(("id",), settled=("3",), copied=("5",), snapshot="20:20:", until=200)
    assert settled(Position(199, copy=copy)).copy == copy
    assert settled(Position(200, copy=copy)).copy == Copy(("id",), settled=("5",), copied=("5",))
    assert settled(Position(200, copy=structs.replace(copy, ended=True))).copy is None


def test_a_row_that_moves_keeps_its_large_value() -> None:
    copy = Copy(key=("id",), settled=("5",), copied=("5",))
    moved = found(RowMessage("U", 7, (b"9", b"large"), True, (b"1", UNCHANGED)))
    what = counted(copy, moved, [(True, True), (False, False)])
    assert what is not None
    assert what.change == RowMessage("I", 7, None, False, (b"1", b"large"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(RowMessage("D", 7, (None, b"x"), False, None), id="a deletion"),
        pytest.param(RowMessage("U", 7, (None, b"x"), False, (b"1", b"y")), id="an update"),
        pytest.param(RowMessage("U", 7, None, False, (UNCHANGED, b"y")), id="a large key"),
    ],
)
def test_a_change_without_its_key_is_a_problem(change: RowMessage) -> None:
    assert keys_of(found(change), ["id"]) is None
    what = counted(Copy(key=("id",)), found(change), None)
    assert what is not None
    assert "REPLICA IDENTITY DEFAULT, or FULL" in what.problem


def test_a_large_key_is_that_of_the_row_before() -> None:
    change = RowMessage("U", 7, (b"1", None), False, (UNCHANGED, b"y"))
    assert keys_of(found(change), ["id"]) == [("1",), ("1",)]
