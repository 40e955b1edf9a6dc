"""The way of records that need a wait, a request or an error before they are accepted (section 5.2).

All records of :meth:`Injector.send_many` take it, and those of :meth:`Injector.send` that cannot be accepted at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final

from millwheel.client.injector.declared_types import DeclaredTypes
from millwheel.client.injector.encoding import GivenKeys, RecordEncoder
from millwheel.client.injector.errors import RefusedRecordError, WrongIdOrKeyError
from millwheel.client.injector.ids import BatchOf, IdScope, RecordIds, UserId, first_wrong
from millwheel.client.injector.messages import KeyedRecords, within
from millwheel.client.injector.record_keys import KeyColumn, RecordKeys, first_refused
from millwheel.client.injector.record_requests import RecordAsker
from millwheel.client.injector.retries import KeyRetries
from millwheel.client.injector.room_waits import RoomCause, RoomWaits
from millwheel.client.injector.session import InjectorSession
from millwheel.client.injector.settings import InjectorSettings
from millwheel.client.injector.unacked import SentRecords
from millwheel.model.incarnation import IncarnationId
from millwheel.sdk.errors import KeyExtractionError, MillwheelError, TooLargeError, ValueEncodeError
from millwheel.sdk.topology import TopologyGraph

__all__ = ["CHUNK_BYTES", "CHUNK_RECORDS", "RecordAdmission", "SendTurns"]

CHUNK_RECORDS: Final = 1_000
"""The most records that are passed to the core at a time."""
CHUNK_BYTES: Final = 1 << 20
"""The most bytes of values that are passed to the core at a time. A larger record is passed alone."""


@dataclass(frozen=True, slots=True)
class _SendCall:
    """A call to send records.

    ``scope``: in which their ids are unique. ``fetches``: how many fetches of the routing had begun. ``refused`` is
    called with the index of a refused record, and its error, before that is raised.
    """

    values: Sequence[Any]
    timestamps: Sequence[int]
    ids: Sequence[UserId] | None
    positions: Sequence[int] | None
    scope: IdScope
    keys: GivenKeys | None
    encoded: bool
    fetches: int
    refused: Callable[[int, MillwheelError], object] | None = None


class SendTurns:
    """A lock that calls get in the order in which they request it. Use it with ``async with``.

    A call may send without the lock only if ``calls`` is 0. ``asyncio.Lock.locked()`` is not enough for this check. It
    is False between two holders, so the call could overtake calls that wait.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self.calls = 0
        """How many calls hold the lock or wait for it."""

    async def __aenter__(self) -> None:
        self.calls += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self.calls -= 1
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.calls -= 1
        self._lock.release()


