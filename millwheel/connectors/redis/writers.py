"""Sinks of Redis: each record is one command, and a batch runs as one script with its id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from millwheel.connectors.progress import is_over, without_batch
from millwheel.connectors.redis.entries import Word, as_word, fields_of
from millwheel.connectors.redis.servers import RedisAccess, RedisConnection, RedisError, hint
from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.sdk.errors import UsageError

__all__ = ["command", "sink", "values"]

T = TypeVar("T")

_PROGRESS: Final = "millwheel-progress"
_MAX_WORDS: Final = 4_000
"""The most words of a command. A script can pass on 8,000."""
_SHOWN: Final = 300
"""The most characters of a refused record in an error."""
_WRITE: Final = """#!lua
local name, run, number, id, after = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local held = redis.call('HGET', KEYS[1], name) or '0 0 -'
local held_run, held_number, held_id, held_part = string.match(held, '^(%d+) (%d+) (%S+) ?(%d*)$')
local done = 0
if held_run == run and held_id == id then
    if held_part == '' then return {'there'} end
    done = tonumber(held_part)
elseif held_run == nil or not (
    after ~= '' and held_run == run and held_id == after and held_part == ''
    or after == '' and tonumber(held_run) < tonumber(run)
) then
    return {'apart', held}
end
local here = run .. ' ' .. number .. ' ' .. id
redis.call('HSET', KEYS[1], name, here .. ' ' .. done)
local at, record = 6, 0
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    record = record + 1
    if record > done and words > 0 then
        local answer = redis.pcall(unpack(ARGV, at + 1, at + words))
        if type(answer) == 'table' and answer.err then
            redis.call('HSET', KEYS[1], name, here .. ' ' .. (record - 1))
            return {'refused', record, answer.err}
        end
    end
    at = at + words + 1
