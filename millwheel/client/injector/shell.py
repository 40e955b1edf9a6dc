"""The injector: sends records into the system from an asyncio program (section 5.2). It drives the injector's core.

    async with Injector("127.0.0.1:7433", "queries", process="reader-1") as injector:
        await injector.send(Query("britney spears"), timestamp=now)
        await injector.advance(now - seconds(5))

The injector sends every record to every consumer of its stream until the consumer ACKs it. The process or its successor
may send a record again. :mod:`millwheel.client.injector.ids` defines when two records count as the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from millwheel.client.control import DEFAULT_ADDRESS
from millwheel.client.injector.asking import RecordAsker
from millwheel.client.injector.buffer import SendBuffer
from millwheel.client.injector.checking import DeclaredTypes
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
from millwheel.client.injector.likelihood import TimeCheck
from millwheel.client.injector.messages import Columns, within
from millwheel.client.injector.retries import KeyRetries
from millwheel.client.injector.session import InjectorSession
from millwheel.client.injector.settings import BatchOf, InjectorSettings
from millwheel.client.injector.stalls import StallMonitor
from millwheel.client.injector.turns import SendTurns
from millwheel.model.stream_names import full_name, is_valid
from millwheel.model.time import Timestamp
from millwheel.rpc.clock import wall_now
from millwheel.sdk.errors import KeyExtractionError, TooLargeError, UsageError
from millwheel.sdk.topology import Topology

__all__ = ["Injector"]

_CHUNK_RECORDS: Final = 1_000
_TURN_RECORDS: Final = 256  # single records that are sent before other tasks may run
_CHUNK_BYTES: Final = 1 << 20
_OPAQUE: Final = IdScope(IdKind.OPAQUE)


@dataclass(frozen=True, slots=True)
class _SendCall:
    """A call of send_many. ``scope``: None if the process numbers the records. ``looks``: how many looks had begun."""

    values: Sequence[Any]
    timestamps: Sequence[int]
    ids: Sequence[UserId] | None
    positions: Sequence[int] | None
    scope: IdScope | None
    keys: GivenKeys | None
    encoded: bool
    looks: int


class Injector:
    """One process of the injector of ``stream``. Use it with ``async with``, from one event loop.

    Unless an exception ends the ``async with`` block, its end waits for the ACKs of all records. The process then still
    holds the low watermark at its last value. Call :meth:`finish` if it never sends again, or :meth:`idle` for a pause.
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
        """Create an injector. Nothing is sent before :meth:`open`.

        Args:
            address: The server, as host or host:port; several with commas between them.
            stream: The stream to send to: its full name, or a short name in ``topology`` or unique in the cluster.
            process: The name of this process in the stream. A second process of that name ends the first.
            topology: A topology that reads the stream. Its types, codecs and key functions are then used.
            source: The namespace in which ids, partitions and positions are unique. The default is ``process``.
            sequencer: The sequencer of another Injector with this process name, on whose behalf this one sends. Tasks
                of a Spark job use this. Such an injector needs ids for its records and publishes no watermark.
            settings: Time limits, checks and bounds.

        Raises:
            UsageError: A name is not valid, or ``topology`` does not read the stream.
        """
        for what, name in (("process", process), ("source", source or process)):
            if not name or "/" in name:
                raise UsageError(f"an injector's {what} is a name without a slash, not {name!r}")
        if not is_valid(stream):
            raise UsageError(f"an injector's stream is STREAM or TOPOLOGY/STREAM, not {stream!r}")
        self.process = process
        self._address, self._topology, self._sequencer = address, topology, sequencer or 0
        self._settings = settings = settings or InjectorSettings()
        self._source = source or process
        self._turns = SendTurns()
        """Held during a request to a worker or a master about records, so that later records do not overtake them."""
        self._buffer = SendBuffer()
        self._opened = False
        self._drawn, self._turn = 0, _TURN_RECORDS
        self._drawn_within: IdScope | None = None
        self._strict = settings.strict_keys
        self._set_stream(stream if topology is None else full_name(topology.name, stream))

    def _set_stream(self, stream: str) -> None:
        """Create all parts that know the stream's name. Ids depend on it, so :meth:`open` finds the full name first."""
        settings, process = self._settings, self.process
        self.stream = stream
        self._encoder = RecordEncoder(stream, self._topology, verify=settings.check_types)
        self._types = DeclaredTypes(stream, enabled=settings.check_types)
        self._asker = RecordAsker(stream, process)
        self._keying = RecordKeys(self._encoder, self._asker.ask, check=settings.check_at_worker)
        self._hasher = IdHasher(stream, self._source)
        limits, patience = settings.limits, settings.patience
        self._session = InjectorSession(self._address, stream, process, self._sequencer, limits, patience, self._drain)
        self._monitor = StallMonitor(self._session, settings.explain)
        self._retries = KeyRetries(self._session, self._keying, self._monitor.named)
        self._times = TimeCheck(stream, wall_now, enabled=not settings.any_timestamp)

    # Life cycle.

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
        """Allocate a sequencer, announce the process, and fetch the routing. An injector is opened once.

        Raises:
            RequestError: The cluster refuses, or does not answer within ``patience`` seconds.
            InjectorError: The stream has no low watermark authority yet, or a newer process has this name.
        """
        if self._opened:
            raise UsageError("an injector is opened once: make another one")
        self._opened = True
        stream = await self._session.full_name()
        if stream != self.stream:
            await self._session.close()
            self._set_stream(stream)
        await self._session.open()
        self._monitor.start()

    async def close(self, timeout: float | None = None) -> None:
        """Close all connections. Un-ACKed records may or may not be delivered: send them again under the same ids.

        Args:
            timeout: Seconds to wait for the ACKs of everything that was sent. None does not wait.

        Raises:
            NotAckedError: Not everything was ACKed in time. The injector is closed nevertheless.
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
        id: UserId | None = None,  # shadows the builtin, because it is the usual word
        position: int | None = None,
        partition: str = "",
    ) -> None:
        """Send one record. Returns when the record is accepted, which may need a wait for room.

        :meth:`flush` waits for ACKs. The arguments and errors are those of :meth:`send_many`, for one record.
        """
        self._session.check()
        ids = None if id is None else (id,)
        positions = None if position is None else (checked_position(position),)
        self._times.check((timestamp,), "a record's timestamp")
        scope = self._scope(ids, positions, partition, None)
        call = _SendCall((value,), (timestamp,), ids, positions, scope, None, False, self._session.looks.begun)
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
            self._turn = _TURN_RECORDS
            await asyncio.sleep(0)

    def _fits(self, scope: IdScope | None, timestamp: int) -> bool:
        """Whether a record can be added to the buffer at once, without waiting for anything."""
        core, buffer = self._session.core, self._buffer
        full = len(buffer) >= _CHUNK_RECORDS or buffer.size >= _CHUNK_BYTES
        if buffer and (full or buffer.scope != (scope or self._drawn_scope())):
            self._drain()
        if self._turns.busy or not self._keying.local(self._session.routing):
            return False
        return core.room() > len(buffer) and not self._session.asleep and not core.throttled(timestamp)

    def _columns_of_one(self, call: _SendCall) -> Columns | None:
        """Encode a single record for the core. None if its type is wrong, or a consumer has no key for it."""
        routing = self._session.routing
        data = self._encoder.encode(call.values, routing.format)
        if self._types.first_refused(data, routing) is not None:
            return None
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
        """Pass the buffered records to the core. A failed core drops them, and every later call raises the failure."""
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
        """Send records, given as columns of equal length. Returns when all are accepted.

        Records are accepted in order, up to 1,000 at a time. If the call raises, :attr:`accepted` counts earlier ones.

        Args:
            values: The records.
            timestamps: Microseconds since the epoch.
            ids: The user's ids of the records, unique within the source, or within ``batch`` if that is given. Without
                ``ids`` and ``positions`` each record counts as new, even if it was sent before.
            positions: Positions of the records in ``partition``. They rise over all calls of the source's lifetime.
            partition: The partition of the source that ``positions`` belong to.
            batch: The batch of a query in which ``ids`` are unique.
            keys: The keys of the records, by consuming computation. By default the keys are extracted from the values.
            encoded: Whether the values are already encoded.

        Raises:
            ValueEncodeError: A value is not of the stream's type.
            KeyExtractionError: A value has no key.
            TooLargeError: A value or a key is too large.
            UsageError: The columns do not fit together, or positions do not rise.
            InjectorError: The injector has stopped; the error says why.
        """
        self._session.check()
        count = len(values)
        for what, column in (("timestamps", timestamps), ("ids", ids), ("positions", positions)):
            if column is not None and len(column) != count:
                raise UsageError(f"{count} values, but {len(column)} {what}")
        for name, given in keys.items() if isinstance(keys, Mapping) else [("every consumer", keys)]:
            if given is not None and len(given) != count:
                raise UsageError(f"{count} values, but {len(given)} keys for {name}")
        self._times.check(timestamps, "a record's timestamp")
        scope = self._scope(ids, positions, partition, batch)
        looks = self._session.looks.begun
        await self._send_columns(_SendCall(values, timestamps, ids, positions, scope, keys, encoded, looks))

    async def _send_columns(self, call: _SendCall) -> None:
        self._drain()
        start = 0
        if not self._turns.busy and self._keying.local(self._session.routing):
            start = await self._send_chunks(call, start, in_turn=False)
        if start < len(call.values):
            async with self._turns:
                self._session.check()
                await self._send_chunks(call, start, in_turn=True)

    async def _send_chunks(self, call: _SendCall, start: int, *, in_turn: bool) -> int:
        """Pass records from ``start`` on to the core. Returns the index after the last accepted one.

        Invariant: a call without the turn waits only for room. So it returns before the first record that needs a
        request. No ``await`` may follow before the caller queues for its turn. Otherwise a later call could overtake.
        """
        count = len(call.values)
        while start < count:
            end = await self._room_for(call, start, min(start + _CHUNK_RECORDS, count))
            if not in_turn and not self._keying.local(self._session.routing):
                break
            accepted = await self._accept(call, start, end, in_turn=in_turn)
            if accepted == start and not in_turn:
                break
            start = accepted
            if start < count:
                await asyncio.sleep(0)
        return start

    async def _room_for(self, call: _SendCall, start: int, end: int) -> int:
        """Wait until some of these records may be accepted. Returns the index after the last of them."""
        while True:
            await self._session.admission(max(call.timestamps[start:end]))
            room = self._session.core.room()
            if end - start <= room:
                return end
            end = start + max(1, room)

    async def _accept(self, call: _SendCall, start: int, end: int, *, in_turn: bool) -> int:
        """Pass records to the core, fewer if they are large. Returns the index after the last one that was passed.

        Passes none if one has a wrong type and the caller lacks the turn, or if the first one must be checked again.
        """
        # Records that other tasks buffered while this one waited come first.
        self._drain()
        data = self._encoded(call, start, end)
        refused = self._types.first_refused(data, self._session.routing)
        if refused is not None and not in_turn:
            return start
        if refused is not None and refused[0] == 0:
            await self._check_again(call, start)
            return start
        data = data if refused is None else data[: refused[0]]
        end = start + len(data)
        found: dict[str, KeyColumn] = {}
        while missing := self._session.routing.consumers.keys() - found.keys():
            for name in missing:
                found[name] = await self._key_column(name, call, start, data)
            if not self._keying.local(self._session.routing):
                # The requests to workers took time, so the state may have changed meanwhile.
                end = await self._room_for(call, start, end)
                data = data[: end - start]
        self._drain()
        columns = self._admit(call, start, data, found)
        self._session.add(columns)
        if call.scope is None:
            self._drawn += len(columns.values)
        self._retries.start()
        return start + len(columns.values)

    async def _check_again(self, call: _SendCall, start: int) -> None:
        """Raise if a record is also wrong by a master's current routing. Its topology may have just been updated."""
        await self._session.looks.after(call.looks)
        self._session.check()
        refused = self._types.first_refused(self._encoded(call, start, start + 1), self._session.routing)
        if refused is not None:
            raise refused[1]

    def _encoded(self, call: _SendCall, start: int, end: int) -> list[bytes]:
        values = call.values[start:end]
        form = self._session.routing.format
        data = self._encoder.check(values) if call.encoded else self._encoder.encode(values, form)
        return within(data, _CHUNK_BYTES)

    async def _key_column(self, name: str, call: _SendCall, start: int, data: Sequence[bytes]) -> KeyColumn:
        """One consumer's keys and problems for the records from ``start`` on. ``data``: their encoded values."""
        part = slice(start, start + len(data))
        routing = self._session.routing
        consumer = routing.consumers.get(name)
        if consumer is None:
            return KeyColumn([], unknown=True)  # the consumer left during the requests
        plain = None if call.encoded else call.values[part]
        return await self._keying.column(consumer, plain, data, _cut(call.keys, part), routing)

    def _admit(self, call: _SendCall, start: int, data: Sequence[bytes], found: Mapping[str, KeyColumn]) -> Columns:
        """The records before the first one that no consumer takes. If there are none, that record's error is raised."""
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

    def _known(self, call: _SendCall, part: slice) -> tuple[IdScope, Sequence[int] | Sequence[bytes]]:
        """The ids of the records, and the scope within which these ids are unique."""
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
        """The scope within which the records' ids are unique. None if the process numbers the records itself."""
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

    @property
    def watermark(self) -> Timestamp:
        """The published watermark, in microseconds. A later record that is older is late."""
        return Timestamp(self._session.core.publication.value)

    @property
    def unacked(self) -> int:
        """Records that some consumer has not ACKed yet, each counted once."""
        self._drain()
        return self._session.core.unacked_records()

    @property
    def record_type(self) -> str:
        """The stream's declared type as readable text. Empty if no topology declares a type."""
        return self._session.routing.record_type

    @property
    def accepted(self) -> int:
        """Records accepted so far, by all calls. After a call has raised, the next record is the faulty one."""
        self._drain()
        return self._session.core.accepted

    @property
    def late(self) -> int:
        """Records sent behind the published watermark so far."""
        self._drain()
        return self._session.core.late

    @property
    def sequencer(self) -> int:
        """The sequencer of this incarnation of the process. Pass it to an Injector that sends on its behalf."""
        return self._session.sequencer

    async def advance(self, watermark: Timestamp | int) -> None:
        """Promise that no later record has a timestamp below ``watermark``.

        A promise never falls: a lower value is ignored. The published watermark is the smaller of the promise and
        the oldest un-ACKed record (4.5).

        Args:
            watermark: Microseconds since the epoch.

        Raises:
            UsageError: ``watermark`` is probably not in microseconds.
            InjectorError: The injector has stopped.
        """
        self._session.check()
        self._check_publishes()
        if not isinstance(watermark, int):
            raise UsageError(f"the watermark is a whole number of microseconds, not {watermark!r}")
        self._times.check((watermark,), "the watermark")
        if self._session.asleep:
            await self._session.wake()
        self._drain()
        self._session.declare(watermark)

    async def idle(self) -> None:
        """Declare that there is nothing to send for now (G8).

        Waits until every record is ACKed. Then the stream's low watermark advances without this process. It reaches
        this process's promise even if no other process is active. The next :meth:`send` or :meth:`advance` takes part
        again, from the low watermark of that time: older records are late.

        Raises:
            InjectorError: The injector has stopped.
        """
        self._session.check()
        self._check_publishes()
        await self.flush()
        self._drain()
        self._session.idle()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every consumer has ACKed every record sent so far. Their effects are then durable.

        Args:
            timeout: Seconds to wait at most. None waits without limit, and the log names the consumers without ACKs.

        Raises:
            NotAckedError: Not everything was ACKed in time. The error names the computation without ACKs, and why.
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
        """Which computation does not ACK, and why. Empty unless ACKs are missing for ten seconds or more."""
        return self._monitor.text

    async def settle(self) -> None:
        """Wait until the low watermark authority has journaled the published watermark, so that it survives restarts.

        Raises:
            InjectorError: The authority does not confirm it within ``patience`` seconds.
        """
        self._drain()
        await self._session.settle()

    async def finish(self, timeout: float | None = None) -> None:
        """End this process's part of the stream: wait for the ACKs, then publish plus infinity. This is final.

        The injector accepts no records from this call on. If the call fails or is cancelled, call it again.

        Args:
            timeout: Seconds to wait at most. None waits without limit.

        Raises:
            InjectorError: As :meth:`flush` and :meth:`settle`.
        """
        self._check_publishes()
        if not self._session.core.publication.finishing:
            self._session.check()
            self._drain()
            self._session.finish()
        await self.flush(timeout)
        await self._session.settle()

    def _check_publishes(self) -> None:
        if self._session.delegate:
            raise UsageError("an injector that sends on another's behalf leaves the watermark to that one")

    def acknowledged(self, partition: str = "") -> int | None:
        """The position from which the source may restart ``partition`` after a crash: all lower positions are ACKed.

        None if this process sent no record of the partition.
        """
        self._drain()
        return self._session.core.acknowledged(partition_scope(self.stream, self._source, partition))


def _cut(keys: GivenKeys | None, part: slice) -> GivenKeys | None:
    if keys is None or not isinstance(keys, Mapping):
        return None if keys is None else keys[part]
    return {name: column[part] for name, column in keys.items()}
