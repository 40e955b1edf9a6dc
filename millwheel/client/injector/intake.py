"""Takes the records of :meth:`Injector.send`, and gathers them until the next turn of the event loop (section 5.2).

A record that needs a wait or a request, or that has a fault, is left to
:class:`~millwheel.client.injector.admission.RecordAdmission`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import index
from typing import Any, Final

from millwheel.client.injector.admission import CHUNK_BYTES, CHUNK_RECORDS, RecordAdmission
from millwheel.client.injector.ids import IdKind, IdScope, UserId, checked_position, falling
from millwheel.client.injector.likelihood import TimeCheck
from millwheel.client.injector.messages import KeyedRecords
from millwheel.client.injector.routing import StreamRouting
from millwheel.client.injector.session import InjectorSession
from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_VALUE_BYTES
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.sdk.errors import KeyExtractionError, TooLargeError, UsageError

__all__ = ["RecordIntake", "SendBuffer"]

_MAX_TYPES: Final = 1_000
"""The most types of values whose extractors are kept. A program may make types as long as it runs."""


class SendBuffer:
    """Records of one scope, with their keys at the consumers of one routing.

    The buffer makes the checks that the core would make, so that the error reaches the call that sent the record.
    """

    __slots__ = ("_data", "_ids", "_keys", "_timestamps", "count", "scope", "size")

    def __init__(self) -> None:
        self.scope: IdScope | None = None
        self.count = 0
        """The number of records."""
        self.size = 0
        """The total size of the values, in bytes."""
        self._data: list[bytes] = []
        self._timestamps: list[int] = []
        self._ids: list[Any] = []
        self._keys: dict[IncarnationId, list[bytes]] = {}

    def add(
        self, scope: IdScope, id_: int | bytes, data: bytes, timestamp: int, keys: dict[IncarnationId, bytes]
    ) -> None:
        """Append a record. Buffered records have the same scope and were keyed by the same routing.

        Raises:
            UsageError: A position does not rise.
        """
        if self.count:
            if scope.kind is IdKind.POSITION and id_ <= self._ids[-1]:
                raise falling(scope, id_, self._ids[-1])
            for name, key in keys.items():
                self._keys[name].append(key)
        else:
            self.scope = scope
            self._keys = {name: [key] for name, key in keys.items()}
        self.count += 1
        self.size += len(data)
        self._data.append(data)
        self._timestamps.append(timestamp)
        self._ids.append(id_)

    def take(self) -> KeyedRecords:
        """Remove and return all records. The buffer must not be empty."""
        assert self.scope is not None
        columns = KeyedRecords(self._data, self._timestamps, self._keys, self.scope, self._ids)
        self._data, self._timestamps, self._ids, self._keys = [], [], [], {}
        self.count = self.size = 0
        return columns


class _RoutedEncoding:
    """How the records of one routing are encoded, checked and keyed.

    Attributes:
        encode: The encoder of a value.
        decode: Raises ValueError or TypeError for an encoded value of a wrong type. None: no type is checked.
        local: Whether no request to a worker is needed.
    """

    __slots__ = ("_admission", "_extractors", "decode", "encode", "local", "routing")

    def __init__(self, admission: RecordAdmission, routing: StreamRouting) -> None:
        encoder = admission.encoder
        self.routing = routing
        self.encode = encoder.value_encoder(routing.format)
        self.decode = admission.types.decoder(routing)
        self.local = admission.keying.local(routing)
        self._admission = admission
        self._extractors: dict[type, dict[IncarnationId, Callable[[Any], bytes]]] = {}

    def keys(self, value: Any) -> dict[IncarnationId, bytes]:
        """The key of a value at each consumer. KeyExtractionError or TooLargeError if it has none."""
        extractors = self._extractors.get(type(value))
        if extractors is None:
            if len(self._extractors) >= _MAX_TYPES:
                self._extractors.clear()
            make, kind = self._admission.encoder.extractor, type(value)
            extractors = {name: make(consumer, kind) for name, consumer in self.routing.consumers.items()}
            self._extractors[kind] = extractors
        return {name: extract(value) for name, extract in extractors.items()}


class RecordIntake:
    """The records that were sent one by one and are not in the core yet."""

    def __init__(self, session: InjectorSession, admission: RecordAdmission, times: TimeCheck) -> None:
        self._session = session
        self._admission = admission
        self._ids = admission.ids
        self._times = times
        self.buffer = SendBuffer()
        self._encoding: _RoutedEncoding | None = None

    def put(self, value: Any, timestamp: int, id_: UserId | None, position: int | None, partition: str) -> bool:
        """Buffer a record. Returns False if it has to wait, or has a fault: then its admission says why.

        Raises:
            UsageError: The id, the position or the timestamp is no valid one.
            ValueEncodeError: The value is not of the stream's type.
        """
        ids, session, buffer = self._ids, self._session, self.buffer
        if timestamp.__class__ is not int or not self._times.first <= timestamp <= self._times.last:
            timestamp = self._checked_time(timestamp)
        numbered = id_ is None and position is None and ids.numbered is not None
        scope: IdScope | None = ids.numbered
        record_id: Any = ids.next
        if not numbered:
            scope, record_id = self._identify(id_, position, partition)
        assert scope is not None
        same = buffer.scope is scope or buffer.scope == scope
        if not same or buffer.size >= CHUNK_BYTES or buffer.count >= CHUNK_RECORDS:
            self.drain()
        if not buffer.count:
            self._admission.drain()  # small tables that were sent before
        encoding = self._encoding
        if encoding is None or encoding.routing is not session.core.routing:
            encoding = self._encoding = _RoutedEncoding(self._admission, session.routing)
        if not encoding.local or not self._has_room(timestamp):
            return False
        data = encoding.encode(value)
        if data.__class__ is not bytes or len(data) > MAX_VALUE_BYTES:
            self._admission.encoder.check([data])
        try:
            if encoding.decode is not None:
                encoding.decode(data)
            keys = encoding.keys(value)
        except (ValueError, TypeError, KeyExtractionError, TooLargeError):
            return False
        if position is not None and not buffer.count:
            session.core.check_positions(scope, (record_id,))
        buffer.add(scope, record_id, data, timestamp, keys)
        ids.next += numbered
        if buffer.count == 1:
            asyncio.get_running_loop().call_soon(self.drain)
        return True

    def _has_room(self, timestamp: int) -> bool:
        """Whether the core may accept a record now, and no earlier call waits. So the buffer fits into the window."""
        session, core = self._session, self._session.core
        if self._admission.turns.calls or core.room() <= self.buffer.count:
            return False
        return not session.asleep and not core.throttled(timestamp)

    def _checked_time(self, timestamp: Any) -> int:
        try:
            whole = index(timestamp)
        except TypeError:
            raise UsageError(f"a record's timestamp is a whole number of microseconds, not {timestamp!r}") from None
        self._times.check((whole,), "a record's timestamp")
        if not MIN_TIMESTAMP < whole < MAX_TIMESTAMP:
            raise UsageError("a record's timestamp is a time in microseconds, not an infinity")
        return whole

    def _identify(self, id_: UserId | None, position: int | None, partition: str) -> tuple[IdScope, int | bytes]:
        ids = None if id_ is None else (id_,)
        positions = None if position is None else (checked_position(position),)
        scope = self._ids.scope(ids, positions, partition, None)
        return scope, self._ids.delivery_ids(ids, positions, slice(0, 1))[0]

    def drain(self) -> None:
        """Pass the buffered records to the core. A failed core drops them, and every later call raises the failure."""
        if self.buffer.count:
            self._session.pass_on(self.buffer.take)
