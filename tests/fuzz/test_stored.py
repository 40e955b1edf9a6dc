"""Damaged stored values of every kind. Readers report them by name. They neither serve nor overwrite them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from millwheel.authority.journal import decode_entry as decode_authority_entry
from millwheel.authority.journal import decode_part as decode_authority_part
from millwheel.coordination.contract import DamagedValueError
from millwheel.embedded.coordinator import EmbeddedCoordinator
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.model.envelope import unwrap
from millwheel.model.incarnation import IncarnationId
from millwheel.store import layout
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.store.rocks import RowBatch
from millwheel.worker.interval.commits.divided import joined
from millwheel.worker.interval.entry import BaseMeta, TimerRow, decode_entry, decode_part
from millwheel.worker.log.entry import LogEntry, LogMeta, SegmentBlob, decode
from tests.fuzz.cases import LIMIT, Unclear, run
from tests.fuzz.odd import damaged
from tests.fuzz.targets import made_database

_LATER: Final = 1 << 60
"""A sequencer above all that were drawn."""


@LIMIT
async def test_a_damaged_row_is_named_and_stays(tmp_path: Path) -> None:
    """Each case damages one row of a server's database, reads it, and restores it."""
    async with _filled(tmp_path) as (database, rows):

        def put(kind: str, key: bytes, value: bytes) -> None:
            batch = RowBatch(database.rocks)
            batch.put(key, value, *([database.rocks.state_family] if kind == "state" else []))
            database.rocks.write(batch)
            if kind in ("head", "part list"):
                database.store.heads.load()  # heads are read once, when a database is opened

        async def case(random: Random) -> str:
            kind = random.choice(sorted(rows))
            key, value = random.choice(rows[kind])
            bad = damaged(random, value)
            if bad == value:
                return "UNCHANGED"
            put(kind, key, bad)
            try:
                await _READERS[kind](database, key)
                if database.rocks.get([key], state=kind == "state")[0] != bad:
                    raise Unclear(f"{kind} {key!r} was written over")
            finally:
                put(kind, key, value)
            return f"{kind} named"

        await run("stored", case, few=400, percent=23)


Rows = dict[str, list[tuple[bytes, bytes]]]
"""Keys and values, by their kind."""


@asynccontextmanager
async def _filled(place: Path) -> AsyncIterator[tuple[EmbeddedDatabase, Rows]]:
    """A database, and its rows: at least one of each kind."""
    await made_database(place)
    async with await EmbeddedDatabase.open(place / "db") as database:
        scan = database.rocks.scan
        kinds = {"head": layout.HEAD, "part list": layout.PARTS, "entry": b"e", "part": b"b", "coordinator": b"ck"}
        rows = {kind: scan(prefix, layout.past(prefix)) for kind, prefix in kinds.items()}
        rows |= {"revision": scan(b"cr", b"cs"), "state": scan(b"\x01", b"\xff", state=True)}
        empty = [kind for kind, found in rows.items() if not found]
        assert not empty, f"the database has nothing of: {', '.join(empty)}"
        yield database, rows


async def _named(name: str, *reads: Callable[[], Awaitable[Any]]) -> None:
    """Check that each of ``reads`` raises, and names the damaged value."""
    for read in reads:
        try:
            found = await read()
        except (CorruptValueError, DamagedValueError) as error:
            where = error.where if isinstance(error, CorruptValueError) else error.key
            if name not in where or (isinstance(error, DamagedValueError) and name != where):
                raise Unclear(f"{where} where {name} is damaged") from error
        else:
            raise Unclear(f"{name} is damaged, and was served as {found!r:.300}")


async def _head(database: EmbeddedDatabase, key: bytes) -> None:
    journal, store = layout.journal_of(key), database.store
    owned = [partial(call, journal, _LATER) for call in (store.fence, store.seal)]
    await _named(journal, partial(store.read_head, journal), *owned, partial(store.create_journal, journal))


async def _entry(database: EmbeddedDatabase, key: bytes) -> None:
    journal, commit = key[1:-9].decode(), int.from_bytes(key[-8:], "big")
    await _named(f"entry {commit} of journal {journal}", lambda: database.store.read_entries(journal, commit, commit))


async def _part(database: EmbeddedDatabase, key: bytes) -> None:
    journal = key[1:].partition(b"\0")[0].decode()
    part: PartId = layout.part_of(journal, key)
    await _named(f"part {part.name!r} of journal {journal}", lambda: database.store.read_parts(journal, [part]))


async def _state(database: EmbeddedDatabase, key: bytes) -> None:
    incarnation, _, name = key.partition(b"\0")
    shown = f"{name.decode('utf-8', 'backslashreplace')!r} of incarnation {incarnation.decode()}"
    owner = IncarnationId(incarnation.decode())
    await _named(shown, partial(database.store.read_states, owner, [name]))


async def _coordinator(database: EmbeddedDatabase, key: bytes) -> None:
    coordinator = EmbeddedCoordinator(database.rocks, database.thread)
    name = key[2:].decode()
    await _named(name, lambda: coordinator.get(name))
    entries = {entry.key: entry for entry in (await coordinator.list("")).entries}
    if entries[name].value or not entries[name].damage or sum(bool(one.damage) for one in entries.values()) != 1:
        raise Unclear(f"listed as {entries[name]!r:.300}")
    await coordinator.close()


async def _revision(database: EmbeddedDatabase, key: bytes) -> None:
    async def read() -> object:
        return EmbeddedCoordinator(database.rocks, database.thread)

    await _named("revision of the coordinator", read)


_READERS: Final[dict[str, Callable[[EmbeddedDatabase, bytes], Awaitable[None]]]] = {
    "head": _head,
    "part list": _head,
    "entry": _entry,
    "part": _part,
    "state": _state,
    "coordinator": _coordinator,
    "revision": _revision,
}


@LIMIT
async def test_a_damaged_payload_is_named_by_its_decoder(tmp_path: Path) -> None:
    """It was damaged before its checksum was made, as a bug or another version would do.

    Each case decodes one as some kind of value. The decoder raises no other error.
    """
    async with _filled(tmp_path) as (_, rows):

        async def case(random: Random) -> str:
            kind = random.choice(("entry", "part", "state"))
            _, value = random.choice(rows[kind])
            blob = damaged(random, unwrap(value, ""))[8 * (kind == "state") :]
            try:
                random.choice(_DECODERS)(blob)
            except CorruptValueError as error:
                if "here" not in error.where:
                    raise Unclear(f"it is not said where: {error}") from error
                return "REFUSED"
            return "DECODED"

        await run("contents", case, few=1_000, percent=11)


_DECODERS: Final[tuple[Callable[[bytes], Any], ...]] = (
    lambda blob: decode_entry(blob, "here"),
    lambda blob: joined(blob, 1, {}, "here"),
    lambda blob: joined(b"\x94\x02" + blob, 1, {PartId("entry/0", 1, 1): blob}, "here"),
    lambda blob: decode_part(blob, BaseMeta, "here"),
    lambda blob: decode_part(blob, list[TimerRow], "here"),
    lambda blob: decode_authority_entry(blob, "here"),
    lambda blob: decode_authority_part(blob, "here"),
    lambda blob: decode(blob, LogEntry, "here"),
    lambda blob: decode(blob, LogMeta, "here"),
    lambda blob: decode(blob, SegmentBlob, "here"),
    lambda blob: decode_part(blob, list[tuple[bytes, msgspec.Raw]], "here"),
)
