"""Injecting records from a program (section 5.2): the asyncio shell around the injector's core.

    async with Injector("127.0.0.1:7433", "queries", process="reader-1") as injector:
        await injector.send(Query("britney spears"), timestamp=now)
        await injector.advance(now - seconds(5))

Every record sent is delivered to every consumer of its stream until it is ACKed. See
:mod:`millwheel.client.injector.ids` for what makes a record that is sent again, by this process or by
its next life, the same record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from millwheel.client.control import DEFAULT_ADDRESS
from millwheel.client.injector.asking import RecordAsker
from millwheel.client.injector.buffer import SendBuffer
from millwheel.client.injector.encoding import GivenKeys, RecordEncoder
from millwheel.client.injector.errors import NotAckedError
from millwheel.client.injector.ids import (
    IdHasher,
    IdKind,
    IdScope,
    UserId,
    checked_position,
    drawn_scope,
    partition_scope,
)
from millwheel.client.injector.keying import KeyColumn, RecordKeys, first_refused
from millwheel.client.injector.likelihood import is_likely, unlikely
from millwheel.client.injector.messages import Columns, within
from millwheel.client.injector.retries import KeyRetries
from millwheel.client.injector.session import Session
from millwheel.client.injector.settings import BatchOf, InjectorSettings
from millwheel.client.injector.stalls import StallMonitor
from millwheel.core.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from millwheel.sdk.errors import KeyExtractionError, TooLargeError, UsageError
from millwheel.sdk.topology import Topology

__all__ = ["Injector"]

_CHUNK: Final = 1_000
_TURN: Final = 256
"""Records sent one by one, before other tasks have their turn."""
_CHUNK_BYTES: Final = 1 << 20
_IN_UNITS: Final = {
    "s": "millwheel.from_seconds",
    "ms": "millwheel.from_milliseconds",
    "us": "microseconds",
    "ns": "millwheel.from_nanoseconds",
}
_MEANT: Final = "open the injector with settings=InjectorSettings(any_timestamp=True)"
_OPAQUE: Final = IdScope(IdKind.OPAQUE)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of send_many; ``scope`` None: the process counts the records itself."""

    values: Sequence[Any]
    timestamps: Sequence[int]
    ids: Sequence[UserId] | None
    positions: Sequence[int] | None
    scope: IdScope | None
    keys: GivenKeys | None
    encoded: bool


