"""Appends in the frames of Cassandra's native protocol, version 4: what is sent, and the state of one connection.

Plain code. It takes the bytes that arrive and the time, and returns what to send and what was answered. The driver
decodes the errors, so an error is the same by either way.

Invariant (G2, G3): an answer goes to the request that it answers, or to none. Else "applied" of one append could stand
for another that was refused, and two owners would both go on. Each request in flight has a number of its own, its
*stream*. The stream of a request that its caller has left (deadline, cancellation) stays taken until its answer comes.
An answer to a stream that is free ends the connection. Who may break it: code that frees a stream when its caller
leaves, or that goes on after bytes that it does not understand. Tests: ``tests/store/cassandra/test_frames.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from cassandra import AuthenticationFailed, ConsistencyLevel
from cassandra.protocol import ErrorMessage, PreparedQueryNotFound

from millwheel.store.cassandra.failures import text_of

__all__ = [
    "HEARTBEAT_SECONDS",
    "MAX_ANSWER_BYTES",
    "MAX_LOST_ANSWERS",
    "MAX_REQUESTS",
    "MAX_WARNING_CHARACTERS",
    "Answer",
    "ConnectionState",
    "FrameError",
    "encode_parameters",
]

MAX_ANSWER_BYTES: Final = 1 << 20
"""A frame that says it is larger ends the connection. The answer to an append has some hundred bytes."""

MAX_REQUESTS: Final = 128
"""The most requests of one connection whose answers are missing."""

MAX_LOST_ANSWERS: Final = MAX_REQUESTS // 2
"""The most of them for which no caller waits any more. Each takes a stream, so above that the connection is ended."""

HEARTBEAT_SECONDS: Final = 5.0
"""A connection that has been silent for so long is asked for a sign of life. For the answer it has as long again."""

MAX_WARNING_CHARACTERS: Final = 300
"""The rest of a warning is cut off."""

_VERSION: Final = 4
_ANSWER: Final = 0x80 | _VERSION
_OWN_STREAM: Final = 0
"""The stream of the login and of heartbeats. Requests have 1 and up."""

_OPTIONS_OF_STARTUP: Final = MappingProxyType({"CQL_VERSION": "3.0.0", "DRIVER_NAME": "millwheel"})
"""``nodetool clientstats`` shows the name."""

_ERROR, _STARTUP, _READY, _AUTHENTICATE, _OPTIONS, _SUPPORTED = 0x00, 0x01, 0x02, 0x03, 0x05, 0x06
_RESULT, _PREPARE, _EXECUTE, _AUTH_RESPONSE, _AUTH_SUCCESS = 0x08, 0x09, 0x0A, 0x0F, 0x10
_HAS_TRACE, _HAS_PAYLOAD, _HAS_WARNINGS = 0x02, 0x04, 0x08
_ROWS, _PREPARED = 2, 4
_BIGINT, _BOOLEAN = 0x02, 0x04
_SAME_TABLE: Final = 0x01
_WITH_VALUES, _WITH_SERIAL_LEVEL = 0x01, 0x10
_MAX_COLUMNS: Final = 16

_HEADER: Final = struct.Struct(">BBhBI")
_PARAMETERS: Final = struct.Struct(">HBH")
_BIGINT_VALUE: Final = struct.Struct(">iq")
_LONG, _INT, _SHORT = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">H")

Row = tuple[Any, ...]


class FrameError(Exception):
    """The bytes that arrived, or their absence, end the connection."""


class Answer(NamedTuple):
    """The answer to the request ``stream``: one row, or the driver's error."""

    stream: int
    rows: list[Row]
    error: Exception | None


@dataclass(slots=True)
class _Request:
    """A request whose answer is missing. ``left``: its caller does not wait any more."""

    text: str
    parameters: bytes
    prepares: bool = False
    was_prepared: bool = False
    left: bool = False


