"""Streams of Redis as a source: a split is a stream, and its position is the last entry that was read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from millwheel.connectors.handles import Handles
from millwheel.connectors.redis.entries import RedisEntry, event_time, reads_as, shown
from millwheel.connectors.redis.places import (
    NONE,
    Glimpse,
    Missing,
    PlainStart,
    RedisStart,
    StreamPosition,
    beginning,
    follow,
    plain_start,
)
from millwheel.connectors.redis.servers import RedisAccess, RedisConnection, RedisError
from millwheel.connectors.source import BadRecord, Read, Source, SplitReader, Splits, UnreadRecord
from millwheel.model.time import format_timestamp
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = ["source"]

T = TypeVar("T")

_MAX_RECORDS: Final = 1_000
_MAX_BYTES: Final = 1 << 20
"""The most of one read, and one entry more. Redis does nothing else meanwhile, so it is little."""
_PIECE: Final = 16
"""How many entries the script looks at together."""
_READ: Final = """#!lua flags=no-writes
local key, after, most, bytes, piece = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local function parts(id)
    local first, second = string.match(id, '(%d+)-(%d+)')
    return tonumber(first), tonumber(second)
end
local function lags(last)
    local last_time, last_number = parts(last)
    local time, number = parts(after)
    if last_time > time or (last_time == time and last_number >= number) then return false end
    local said = redis.pcall('INFO', 'replication')
    return type(said) == 'string' and string.find(said, 'role:slave', 1, true)
end
if redis.call('EXISTS', key) == 0 then
    if lags('0-0') then return {'lags'} end
    return {}
