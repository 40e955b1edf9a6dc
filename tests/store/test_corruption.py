"""An error names a damaged value. No damaged value is read as intact."""

from __future__ import annotations

from pathlib import Path

import pytest

from millwheel.coordination.contract import DamagedValueError, Put
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.model.incarnation import IncarnationId
from millwheel.store import layout
from millwheel.store.contract import Append, CorruptValueError, PartId, StateRow
from millwheel.store.directory import DatabaseDirectory
from millwheel.store.rocks import Rocks, RowBatch

PART = PartId("timers", 5, 1)
STATE_KEY = layout.state_prefix(IncarnationId("c")) + b"key"


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    async with await EmbeddedDatabase.open(tmp_path / "db") as database:
        store = database.store
        for journal in ("j", "k"):
            await store.create_journal(journal)
            await store.fence(journal, 5)
            await store.write_part(journal, PART, b"part")
            for commit in (1, 2, 3):
                await store.append(journal, Append(5, commit, 0, (PART,), b"entry %d" % commit))
        await store.write_states(
            IncarnationId("c"), "j", 5, [StateRow(b"key", 3, b"state"), StateRow(b"other", 3, b"whole")]
        )
        await database.coordinator.transact([], [Put("topologies/t", b"value")])
    return tmp_path / "db"


def flip(path: Path, key: bytes, *, state: bool = False) -> None:
    """Flip one bit of the last byte of a stored value. Of our code, this uses only the format of keys."""
    directory = DatabaseDirectory(path)
    rocks = Rocks(directory)
    (value,) = rocks.get([key], state=state)
    assert value is not None
    batch = RowBatch(rocks)
    damaged = value[:-1] + bytes((value[-1] ^ 1,))
    if state:
        batch.put(key, damaged, rocks.state_family)
    else:
        batch.put(key, damaged)
    rocks.write(batch)
    rocks.close()
    directory.release()


async def test_a_damaged_entry_is_named(path: Path) -> None:
    flip(path, layout.entry_key("j", 2))
    async with await EmbeddedDatabase.open(path) as database:
        with pytest.raises(CorruptValueError, match="entry 2 of journal j: checksum"):
            await database.store.read_entries("j", 1, 3)
        assert await database.store.read_entries("j", 3, 3) == [b"entry 3"]
        assert len(await database.store.read_entries("k", 1, 3)) == 3


async def test_a_damaged_part_is_named(path: Path) -> None:
    flip(path, layout.part_key("j", PART))
    async with await EmbeddedDatabase.open(path) as database:
        with pytest.raises(CorruptValueError, match="part 'timers' of journal j"):
            await database.store.read_parts("j", [PART])
        assert await database.store.read_parts("k", [PART]) == [b"part"]


@pytest.mark.parametrize(("key", "name"), [(layout.head_key("j"), "head"), (layout.parts_key("j"), "part list")])
async def test_a_damaged_head_is_named_and_stops_its_journal_alone(path: Path, key: bytes, name: str) -> None:
    flip(path, key)
    async with await EmbeddedDatabase.open(path) as database:
        store = database.store
        for call in (
            store.read_head("j"),
            store.fence("j", 9),
            store.seal("j", 5),
            store.append("j", Append(5, 4, 0, (), b"")),
            store.create_journal("j"),
            store.write_states(IncarnationId("c"), "j", 5, [StateRow(b"key", 3, b"")]),
        ):
            with pytest.raises(CorruptValueError, match=f"{name} of journal j: checksum"):
                await call
        assert (await store.fence("k", 9)).commit == 3


async def test_a_damaged_row_is_named_by_its_key(path: Path) -> None:
    flip(path, STATE_KEY, state=True)
    async with await EmbeddedDatabase.open(path) as database:
        with pytest.raises(CorruptValueError, match="state of key 'key' of incarnation c"):
            await database.store.read_states(IncarnationId("c"), [b"key"])
        assert await database.store.read_states(IncarnationId("c"), [b"other"]) == [StateRow(b"other", 3, b"whole")]


async def test_a_damaged_coordinator_value_is_named_and_not_served(path: Path) -> None:
    """Regression: one damaged value prevented opening the whole database."""
    flip(path, b"cktopologies/t")
    async with await EmbeddedDatabase.open(path) as database:
        coordinator = database.coordinator
        with pytest.raises(DamagedValueError, match="value topologies/t is damaged"):
            await coordinator.get("topologies/t")
        (entry,) = (await coordinator.list("topologies/")).entries
        assert (entry.value, entry.damage[:8]) == (b"", "checksum")
        await coordinator.transact([], [Put("topologies/u", b"other")])
    flip(path, b"cktopologies/t")
    async with await EmbeddedDatabase.open(path) as database:
        restored = await database.coordinator.get("topologies/t")
        assert restored is not None
        assert restored.value == b"value", "nothing was written over it"


async def test_a_damaged_registration_ends_with_its_lease(path: Path) -> None:
    """The damaged record no longer names its lease. Every key of these kinds has one."""
    async with await EmbeddedDatabase.open(path) as database:
        lease = await database.coordinator.grant_lease(60)
        puts = [Put("workers/w", b"me", lease), Put("leadership/master", b"me", lease)]
        await database.coordinator.transact([], puts)
    flip(path, b"ckworkers/w")
    flip(path, b"ckleadership/master")
    async with await EmbeddedDatabase.open(path) as database:
        assert [entry.key for entry in (await database.coordinator.list("")).entries] == ["topologies/t"]


async def test_a_damaged_coordinator_revision_is_named_opening_nothing(path: Path) -> None:
    """Without the revision, no one can say which value is newer."""
    flip(path, b"cr")
    with pytest.raises(CorruptValueError, match="revision of the coordinator: checksum"):
        await EmbeddedDatabase.open(path)