end
redis.call('HSET', KEYS[1], name, here)
return {'written'}
"""
"""Write a batch, if it is the next one. A script is not taken back if a command fails: so the progress then says how
many records of the batch were written, and the next attempt goes on behind them."""


def sink(
    stream: str,
    *,
    server: str | Callable[[], Any],
    json: str | None = None,
    maxlen: int | None = None,
) -> Sink[Any]:
    """A sink that appends to a stream of Redis. Each record is one entry, exactly once.

    A batch is one script, which also stores its id, in the hash ``millwheel-progress:{STREAM}``.

    For example::

        totals.to("totals-stream", redis.sink("totals", server="redis://localhost:6379/0", maxlen=1_000_000))

    Args:
        stream: The key of the stream. It is made by its first entry.
        server: As for :func:`source`.
        json: The field that has the whole record as JSON. None: an entry has the fields of the record. Those that are
            no text are JSON, and those that are None are left out.
        maxlen: The length beyond which old entries are removed, about. None: none are.

    Raises:
        UsageError: An argument cannot be used.
    """
    if not isinstance(stream, str) or not stream:
        raise UsageError(f"a sink of Redis takes the name of a stream, not {stream!r:.80}")
    if maxlen is not None and (not isinstance(maxlen, int) or maxlen < 1):
        raise UsageError(f"maxlen= is a positive number of entries, not {maxlen!r:.80}")
    limit: list[Word] = [] if maxlen is None else ["MAXLEN", "~", maxlen]
    begin: list[Word] = ["XADD", stream, *limit, "*"]

    def append(value: Any) -> list[Word]:
        return [*begin, *(fields_of(value) if json is None else (json, msgspec.json.encode(value)))]

    return _CommandSink(append, RedisAccess(server), _slot_of(stream) or stream)


def values(
    prefix: str,
    *,
    key: str | Callable[[T], str | int],
    server: str | Callable[[], Any],
    value: Callable[[T], Word] = msgspec.json.encode,
) -> Sink[T]:
    """A sink that keeps the newest record of each key: it runs ``SET``.

    For example, ``GET total:tea`` is then the newest total of tea, as JSON::

        totals.key_by("item").to("totals-values", redis.values("total:", key="item", server="redis://localhost/0"))

    Args:
        prefix: What the names begin with. In a Redis Cluster it has a hash tag, such as ``{total}:``.
        key: The rest of the name: a field of the record, or a function of it.
        server: As for :func:`source`.
        value: What is stored. By default, the record as JSON.

    Raises:
        UsageError: An argument cannot be used.
    """
    if not isinstance(prefix, str):
        raise UsageError(f"a sink of Redis takes a prefix of names, not {prefix!r:.80}")
    key_of: Callable[[T], Any] = attrgetter(key) if isinstance(key, str) else key
    return _CommandSink(
        lambda one: ["SET", f"{prefix}{key_of(one)}", value(one)], RedisAccess(server), _slot_of(prefix)
    )


def command(words: Callable[[T], Sequence[Any] | None], *, server: str | Callable[[], Any], slot: str = "") -> Sink[T]:
    """A sink that runs a command for each record, which takes effect exactly once.

    For example, a list of the best::

        by_shop = "redis://localhost:6379/0"
        sold.to("best", redis.command(lambda sale: ["ZINCRBY", "best", sale.cents, sale.item], server=by_shop))

    Args:
        words: The command of a record, such as ``["INCRBY", "sold", 3]``. It writes, does not wait, and always returns
            the same for a record. None: nothing is to do for this record.
        server: As for :func:`source`.
        slot: In a Redis Cluster, the hash tag of all keys: ``shop`` for ``{shop}:best``.

    Raises:
        UsageError: An argument cannot be used.
    """
    if not callable(words):
        raise UsageError(f"a sink of Redis takes a function that returns a command, not {words!r:.80}")
    return _CommandSink(words, RedisAccess(server), slot)


def _slot_of(key: str) -> str:
    """The hash tag in a key, which is what its place in a cluster depends on. Empty: it has none."""
    _, brace, rest = key.partition("{")
    tag, end, _ = rest.partition("}")
    return tag if brace and end else ""


@dataclass(frozen=True, slots=True)
class _CommandSink(Sink[T], Generic[T]):
    words: Callable[[T], Sequence[Any] | None]
    access: RedisAccess
    slot: str

    async def open_writer(self, place: SinkShard) -> SinkWriter[T]:
        return _CommandWriter(self, place)


class _CommandWriter(SinkWriter[T]):
    """Writes the batches of a shard.

    *Invariant (G1): the progress in Redis is the newest batch whose records were written, or a part of the next one.*
    The script raises it from the batch before, by their ids, or changes nothing. Redis runs it at one moment, and
    stores and replicates all its changes together. Who may break it: a server that removes keys when its memory is full
    (maxmemory-policy). A missing progress is noticed.
    """

    def __init__(self, sink: _CommandSink[T], place: SinkShard) -> None:
        self._sink = sink
        self._place = place
        self._connection = RedisConnection(sink.access)
        self._progress = f"{_PROGRESS}:{{{sink.slot}}}" if sink.slot else _PROGRESS

    async def write(self, batch: SinkBatch[T]) -> None:
        place = self._place
        words: list[Word] = [f"{place.sink} {place.shard}", str(place.run), str(batch.number), batch.id, batch.after]
        for value, _ in batch.records:
            words += self._command(value)
        what, *more = await self._connection.call(
            f"{place.sink}, shard {place.shard} cannot be written",
            lambda client: client.eval(_WRITE, 1, self._progress, *words),
        )
        if what == b"apart":
            raise RedisError(self._apart(batch, more[0].decode(errors="replace")))
        if what == b"refused":
            raise RedisError(self._refused(batch, more[0], more[1].decode(errors="replace")))

    def _command(self, value: T) -> list[Word]:
        given = self._sink.words(value)
        words = [] if given is None else [as_word(one) for one in given]
        if len(words) > _MAX_WORDS:
            raise RedisError(f"a command for {self._place.sink} has {len(words):,} words: it may have {_MAX_WORDS:,}")
        return [str(len(words)), *words]

    def _refused(self, batch: SinkBatch[T], number: int, error: str) -> str:
        value, _ = batch.records[number - 1]
        before = "" if number == 1 else f" The {number - 1:,} before it are written, and do not come again."
        which = f"record {number} of {len(batch.records)} in batch {batch.number} of {self._place.sink}"
        return (
            f"{self._sink.access.name} refuses {which}, shard {self._place.shard}: {error}{hint(error)}. It is "
            f"{value!r:.{_SHOWN}}.{before} Make Redis take it, or change the command in an update"
        )

    def _apart(self, batch: SinkBatch[T], held: str) -> str:
        """What to do where Redis stands elsewhere than the topology."""
        place, former = self._place, without_batch(self._place, batch)
        to = f"{former.run} {former.batch} {former.id or '-'}"
        go_on = f'HSET {self._progress} "{place.sink} {place.shard}" "{to}"'
        run, number, *_ = [*held.split(" "), "0", "0"]
        if run.isdigit() and int(run) > place.run:
            return is_over(place, go_on)
        here = f"{self._sink.access.name} has batch {number} of {place.sink}, shard {place.shard}"
        return (
            f"{here}, and batch {batch.number} comes next: Redis lost writes, or it or the topology was set back to an "
            "earlier time. Set the other one back, too, or write to a sink of another name. Or go on, and what is twice"
            f" or missing stays so: {go_on}"
        )

    async def close(self) -> None:
        await self._connection.close()