class ConnectionState:
    """The state of one connection. After FrameError, or an error of the login, it is of no more use."""

    def __init__(self, username: str, password: str, now: float) -> None:
        """``now``, here and below: seconds of any clock that does not go back."""
        self._username = username
        self._password = password
        self._heard = now
        self._asked: float | None = None
        """When the node was asked for a sign of life, if no byte has come since."""
        self._warning = ""
        self._arrived = bytearray()
        self._outgoing = [_frame(_STARTUP, _OWN_STREAM, _string_map(_OPTIONS_OF_STARTUP))]
        self._free = list(range(MAX_REQUESTS, 0, -1))
        self._requests: dict[int, _Request] = {}
        self._ids: dict[str, bytes] = {}
        """What this node calls the statements that it had forgotten."""
        self.is_ready = False
        """Whether the node has let the user in."""

    def outgoing(self) -> bytes:
        """Take what is to be sent now."""
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        return data

    def execute(self, text: str, query_id: bytes, parameters: bytes) -> int | None:
        """Send a prepared statement.

        Args:
            text: Of the statement. A node that has forgotten the statement prepares it once more.
            query_id: What the node should call it.
            parameters: The result of :func:`encode_parameters`.

        Returns:
            The request's stream, or None if too many answers are missing. Then nothing is sent.
        """
        if not self.is_ready or not self._free:
            return None
        stream = self._free.pop()
        self._requests[stream] = _Request(text, parameters)
        self._send_execute(stream, self._ids.get(text, query_id), parameters)
        return stream

    def leave(self, stream: int) -> None:
        """Note that the caller of a request in flight does not wait any more. Its outcome stays unknown."""
        request = self._requests[stream]
        request.left, request.parameters = True, b""

    def received(self, data: bytes, now: float) -> list[Answer]:
        """Process the bytes that arrived.

        Raises:
            FrameError: They cannot be understood, or are an error that the node cannot assign to a request.
            Exception: The driver's error for a login that is refused.
        """
        self._heard, self._asked = now, None
        self._arrived += data
        answers: list[Answer] = []
        start = 0
        while len(self._arrived) - start >= _HEADER.size:
            version, flags, stream, opcode, size = _HEADER.unpack_from(self._arrived, start)
            if version != _ANSWER or size > MAX_ANSWER_BYTES or flags & ~(_HAS_TRACE | _HAS_PAYLOAD | _HAS_WARNINGS):
                raise FrameError(f"version {version:#x}, flags {flags:#x} and {size} bytes are no answer")
            end = start + _HEADER.size + size
            if len(self._arrived) < end:
                break
            body = _Body(bytes(self._arrived[start + _HEADER.size : end]))
            self._warning = body.skip_extras(flags) or self._warning
            start = end
            if stream == _OWN_STREAM:
                self._answer_own(opcode, body)
            elif (answer := self._answer(stream, opcode, body)) is not None:
                answers.append(answer)
        del self._arrived[:start]
        return answers

    def take_warning(self) -> str:
        """Take the newest warning of the node, such as of a value that will soon be too large; empty: none."""
        warning, self._warning = self._warning, ""
        return warning

    def tick(self, now: float) -> None:
        """Ask a silent node for a sign of life. Call it every second.

        Raises:
            FrameError: The node was asked, and has sent nothing for too long. Or too many answers have never come.
        """
        lost = sum(request.left for request in self._requests.values())
        if lost > MAX_LOST_ANSWERS:
            raise FrameError(f"{lost} answers have not come, and no caller waits for them any more")
        if self._asked is not None and now - self._asked >= HEARTBEAT_SECONDS:
            raise FrameError(f"no byte for {now - self._heard:.0f} s")
        # A process that was paused asks first: the node may be well.
        if self.is_ready and self._asked is None and now - self._heard >= HEARTBEAT_SECONDS:
            self._asked = now
            self._outgoing.append(_frame(_OPTIONS, _OWN_STREAM))

    def _answer_own(self, opcode: int, body: _Body) -> None:
        if self.is_ready:
            if opcode == _ERROR:
                # It may be about any of the requests in flight, so it must not be taken for the answer to one.
                raise FrameError(f"an error that is of no request: {text_of(_decode_error(body))}")
            if opcode != _SUPPORTED:
                raise FrameError(f"opcode {opcode:#x} is no answer to a heartbeat")
        elif opcode == _AUTHENTICATE:
            if not self._username:
                raise AuthenticationFailed("the node asks for a login, and no user is set")
            login = f"\0{self._username}\0{self._password}".encode()
            self._outgoing.append(_frame(_AUTH_RESPONSE, _OWN_STREAM, _INT.pack(len(login)), login))
        elif opcode in (_READY, _AUTH_SUCCESS):
            self.is_ready = True
        elif opcode == _ERROR:
            raise _decode_error(body)
        else:
            raise FrameError(f"opcode {opcode:#x} in the login")

    def _answer(self, stream: int, opcode: int, body: _Body) -> Answer | None:
        request = self._requests.get(stream)
        if request is None:
            raise FrameError(f"an answer to the request {stream}, which is not in flight")
        rows: list[Row] = []
        error: Exception | None = None
        if opcode == _ERROR:
            error = _decode_error(body)
        elif opcode != _RESULT:
            raise FrameError(f"opcode {opcode:#x} is no answer to an append")
        elif request.prepares:
            self._ids[request.text] = _decode_id(body)
        else:
            rows = [_decode_row(body)]
        if not request.left and self._goes_on(stream, request, error):
            return None
        del self._requests[stream]
        self._free.append(stream)
        return None if request.left else Answer(stream, rows, error)

    def _goes_on(self, stream: int, request: _Request, error: Exception | None) -> bool:
        """Whether a statement that the node had forgotten is sent once more. A forgotten statement has no effect."""
        if request.prepares and error is None:
            request.prepares, request.was_prepared = False, True
            self._send_execute(stream, self._ids[request.text], request.parameters)
            return True
        if isinstance(error, PreparedQueryNotFound) and not request.was_prepared and not request.prepares:
            request.prepares = True
            text = request.text.encode()
            self._outgoing.append(_frame(_PREPARE, stream, _INT.pack(len(text)), text))
            return True
        return False

    def _send_execute(self, stream: int, query_id: bytes, parameters: bytes) -> None:
        self._outgoing.append(_frame(_EXECUTE, stream, _SHORT.pack(len(query_id)), query_id, parameters))