class Injector:
    """One process of the injector of ``stream``. Use it as ``async with``, from one event loop.

    Leaving the block waits until every record is ACKed, unless it is left by an exception. The process then
    still holds the stream's watermark where it left it: :meth:`finish` says that it will never send again,
    :meth:`idle` that it has nothing to send for now.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        stream: str = "",
        *,
        process: str = "injector",
        topology: Topology | None = None,
        source: str | None = None,
        sequencer: int | None = None,
        settings: InjectorSettings | None = None,
    ) -> None:
        """``process`` is this process's name among the stream's injectors: a second one of that name ends the first.

        ``topology``: the object that reads the stream, whose types, codecs and key functions are then used.
        ``source``: within what ids, partitions and positions are unique; by default the process (see ids.py).
        ``sequencer``: one that another Injector of this process name drew; this one sends on its behalf, by ids of
        the records' own only, and leaves the watermark to it (the tasks of a Spark job).
        """
        for what, name in (("stream", stream), ("process", process), ("source", source or process)):
            if not name or "/" in name:
                raise UsageError(f"an injector's {what} is a name without a slash, not {name!r}")
        self.stream = stream
        self.process = process
        settings = settings or InjectorSettings()
        self._source = source or process
        self._encoder = RecordEncoder(stream, topology)
        self._asker = RecordAsker(stream)
        self._keying = RecordKeys(self._encoder, self._asker.ask, check=settings.check_types)
        self._in_order = asyncio.Lock()
        """Held while a worker is asked about records, so that later ones do not overtake them."""
        self._hasher = IdHasher(stream, self._source)
        self._session = Session(address, stream, process, sequencer or 0, settings.limits, settings.patience)
        self._session.before_routing = self._drain
        self._monitor = StallMonitor(self._session, settings.explain)
        self._retries = KeyRetries(self._session, self._keying, self._monitor.named)
        self._buffer = SendBuffer()
        self._opened = False
        self._drawn = 0
        self._drawn_within: IdScope | None = None
        self._turn = _TURN
        self._strict = settings.strict_keys
        self._any_timestamp = settings.any_timestamp
        self._clock = 0
        """When the clock was last read, in microseconds: what is likely by it is likely later, too."""

    # Its life.

    async def __aenter__(self) -> Injector:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._session.is_open:
                await self.flush()
                await self._session.settle()
        finally:
            await self._close()

    async def open(self) -> None:
        """Draw a sequencer, announce the process, and learn the routing; once.

        RequestError or InjectorError says what stands against it.
        """
        if self._opened:
            raise UsageError("an injector is opened once: make another one")
        self._opened = True
        await self._session.open()
        self._monitor.start()

    async def close(self, timeout: float | None = None) -> None:
        """Close all connections. What is not ACKed stays unsure: send it again, by the same ids, from a new injector.

        Args:
            timeout: Seconds to wait for the ACKs of everything that was sent. None does not wait.

        Raises:
            NotAckedError: Not everything was ACKed in time. The injector is closed all the same.
        """
        try:
            if timeout is not None and self._session.is_open:
                await self.flush(timeout)
        finally:
            await self._close()

    async def _close(self) -> None:
        await self._monitor.close()
        await self._retries.close()
        await self._session.close()
        await self._asker.close()

    # Sending.

    async def send(
        self,
        value: Any,
        *,
        timestamp: Timestamp | int,
        id: UserId | None = None,  # the word for it
        position: int | None = None,
        partition: str = "",
    ) -> None:
        """Send one record; returns when it is accepted, waiting for room if need be. :meth:`flush` waits for ACKs.

        See :meth:`send_many` for the arguments and errors.
        """
        self._session.check()
        ids = None if id is None else (id,)
        positions = None if position is None else (checked_position(position),)
        self._check_times((timestamp,), "a record's timestamp")
        scope = self._scope(ids, positions, partition, None)
        call = _Call((value,), (timestamp,), ids, positions, scope, None, False)
        columns = self._columns_of_one(call) if self._fits(scope, timestamp) else None
        if columns is not None:
            if positions is not None and not self._buffer:
                self._session.core.check_positions(columns.scope, columns.ids)
            keys = {name: column[0] for name, column in columns.keys.items()}
            self._buffer.add(columns.scope, columns.ids[0], columns.values[0], timestamp, keys)
            self._drawn += scope is None
            if len(self._buffer) == 1:
                asyncio.get_running_loop().call_soon(self._drain)
        else:
            await self._send_columns(call)
        self._turn -= 1
        if self._turn <= 0:
            self._turn = _TURN
            await asyncio.sleep(0)

    def _check_times(self, times: Sequence[int], what: str) -> None:
        """UsageError for a time that is probably written in another unit."""
        if self._any_timestamp or not times:
            return
        try:
            unlikely_times = [at for at in (min(times), max(times)) if not self._is_likely(at)]
        except TypeError:
            return  # no number: the core says so
        if unlikely_times:
            why = unlikely(unlikely_times[0], self._clock, _IN_UNITS, _MEANT)
            raise UsageError(f"{what} of stream {self.stream!r}: {why}")

    def _is_likely(self, time_us: int) -> bool:
        if is_likely(time_us, self._clock) or not MIN_TIMESTAMP < time_us < MAX_TIMESTAMP:
            return True
        self._clock = time.time_ns() // 1_000
        return is_likely(time_us, self._clock)

    def _fits(self, scope: IdScope | None, timestamp: int) -> bool:
        """Whether a record may be gathered with those before it, without waiting for anything."""
        core, buffer = self._session.core, self._buffer
        full = len(buffer) >= _CHUNK or buffer.size >= _CHUNK_BYTES
        if buffer and (full or buffer.scope != (scope or self._drawn_scope())):
            self._drain()
        if self._in_order.locked() or not self._keying.local(self._session.routing):
            return False
        return core.room() > len(buffer) and not self._session.asleep and not core.throttled(timestamp)

    def _columns_of_one(self, call: _Call) -> Columns | None:
        """A single record as the core takes it; None if a consumer has no key for it."""
        routing = self._session.routing
        data = self._encoder.encode(call.values, routing.format)
        try:
            keys = {
                name: self._encoder.keys(consumer, call.values, data, None, routing.format)
                for name, consumer in routing.consumers.items()
            }
        except (KeyExtractionError, TooLargeError):
            return None
        scope, known = self._known(call, slice(0, 1))
        return Columns(data, call.timestamps, keys, scope, known)

    def _drain(self) -> None:
        """Have the core accept what was gathered. If it has failed, every later call says why."""
        if self._buffer:
            columns = self._buffer.take()
            if self._session.is_open and self._session.core.failed is None:
                self._session.add(columns)

    async def send_many(
        self,
        values: Sequence[Any],
        timestamps: Sequence[int],
        *,
        ids: Sequence[UserId] | None = None,
        positions: Sequence[int] | None = None,
        partition: str = "",
        batch: BatchOf | None = None,
        keys: GivenKeys | None = None,
        encoded: bool = False,
    ) -> None:
        """Send records, given as columns of equal length; returns when all are accepted.

        ``timestamps``: microseconds. ``ids``: names of the records' own, unique within the source (and, with ``batch``,
        within that batch); or ``positions`` of ``partition``, which rise from record to record, as long as
        the source lives; or neither, and each record is a new one, even if it was sent before. ``keys``: the records'
        keys where they are known, by consuming computation; else they are taken from the values. ``encoded``:
        the values are encoded already.

        ValueEncodeError, KeyExtractionError, TooLargeError: a value is at fault. Records are accepted in order, some
        hundreds at a time: those that were accepted before are on their way. InjectorError: the injector has
        stopped, and says why.
        """
        self._session.check()
        count = len(values)
        for what, column in (("timestamps", timestamps), ("ids", ids), ("positions", positions)):
            if column is not None and len(column) != count:
                raise UsageError(f"{count} values, but {len(column)} {what}")
        for name, given in keys.items() if isinstance(keys, Mapping) else [("every consumer", keys)]:
            if given is not None and len(given) != count:
                raise UsageError(f"{count} values, but {len(given)} keys for {name}")
        self._check_times(timestamps, "a record's timestamp")
        scope = self._scope(ids, positions, partition, batch)
        await self._send_columns(_Call(values, timestamps, ids, positions, scope, keys, encoded))

    async def _send_columns(self, call: _Call) -> None:
        self._drain()
        if self._in_order.locked() or not self._keying.local(self._session.routing):
            async with self._in_order:
                await self._send_chunks(call)
        else:
            await self._send_chunks(call)

    async def _send_chunks(self, call: _Call) -> None:
        start, count = 0, len(call.values)
        while start < count:
            end = await self._room_for(call, start, min(start + _CHUNK, count))
            start = await self._accept(call, start, end)
            if start < count:
                await asyncio.sleep(0)

    async def _room_for(self, call: _Call, start: int, end: int) -> int:
        """Wait until some of these records may be accepted; up to which."""
        while True:
            await self._session.admission(max(call.timestamps[start:end]))
            room = self._session.core.room()
            if end - start <= room:
                return end
            end = start + max(1, room)

    async def _accept(self, call: _Call, start: int, end: int) -> int:
        """Hand records to the core, fewer than asked for if they are large; up to which."""
        # What other tasks gathered while this one waited was accepted before.
        self._drain()
        data = self._encoded(call, start, end)
        end = start + len(data)
        found: dict[str, KeyColumn] = {}
        while missing := self._session.routing.consumers.keys() - found.keys():
            for name in missing:
                found[name] = await self._key_column(name, call, start, data)
            if not self._keying.local(self._session.routing):
                # Workers were asked. Anything may have happened meanwhile.
                end = await self._room_for(call, start, end)
                data = data[: end - start]
        self._drain()
        columns = self._admit(call, start, data, found)
        self._session.add(columns)
        if call.scope is None:
            self._drawn += len(columns.values)
        self._retries.start()
        return start + len(columns.values)

    def _encoded(self, call: _Call, start: int, end: int) -> list[bytes]:
        values = call.values[start:end]
        form = self._session.routing.format
        data = self._encoder.check(values) if call.encoded else self._encoder.encode(values, form)
        return within(data, _CHUNK_BYTES)

    async def _key_column(self, name: str, call: _Call, start: int, data: Sequence[bytes]) -> KeyColumn:
        """What one consumer says of the records from ``start`` on, whose encoded values are ``data``."""
        part = slice(start, start + len(data))
        routing = self._session.routing
        consumer = routing.consumers.get(name)
        if consumer is None:
            return KeyColumn([], unknown=True)  # gone while others were asked
        plain = None if call.encoded else call.values[part]
        return await self._keying.column(consumer, plain, data, _cut(call.keys, part), routing)

    def _admit(self, call: _Call, start: int, data: Sequence[bytes], found: Mapping[str, KeyColumn]) -> Columns:
        """The records that some consumer takes, up to the first that none takes; that one's error if it comes first."""
        core, routing = self._session.core, self._session.routing
        scope, _ = self._known(call, slice(start, start))
        present = {name: column for name, column in found.items() if name in routing.consumers}
        for column in present.values():
            column.cut(len(data))
        voters = [
            column
            for name, column in present.items()
            if (routing.log_only or not routing.consumers[name].log) and not core.unkeyed.blocked(name, scope)
        ]
        refused = first_refused(voters, strict=self._strict)
        if refused is not None and refused[0] == 0:
            raise refused[1]
        count = len(data) if refused is None else refused[0]
        for column in present.values():
            column.cut(count)
        scope, known = self._known(call, slice(start, start + count))
        keys = {name: column.keys for name, column in present.items()}
        why = {name: column.why for name, column in present.items() if len(column.keys) < count}
        return Columns(data[:count], call.timestamps[start : start + count], keys, scope, known, why)

    def _known(self, call: _Call, part: slice) -> tuple[IdScope, Sequence[int] | Sequence[bytes]]:
        """The ids of records, and within what they are unique."""
        if call.scope is None:
            return self._drawn_scope(), range(self._drawn, self._drawn + part.stop - part.start)
        if call.ids is not None:
            return call.scope, self._hasher.hash_all(call.ids[part])
        assert call.positions is not None
        return call.scope, call.positions[part]

    def _scope(
        self,
        ids: Sequence[UserId] | None,
        positions: Sequence[int] | None,
        partition: str,
        batch: BatchOf | None,
    ) -> IdScope | None:
        """Within what the records are known; None where the process counts them itself."""
        if ids is not None and positions is not None:
            raise UsageError("give ids or positions, not both")
        if self._session.delegate and ids is None:
            raise UsageError("an injector that sends on another's behalf needs ids of the records' own")
        if batch is not None:
            if ids is None:
                raise UsageError("a batch needs ids of the records' own")
            return IdScope(IdKind.BATCH, batch.query, batch.batch)
        if ids is not None:
            return _OPAQUE
        return None if positions is None else partition_scope(self.stream, self._source, partition)

    def _drawn_scope(self) -> IdScope:
        if self._drawn_within is None:
            self._drawn_within = drawn_scope(self.stream, self.process, self._session.sequencer)
        return self._drawn_within

    # Watermarks.

    @property
    def watermark(self) -> Timestamp:
        """What this process has published: no later record of it is older, but for late ones. Microseconds."""
        return Timestamp(self._session.core.publication.value)

    @property
    def unacked(self) -> int:
        """Records sent that some consumer has not ACKed yet."""
        self._drain()
        return self._session.core.unacked_records()

    @property
    def record_type(self) -> str:
        """The stream's declared type, as a person would write it; empty if nothing declares it."""
        return self._session.routing.record_type

    @property
    def accepted(self) -> int:
        """Records accepted so far, by all calls. Of a call that raises, these are in: the next one is at fault."""
        self._drain()
        return self._session.core.accepted

    @property
    def late(self) -> int:
        """Records sent behind the published watermark, ever."""
        self._drain()
        return self._session.core.late

    @property
    def sequencer(self) -> int:
        """This life of the process: what an Injector that sends on its behalf is given."""
        return self._session.sequencer

    async def advance(self, watermark: Timestamp | int) -> None:
        """Promise that no later record has a timestamp below ``watermark``; less than before says nothing new.

        What is published is that, or the oldest record that is not ACKed (4.5).
        """
        self._session.check()
        self._check_publishes()
        if not isinstance(watermark, int):
            raise UsageError(f"the watermark is a whole number of microseconds, not {watermark!r}")
        self._check_times((watermark,), "the watermark")
        if self._session.asleep:
            await self._session.wake()
        self._drain()
        self._session.core.publication.declare(watermark)
        self._session.publish()

    async def idle(self) -> None:
        """Nothing to send for now: the other processes' watermark goes on without this one's, once all is ACKed (G8).

        What this process has promised before counts: the stream's watermark reaches it, also if no other process is
        active. The next :meth:`send` or :meth:`advance` joins the others where they are by then: what is older is late.

        Raises:
            InjectorError: The injector has stopped.
        """
        self._session.check()
        self._check_publishes()
        await self.flush()
        self._drain()
        self._session.core.publication.idle()
        self._session.publish()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent so far is ACKed by every consumer: it took effect, and will not be forgotten.

        Args:
            timeout: Seconds to wait at most. None waits without end, and the log says what does not ACK.

        Raises:
            NotAckedError: Not everything was ACKed in time; it names the computation that does not ACK, and says why.
            InjectorError: The injector has stopped.
        """
        self._drain()
        target = self._session.core.accepted
        try:
            async with asyncio.timeout(timeout) as limit:
                await self._session.until(lambda: self._session.core.flushed(target))
        except TimeoutError as error:
            if not limit.expired():
                raise
            why = await self._monitor.explain()
            raise NotAckedError(self.stream, self.process, timeout or 0.0, why) from error

    @property
    def stall(self) -> str:
        """Which computation does not ACK, and why, if nothing was ACKed for ten seconds; else an empty text."""
        return self._monitor.text

    async def settle(self) -> None:
        """Wait until the low watermark authority has in its journal what is published now: no restart forgets it.

        Raises:
            InjectorError: The authority does not confirm it within ``patience`` seconds.
        """
        self._drain()
        await self._session.settle()

    async def finish(self, timeout: float | None = None) -> None:
        """The end of this process's part of the stream: waits for the ACKs, then publishes plus infinity. Final.

        Nothing is taken any more from the call on. If it fails or is cancelled, call it again. ``timeout`` and errors
        are those of :meth:`flush`.
        """
        self._check_publishes()
        if not self._session.core.publication.finishing:
            self._session.check()
            self._drain()
            self._session.core.publication.finish()
        await self.flush(timeout)
        await self._session.settle()

    def _check_publishes(self) -> None:
        if self._session.delegate:
            raise UsageError("an injector that sends on another's behalf leaves the watermark to that one")

    def acknowledged(self, partition: str = "") -> int | None:
        """Where the source may start ``partition`` again after a crash: every position below is ACKed by all.

        None if nothing of it was sent by this process.
        """
        self._drain()
        return self._session.core.acknowledged(partition_scope(self.stream, self._source, partition))


def _cut(keys: GivenKeys | None, part: slice) -> GivenKeys | None:
    if keys is None or not isinstance(keys, Mapping):
        return None if keys is None else keys[part]
    return {name: column[part] for name, column in keys.items()}