class RecordAdmission:
    """Waits for room, checks records, finds their keys, and passes them to the core in the order of the calls.

    Attributes:
        encoder: Encodes the records.
        types: The declared types that records must have.
        keying: Finds the keys of records at the consumers.
        ids: The ids of the records.
        waits: How long calls have waited for room.
        turns: Held during a request to a worker or a master about records, so that later records do not overtake them.
    """

    def __init__(
        self,
        session: InjectorSession,
        ids: RecordIds,
        topology: TopologyGraph | None,
        settings: InjectorSettings,
        named: Callable[[IncarnationId], str],
        drain: Callable[[], None],
    ) -> None:
        """Create an object.

        Args:
            session: The session.
            ids: The ids of the records.
            topology: A topology that reads the stream.
            settings: The injector's settings.
            named: Returns a consumer's name for users.
            drain: Passes earlier records to the core.

        Raises:
            UsageError: ``topology`` does not read the stream.
        """
        stream = session.core.stream
        self.encoder = RecordEncoder(stream, topology, verify=settings.check_types)
        self.types = DeclaredTypes(stream, enabled=settings.check_types)
        self._asker = RecordAsker(stream, session.core.process)
        self.keying = RecordKeys(self.encoder, self._asker.ask, check=settings.check_at_worker)
        self.ids = ids
        self.waits = RoomWaits()
        self.turns = SendTurns()
        self._session = session
        self._retries = KeyRetries(session, self.keying, named)
        self.drain = drain
        self._strict = settings.strict_keys

    async def send(
        self,
        values: Sequence[Any],
        timestamps: Sequence[int],
        ids: Sequence[UserId] | None = None,
        positions: Sequence[int] | None = None,
        partition: str = "",
        batch: BatchOf | None = None,
        keys: GivenKeys | None = None,
        *,
        encoded: bool = False,
        refused: Callable[[int, MillwheelError], object] | None = None,
    ) -> None:
        """Send records, given as columns of equal length. See :meth:`Injector.send_many`.

        ``refused`` is called with the index of a refused record, and its error, before that is raised.
        """
        scope = self.ids.scope(ids, positions, partition, batch)
        fetches = self._session.follower.fetches.begun
        call = _SendCall(values, timestamps, ids, positions, scope, keys, encoded, fetches, refused)
        self.drain()
        start = 0
        if not self.turns.calls and self.keying.local(self._session.routing):
            start = await self._send_chunks(call, start, in_turn=False)
        if start < len(values):
            async with self.turns:
                self._session.check()
                await self._send_chunks(call, start, in_turn=True)

    async def stop(self) -> None:
        """Stop to request the keys of waiting records."""
        await self._retries.close()

    async def close(self) -> None:
        """Close the connections to workers."""
        await self._asker.close()

    async def _send_chunks(self, call: _SendCall, start: int, *, in_turn: bool) -> int:
        """Pass records from ``start`` on to the core. Returns the index after the last accepted one.

        Invariant: a call without the turn waits only for room. So it returns before the first record that needs a
        request. No ``await`` may follow before the caller queues for its turn. Otherwise a later call could overtake.
        """
        count = len(call.values)
        while start < count:
            end = await self._room_for(call, start, min(start + CHUNK_RECORDS, count))
            if not in_turn and not self.keying.local(self._session.routing):
                break
            try:
                accepted = await self._accept(call, start, end, in_turn=in_turn)
            except (ValueEncodeError, KeyExtractionError, TooLargeError, WrongIdOrKeyError) as error:
                if call.refused is not None:
                    call.refused(start, error)
                raise
            if accepted == start and not in_turn:
                break
            start = accepted
            if start < count:
                await asyncio.sleep(0)
        return start

    async def _room_for(self, call: _SendCall, start: int, end: int) -> int:
        """Wait until some of these records may be accepted. Returns the index after the last of them."""
        while True:
            await self.wait_for_room(max(call.timestamps[start:end]))
            room = self._session.core.room()
            if end - start <= room:
                return end
            end = start + max(1, room)

    async def wait_for_room(self, newest: int, count: int = 1) -> None:
        """Wait until records up to timestamp ``newest`` may be accepted: not idle, has room, not throttled.

        ``count``: how many of them are accepted together.
        """
        session, core = self._session, self._session.core
        # During a wait for room, another task may have declared the process idle. So all conditions are checked again.
        while not self._takes(count, newest):
            if session.asleep:
                await session.membership.wake()
            elif not core.fits(count):
                with self.waits.waiting(RoomCause.WINDOW):
                    await session.until(lambda: core.refills(count), newest=newest)
            else:
                with self.waits.waiting(RoomCause.SKEW):
                    await session.until(lambda: not core.throttled(newest), newest=newest)

    def _takes(self, count: int, newest: int) -> bool:
        """Whether so many records may be accepted now."""
        core = self._session.core
        return core.fits(count) and not self._session.asleep and not core.throttled(newest)

    async def _accept(self, call: _SendCall, start: int, end: int, *, in_turn: bool) -> int:
        """Pass records to the core, fewer if they are large. Returns the index after the last one that was passed.

        Passes none if one has a wrong type and the caller lacks the turn, or if the first one must be checked again.
        Invariant: an error of a record is raised only if that is the first one, so the caller can name it.
        """
        # Records that other tasks buffered while this one waited come first.
        self.drain()
        data = self._encoded(call, start, end)
        refused = self.types.first_refused(data, self._session.routing)
        if refused is not None and not in_turn:
            return start
        if refused is not None and refused[0] == 0:
            await self._check_again(call, start)
            return start
        data = data if refused is None else data[: refused[0]]
        end = start + len(data)
        found: dict[IncarnationId, KeyColumn] = {}
        shared: dict[tuple[str, ...], Sequence[bytes]] = {}
        while missing := self._session.routing.consumers.keys() - found.keys():
            for name in missing:
                try:
                    found[name] = await self._key_column(name, call, start, data, shared)
                except (TooLargeError, WrongIdOrKeyError):  # a key that was given. Those before it are passed first
                    if len(data) == 1:
                        raise
                    return await self._accept(call, start, start + len(data) // 2, in_turn=in_turn)
            if not self.keying.local(self._session.routing):
                # The requests to workers took time, so the state may have changed meanwhile.
                end = await self._room_for(call, start, end)
                data = data[: end - start]
        self.drain()
        try:
            columns = self._admit(call, start, data, found)
        except WrongIdOrKeyError:  # an id. The records before it are passed first
            if len(data) == 1:
                raise
            return await self._accept(call, start, start + len(data) // 2, in_turn=in_turn)
        self._session.step(columns)
        if call.ids is None and call.positions is None:
            self.ids.next += len(columns.values)
        self._retries.start()
        return start + len(columns.values)

    async def _check_again(self, call: _SendCall, start: int) -> None:
        """Raise if a record is also wrong by a master's current routing. Its topology may have just been updated."""
        await self._session.follower.fetches.after(call.fetches)
        self._session.check()
        refused = self.types.first_refused(self._encoded(call, start, start + 1), self._session.routing)
        if refused is not None:
            raise refused[1]

    def _encoded(self, call: _SendCall, start: int, end: int) -> list[bytes]:
        """The encoded records from ``start`` on, as many as go at once. It raises only if the first one has no form."""
        values = call.values[start:end]
        form = self._session.routing.format
        try:
            data = self.encoder.check(values) if call.encoded else self.encoder.encode(values, form)
        except (ValueEncodeError, TooLargeError):
            if end - start == 1:
                raise
            return self._encoded(call, start, (start + end) // 2)
        return within(data, CHUNK_BYTES)

    async def _key_column(
        self,
        name: IncarnationId,
        call: _SendCall,
        start: int,
        data: Sequence[bytes],
        shared: dict[tuple[str, ...], Sequence[bytes]],
    ) -> KeyColumn:
        """One consumer's keys and problems for the records from ``start`` on.

        ``data``: their encoded values. ``shared``: the keys by fields that other consumers of these records have.
        """
        part = slice(start, start + len(data))
        routing = self._session.routing
        consumer = routing.consumers.get(name)
        if consumer is None:
            return KeyColumn([], unknown=True)  # the consumer left during the requests
        fields = self.keying.by_fields(consumer, routing) if call.keys is None else ()
        if (known := shared.get(fields)) is not None:
            return KeyColumn(list(known))
        plain = None if call.encoded else call.values[part]
        column = await self.keying.column(consumer, plain, data, _cut(call.keys, part), routing)
        if fields and not column.problems and len(column.keys) == len(data):
            shared[fields] = tuple(column.keys)
        return column

    def _admit(
        self, call: _SendCall, start: int, data: Sequence[bytes], found: Mapping[IncarnationId, KeyColumn]
    ) -> KeyedRecords:
        """The records before the first one that no consumer takes. If there are none, that record's error is raised."""
        present = self._present(found)
        for column in present.values():
            column.cut(len(data))
        refused = self._first_refused(present, call.scope)
        if refused is not None and refused[0] == 0:
            raise refused[1]
        count = len(data) if refused is None else refused[0]
        return self._columns(call, start, data[:count], present)

    def _present(self, found: Mapping[IncarnationId, KeyColumn]) -> dict[IncarnationId, KeyColumn]:
        """The keys at those consumers that the stream still has."""
        consumers = self._session.routing.consumers
        return {name: column for name, column in found.items() if name in consumers}

    def _first_refused(
        self, present: Mapping[IncarnationId, KeyColumn], scope: IdScope
    ) -> tuple[int, MillwheelError] | None:
        """The index of the first record that no consumer takes, and why. None if there is none."""
        core, routing = self._session.core, self._session.routing
        voters = [
            column
            for name, column in present.items()
            if (routing.log_only or not routing.consumers[name].log) and not core.unkeyed.blocked(name, scope)
        ]
        return first_refused(voters, strict=self._strict)

    def _columns(
        self, call: _SendCall, start: int, data: Sequence[bytes], present: Mapping[IncarnationId, KeyColumn]
    ) -> KeyedRecords:
        """The records from ``start`` on, whose encoded values are ``data``, for the core."""
        count = len(data)
        for column in present.values():
            column.cut(count)
        ids = self.ids.delivery_ids(call.ids, call.positions, slice(start, start + count))
        keys = {name: column.keys for name, column in present.items()}
        why = {name: column.why for name, column in present.items() if len(column.keys) < count}
        return KeyedRecords(data, call.timestamps[start : start + count], keys, call.scope, ids, why)

    # Records that are accepted together.

    async def send_together(
        self,
        values: Sequence[Any],
        timestamps: Sequence[int],
        ids: Sequence[UserId] | None,
        check: Callable[[], None],
        unacked: Callable[[], Mapping[IdScope, AbstractSet[Any]]],
    ) -> SentRecords:
        """Send records: all of them, or none. See :meth:`Injector.send_together`. There is at least one.

        Invariant: nothing is awaited between the last look at the routing and the acceptance. So no other routing, and
        no call that waited longer, can come between, and the core accepts all records in one step.

        Args:
            values: The records.
            timestamps: Their times, in microseconds.
            ids: The user's ids of the records, if they have some.
            check: Called right before the records are accepted. It may raise.
            unacked: Returns the ids of un-ACKed records. A record whose earlier copy is among them is not sent again:
                repetitions of a record that is never ACKed would fill the window.
        """
        scope = self.ids.scope(ids, None, "", None)
        call = _SendCall(values, timestamps, ids, None, scope, None, False, self._session.follower.fetches.begun)
        newest, routing = max(timestamps), None
        while routing is not self._session.routing or not self._takes(len(values), newest):
            await self.wait_for_room(newest, len(values))
            routing = self._session.routing
            data = await self._encoded_together(call)
            found = {name: await self._whole_column(name, call, data) for name in routing.consumers}
        self._session.check()
        check()
        self.drain()
        present = self._present(found)
        refused = self._first_refused(present, scope)
        if refused is not None:
            raise RefusedRecordError(*refused)
        try:
            columns = self._columns(call, 0, data, present)
        except WrongIdOrKeyError as error:
            if ids is not None and len(ids) > 1:
                error.args = (f"record {first_wrong(ids)}: {error}",)
            raise
        known = unacked().get(scope, ()) if ids is not None else ()
        self._session.step(_without(columns, known) if known else columns)
        self.ids.next += len(values) if ids is None else 0
        self._retries.start()
        return SentRecords(scope, frozenset(columns.ids), self._session.core.accepted)

    async def _encoded_together(self, call: _SendCall) -> list[bytes]:
        """The encoded records. RefusedRecordError names the first one that is not of the stream's type."""
        encode = self.encoder.value_encoder(self._session.routing.format)
        data: list[bytes] = []
        for index, value in enumerate(call.values):
            try:
                data += self.encoder.check([encode(value)])
            except MillwheelError as error:
                raise RefusedRecordError(index, error) from error
        refused = self.types.first_refused(data, self._session.routing)
        if refused is not None:
            # As in _check_again: the topology may have just been updated.
            await self._session.follower.fetches.after(call.fetches)
            self._session.check()
            refused = self.types.first_refused(data, self._session.routing)
        if refused is not None:
            raise RefusedRecordError(*refused)
        return data

    async def _whole_column(self, name: IncarnationId, call: _SendCall, data: list[bytes]) -> KeyColumn:
        """One consumer's keys and problems for all records of a call, asked for in parts."""
        whole, start = KeyColumn([]), 0
        while start < len(data):
            part = within(data[start : start + CHUNK_RECORDS], CHUNK_BYTES)
            column = await self._key_column(name, call, start, part, {})
            if len(whole.keys) == start:  # none of the records before is without a key
                whole.keys += column.keys
                whole.why = column.why
            whole.problems |= {start + at: error for at, error in column.problems.items()}
            whole.unknown |= column.unknown
            start += len(part)
        return whole


def _cut(keys: GivenKeys | None, part: slice) -> GivenKeys | None:
    if keys is None or not isinstance(keys, Mapping):
        return None if keys is None else keys[part]
    return {name: column[part] for name, column in keys.items()}


def _without(columns: KeyedRecords, known: Collection[Any]) -> KeyedRecords:
    """The records whose ids are not among ``known``."""
    rows = [row for row, id_ in enumerate(columns.ids) if id_ not in known]
    if len(rows) == len(columns.ids):
        return columns
    return replace(
        columns,
        values=[columns.values[row] for row in rows],
        timestamps=[columns.timestamps[row] for row in rows],
        ids=[columns.ids[row] for row in rows],  # type: ignore[arg-type]
        # A column of keys may end early.
        keys={name: [column[row] for row in rows if row < len(column)] for name, column in columns.keys.items()},
    )