def encode_parameters(values: Sequence[object], level: int) -> bytes:
    """Return the values of a statement and its levels: ``level``, and SERIAL for its condition.

    Args:
        values: ``int`` for bigint, ``str`` for text, ``bytes`` for blob.
        level: The driver's number of a consistency level.
    """
    parts = [_PARAMETERS.pack(level, _WITH_VALUES | _WITH_SERIAL_LEVEL, len(values))]
    for value in values:
        if isinstance(value, int):
            parts.append(_BIGINT_VALUE.pack(8, value))
            continue
        data = value.encode() if isinstance(value, str) else value
        if not isinstance(data, bytes):
            raise TypeError(f"{type(value).__name__} is none of int, str and bytes")
        parts += (_INT.pack(len(data)), data)
    parts.append(_SHORT.pack(ConsistencyLevel.SERIAL))
    return b"".join(parts)


class _Body:
    """The rest of a frame's body. FrameError if it ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise FrameError(f"a frame of {len(self._data)} bytes ends too early")
        return self._data[start : self._at]

    def rest(self) -> bytes:
        return self._data[self._at :]

    def short(self) -> int:
        number: int = _SHORT.unpack(self.take(2))[0]
        return number

    def integer(self) -> int:
        number: int = _INT.unpack(self.take(4))[0]
        return number

    def string(self) -> bytes:
        return self.take(self.short())

    def value(self) -> bytes | None:
        size = self.integer()
        return None if size < 0 else self.take(size)

    def skip_extras(self, flags: int) -> str:
        """Pass over what stands before the body itself. Return the last of the warnings there; empty: none."""
        warning = b""
        if flags & _HAS_TRACE:
            self.take(16)
        if flags & _HAS_WARNINGS:
            for _ in range(self.short()):
                warning = self.string()
        if flags & _HAS_PAYLOAD:
            for _ in range(self.short()):
                self.string()
                self.value()
        return warning.decode(errors="replace")[:MAX_WARNING_CHARACTERS]


def _decode_row(body: _Body) -> Row:
    """Return the one row of the answer to an append. Its first column says whether the append was applied."""
    kind = body.integer()
    if kind != _ROWS:
        raise FrameError(f"a result of kind {kind}, and not rows")
    flags, columns = body.integer(), body.integer()
    if flags & ~_SAME_TABLE or not 0 < columns <= _MAX_COLUMNS:
        raise FrameError(f"rows of {columns} columns with flags {flags:#x}")
    _skip_table(body, flags & _SAME_TABLE)
    names_and_types = []
    for _ in range(columns):
        _skip_table(body, not flags & _SAME_TABLE)
        names_and_types.append((body.string(), body.short()))
    if names_and_types[0] != (b"[applied]", _BOOLEAN) or not all(kind in _DECODERS for _, kind in names_and_types):
        raise FrameError(f"the columns {names_and_types} are not those of an append")
    if (count := body.integer()) != 1:
        raise FrameError(f"{count} rows, and not one")
    row = tuple(_DECODERS[kind](body.value()) for _, kind in names_and_types)
    if behind := body.rest():
        raise FrameError(f"{len(behind)} bytes behind the row")
    return row


def _skip_table(body: _Body, named: object) -> None:
    if named:
        body.string()
        body.string()


def _decode_bigint(value: bytes | None) -> int | None:
    if value is not None and len(value) != _LONG.size:
        raise FrameError(f"a bigint of {len(value)} bytes")
    return None if value is None else int(_LONG.unpack(value)[0])


def _decode_boolean(value: bytes | None) -> bool:
    if value is None or len(value) != 1:
        raise FrameError("null as a boolean" if value is None else f"a boolean of {len(value)} bytes")
    return value != b"\0"


_DECODERS: Final[Mapping[int, Callable[[bytes | None], object]]] = MappingProxyType(
    {_BIGINT: _decode_bigint, _BOOLEAN: _decode_boolean}
)


def _decode_id(body: _Body) -> bytes:
    kind = body.integer()
    if kind != _PREPARED:
        raise FrameError(f"a result of kind {kind}, and not a prepared statement")
    return body.string()


def _decode_error(body: _Body) -> Exception:
    try:
        error: Exception = ErrorMessage.recv_body(BytesIO(body.rest()), _VERSION).to_exception()
    except Exception as unreadable:
        raise FrameError(f"an error that cannot be read: {unreadable!r}") from unreadable
    return error


def _frame(opcode: int, stream: int, *parts: bytes) -> bytes:
    return b"".join((_HEADER.pack(_VERSION, 0, stream, opcode, sum(map(len, parts))), *parts))


def _string_map(texts: Mapping[str, str]) -> bytes:
    strings = [text.encode() for pair in texts.items() for text in pair]
    return _SHORT.pack(len(texts)) + b"".join(_SHORT.pack(len(one)) + one for one in strings)