end
local answer, info = redis.call('XINFO', 'STREAM', key), {}
for i = 1, #answer, 2 do info[answer[i]] = answer[i + 1] end
if not info['entries-added'] then return {'uncounted'} end
if lags(info['last-generated-id']) then return {'lags'} end
local found, size, more = {}, 0, true
while more and #found < most and size < bytes do
    local entries = redis.call('XRANGE', key, '(' .. after, '+', 'COUNT', piece)
    more = #entries > 0
    for _, entry in ipairs(entries) do
        if #found >= most or size >= bytes then break end
        found[#found + 1], after = entry, entry[1]
        for _, part in ipairs(entry[2]) do size = size + #part end
    end
end
if more then more = #redis.call('XRANGE', key, '(' .. after, '+', 'COUNT', 1) > 0 end
return {
    info['entries-added'], info['length'], info['recorded-first-entry-id'], info['last-generated-id'], found,
    more and 1 or 0
}
"""
"""What a stream is, and what is next in it, at one moment."""

log = logging.getLogger("millwheel.redis")


@overload
def source(
    streams: str | Sequence[str],
    kind: type[T],
    *,
    server: str | Callable[[], Any],
    pattern: bool = False,
    json: str | None = None,
    start: RedisStart = "earliest",
    skip_removed: bool = False,
) -> Source[T, StreamPosition]: ...
@overload
def source(
    streams: str | Sequence[str],
    kind: TypeForm[T],
    *,
    server: str | Callable[[], Any],
    pattern: bool = False,
    json: str | None = None,
    start: RedisStart = "earliest",
    skip_removed: bool = False,
) -> Source[T, StreamPosition]: ...
@overload
def source(
    streams: str | Sequence[str],
    *,
    decode: Callable[[RedisEntry], T],
    server: str | Callable[[], Any],
    pattern: bool = False,
    start: RedisStart = "earliest",
    skip_removed: bool = False,
) -> Source[T, StreamPosition]: ...
def source(
    streams: str | Sequence[str],
    kind: Any = RedisEntry,
    *,
    decode: Callable[[RedisEntry], Any] | None = None,
    server: str | Callable[[], Any],
    pattern: bool = False,
    json: str | None = None,
    start: RedisStart = "earliest",
    skip_removed: bool = False,
) -> Source[Any, StreamPosition]:
    """A source that reads streams of Redis: each entry once, and those of a stream in their order.

    It needs no consumer group. The event time is that in the entry's id, if the stream of the topology has no
    ``timestamp=``.

    For example::

        bids = topology.source("bids", Bid, redis.source("bids", Bid, server="redis://localhost:6379/0"))

    Args:
        streams: The key of the stream, or several. Each of them is a split.
        kind: The type of the values. An entry has their fields, and nested ones as JSON. ``RedisEntry`` has the entry
            as it is.
        decode: Makes the value of an entry instead. What it raises says that the entry cannot be read.
        server: Where Redis is: ``redis://HOST:PORT/DATABASE``, ``rediss://`` for TLS, or ``unix:///PATH``. ``${NAME}``
            is an environment variable of the worker, such as a password. Or a function that returns a client of the
            library ``redis``, for Sentinel or a cluster.
        pattern: ``streams`` is a pattern of SCAN, such as ``bids:*``. Streams that come later are read, too.
        json: The field that has the whole value as JSON.
        start: Where a stream begins of which nothing was read yet: at its ``earliest`` entry, with what comes from now
            on (``latest``), at the first entry whose id has this time or a later one (a datetime with a time zone, or a
            Timestamp), or behind an entry, as in ``{"bids": "1767268800000-0"}``.
        skip_removed: Go on with what is there if entries were removed unread, or the server lost some. By default the
            stream stops there, with an error.

    Raises:
        UsageError: An argument cannot be used.
    """
    names = [streams] if isinstance(streams, str) else list(streams)
    if not names or not all(isinstance(one, str) and one for one in names) or (pattern and len(names) > 1):
        raise UsageError(
            f"a source of Redis reads a stream, a list of streams, or a pattern, by their names, not {streams!r:.80}"
        )
    begins = plain_start(start, None if pattern else names)
    return _StreamSource(tuple(names), pattern, reads_as(kind, json, decode), RedisAccess(server), begins, skip_removed)


@dataclass(frozen=True, slots=True)
class _StreamSource(Source[T, StreamPosition], Generic[T]):
    names: tuple[str, ...]
    pattern: bool
    read_as: Callable[[RedisEntry], T]
    access: RedisAccess
    start: PlainStart
    skip_removed: bool
    _searches: Handles[_StreamSearch] = field(default_factory=Handles, compare=False)

    def identity(self) -> str:
        # A list may get more names: positions belong to each of them.
        return "streams of Redis"

    async def splits(self) -> Splits:
        if not self.pattern:
            return Splits(self.names)
        async with self._searches.use("", None, self._open_search) as used:
            found = await used.handle.streams(self.names[0])
            used.ends_at(None)
        return Splits(found)

    async def _open_search(self) -> _StreamSearch:
        return _StreamSearch(self.access)

    async def open_reader(self, split: str, position: StreamPosition | None) -> SplitReader[T, StreamPosition]:
        return _StreamReader(self, split, position)


class _StreamSearch:
    """A client that finds streams, kept from one search to the next."""

    def __init__(self, access: RedisAccess) -> None:
        self._connection = RedisConnection(access)

    async def streams(self, pattern: str) -> list[str]:
        """The names that match, in their order. The search goes through all keys of the database."""

        def search(client: Any) -> list[str]:
            found = client.scan_iter(match=pattern, count=1_000, _type="stream")
            return sorted({name.decode() for name in found})

        return await self._connection.call(f"streams {pattern!r} cannot be searched for", search)

    async def close(self) -> None:
        await self._connection.close()


class _StreamReader(SplitReader[T, StreamPosition]):
    """Reads one stream.

    *Invariant (G1): a position goes back only where a primary has lost entries*, and only by ``skip_removed``. A
    replica that lags has lost none: they come later, and would be read twice.

    *Invariant (G7): a read says that nothing waits only if the server has said so.* One script looks at the stream and
    takes from it, at one moment.
    """

    def __init__(self, source: _StreamSource[T], stream: str, position: StreamPosition | None) -> None:
        self._source = source
        self._stream = stream
        self._position = position
        self._connection = RedisConnection(source.access)

    async def read(self) -> Read[T, StreamPosition]:
        if self._position is None:
            # A commit has the beginning before anything is read from there. So it is chosen once.
            self._position, seen = await self._begin()
            return Read([], self._position, behind=max(self._behind(self._position, seen), 1))
        seen, entries = await self._look(self._position.id)
        position, missing = follow(self._position, seen)
        if missing is not None:
            self._report(self._position, missing)
        self._position = position
        records = [(self._value(entry), event_time(entry.id)) for entry in entries]
        behind = max(self._behind(position, seen), 0 if seen.at_end else 1)
        return Read(records, position, behind=behind, places=lambda index: _place(entries[index]))

    def _behind(self, position: StreamPosition, seen: Glimpse) -> int:
        """How many entries wait: all that are there, as long as it is not known how many were before."""
        return seen.length if position.added is None else seen.added - position.added

    async def _begin(self) -> tuple[StreamPosition, Glimpse]:
        """Where the stream begins, and what it is now."""
        start = self._source.start
        if isinstance(start, dict):
            start = start.get(self._stream, "earliest")
        # A replica that has not come to the entry of the beginning is noticed. Nothing is read.
        entry = start if isinstance(start, str) and start not in ("earliest", "latest") else "0-0"
        seen, _ = await self._look(entry, most=0)
        position, missing = beginning(start, seen)
        if missing is not None:
            at = start if isinstance(start, str) else format_timestamp(start)
            name = f"stream {self._stream!r} of {self._source.access.name}"
            if missing.set_back:
                raise RedisError(
                    f"{name} ends at entry {seen.last}, and start= says {at}: name an entry that it has had"
                )
            wrong = f"{name} has lost {seen.added - seen.length:,} entries, and some may be behind start=, {at}"
            self._accept(wrong, "Or give a later start=")
        return position, seen

    async def _look(self, after: str, most: int | None = None) -> tuple[Glimpse, list[RedisEntry]]:
        records = min(self.most_records, _MAX_RECORDS) if most is None else most
        limits = str(records), str(_MAX_BYTES), str(_PIECE)
        answer = await self._connection.call(
            f"stream {self._stream!r} cannot be read",
            lambda client: client.eval_ro(_READ, 1, self._stream, after, *limits),
        )
        if not answer:
            return NONE, []
        if answer == [b"lags"]:
            raise RedisError(
                f"stream {self._stream!r} goes on behind entry {after}, and {self._source.access.name} is a replica "
                "that has not come so far. The read is tried again until it has. If it never does, it is cut off or "
                "belongs to another server, or the stream was made again: read from the primary, which knows"
            )
        if len(answer) == 1:
            raise RedisError("the server does not count entries: the connector needs Redis 7.0 or newer, or Valkey")
        added, length, first, last, found, more = answer
        entries = [
            RedisEntry(self._stream, id.decode(), dict(zip(map(_name, parts[::2]), parts[1::2], strict=True)))
            for id, parts in found
        ]
        return Glimpse(added, length, first.decode(), last.decode(), [one.id for one in entries], not more), entries

    def _value(self, entry: RedisEntry) -> T | BadRecord:
        try:
            return self._source.read_as(entry)
        except Exception as error:
            return UnreadRecord(self._stream, _place(entry), error_message(error), shown(entry.fields))

    def _report(self, position: StreamPosition, missing: Missing) -> None:
        """Raise an error for what is missing, or log it if that is accepted."""
        at = f"stream {self._stream!r} of {self._source.access.name} was read up to entry {position.id}"
        if missing.set_back:
            wrong = f"{at}, and is now another or an earlier one: the server lost entries, or the key was made again"
        elif missing.removed is None:
            wrong = f"{at}, and entries behind it may have been removed unread, by a limit of its length or by XDEL"
        else:
            are = "entry behind it was" if missing.removed == 1 else "entries behind it were"
            wrong = f"{at}, and {missing.removed:,} {are} removed unread, by a limit of its length or by XDEL"
        self._accept(wrong, "Or give the stream of the topology another name, which begins as start= says")

    def _accept(self, wrong: str, otherwise: str) -> None:
        """Raise an error, or log it if the source is to go on with what is there."""
        if not self._source.skip_removed:
            raise RedisError(f"{wrong}. skip_removed=True in an update goes on with what is there. {otherwise}")
        log.warning("%s; the source goes on with what is there, as skip_removed=True says", wrong)

    async def close(self) -> None:
        await self._connection.close()


def _place(entry: RedisEntry) -> str:
    """Where a record is in its stream, for people."""
    return f"entry {entry.id}"


def _name(field: bytes) -> str:
    return field.decode(errors="replace")
