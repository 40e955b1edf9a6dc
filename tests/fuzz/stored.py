"""Damaged stored values of every kind. Readers report them by name. They neither serve nor overwrite them."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Awaitable, Callable
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
from tests.fuzz.odd import damaged
from tests.fuzz.surface import Surface, Unclear
from tests.fuzz.targets import made_database

_LATER: Final = 1 << 60
"""A sequencer above all that were drawn."""


class StoredValues(Surface):
    """A surface: each case damages one row of a server's database, reads it, and restores it."""

    name = "stored"

    async def open(self) -> None:
        shutil.copytree(await _made(), self.place / "db")
        self._rows: dict[str, list[tuple[bytes, bytes]]] = {}
        self._database = await self.enter_async_context(await EmbeddedDatabase.open(self.place / "db"))
        rocks = self._database.rocks
        kinds = {"head": layout.HEAD, "part list": layout.PARTS, "entry": b"e", "part": b"b", "coordinator": b"ck"}
        for kind, prefix in kinds.items():
            self._rows[kind] = rocks.scan(prefix, layout.past(prefix))
        self._rows["revision"] = rocks.scan(b"cr", b"cs")
        self._rows["state"] = rocks.scan(b"\x01", b"\xff", state=True)
        empty = [kind for kind, rows in self._rows.items() if not rows]
        if empty:
            raise AssertionError(f"the database has nothing of: {', '.join(empty)}")

    async def case(self, random: Random) -> str:
        """One damaged value."""
        kind = random.choice(sorted(self._rows))
        key, value = random.choice(self._rows[kind])
        bad = damaged(random, value)
        if bad == value:
            return "UNCHANGED"
        self._put(kind, key, bad)
        try:
            await _READERS[kind](self._database, key)
            if self._get(kind, key) != bad:
                raise Unclear(f"{kind} {key!r} was written over")
        finally:
            self._put(kind, key, value)
        return f"{kind} named"

    def _put(self, kind: str, key: bytes, value: bytes) -> None:
        rocks = self._database.rocks
        batch = RowBatch(rocks)
        batch.put(key, value, *([rocks.state_family] if kind == "state" else []))
        rocks.write(batch)
        if kind in ("head", "part list"):
            self._database.store.heads.load()  # heads are read once, when a database is opened

    def _get(self, kind: str, key: bytes) -> bytes | None:
        return self._database.rocks.get([key], state=kind == "state")[0]


_databases: list[Path] = []


async def _made() -> Path:
    """A database to copy. It is made once in this process."""
    if not _databases:
        place = Path(tempfile.mkdtemp(prefix="millwheel-fuzz-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        await made_database(place)
        _databases.append(place / "db")
    return _databases[0]


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


class Contents(StoredValues):
    """A surface: payloads that were damaged before their checksum was made, as a bug or another version would do.
    The decoder reports each by name, and raises no other error."""

    name = "contents"

    async def case(self, random: Random) -> str:
        """Decode one payload as each kind of value."""
        kind = random.choice(("entry", "part", "state"))
        _, value = random.choice(self._rows[kind])
        blob = damaged(random, unwrap(value, ""))[8 * (kind == "state") :]
        try:
            random.choice(_DECODERS)(blob)
        except CorruptValueError as error:
            if "here" not in error.where:
                raise Unclear(f"it is not said where: {error}") from error
            return "REFUSED"
        return "DECODED"


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
