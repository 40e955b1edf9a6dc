"""A record of a topic, and how its bytes become a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, get_args, get_origin

import msgspec

from millwheel.connectors.kafka.formats import RegistryFormat
from millwheel.model.time import Timestamp
from millwheel.sdk.errors import UsageError
from millwheel.sdk.known_types import known

if TYPE_CHECKING:
    import confluent_kafka

__all__ = ["Format", "KafkaRecord", "ParsedValue", "event_time", "message_bytes", "reads_as", "record_of"]

V = TypeVar("V")

Format = Literal["json", "msgpack"]
_DECODERS: Final[dict[str, Callable[[Any], Any]]] = {
    "json": msgspec.json.Decoder,
    "msgpack": msgspec.msgpack.Decoder,
}


class KafkaRecord(msgspec.Struct, Generic[V], frozen=True):
    """A record with all that Kafka knows of it.

    ``KafkaRecord[Bid]`` has the value decoded, and ``KafkaRecord[bytes]`` has it as it is.
    """

    value: V | None
    """None: a tombstone, which says that the key is deleted."""
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int
    offset: int
    timestamp: Timestamp | None
    """When its producer, or the broker, says it was written. Milliseconds of Kafka, in microseconds."""


def event_time(message: confluent_kafka.Message) -> Timestamp | None:
    """Kafka's timestamp of a record. None if it has none."""
    return _event_time(*message.timestamp())


def _event_time(kind: int, milliseconds: int) -> Timestamp | None:
    # -1 is Kafka's "none", also in a record whose topic says that it has the time of its creation.
    at: Any = None if kind == 0 or milliseconds < 0 else milliseconds * 1_000
    return at  # type: ignore[no-any-return]  # a call of Timestamp takes as long as the rest


def message_bytes(message: confluent_kafka.Message) -> int:
    """The bytes of a message. Its ``len`` has those of its value alone, and a :class:`KafkaRecord` has all."""
    size = len(message.value() or b"") + len(message.key() or b"")
    headers: Any = message.headers()
    if headers:
        size += sum([len(name) + len(value or b"") for name, value in headers])
    return size


class ParsedValue(Generic[V]):
    """Reads the values of messages, one by one or many at once."""

    __slots__ = ("_parse", "_whole", "alone")

    def __init__(self, parse: Callable[[bytes], Any], *, alone: bool, whole: bool = False) -> None:
        """
        Args:
            parse: Makes a value of bytes.
            alone: Whether a value may take long, as a schema registry is asked.
            whole: Whether a KafkaRecord has the value.
        """
        self._parse = parse
        self._whole = whole
        self.alone = alone

    def __call__(self, message: confluent_kafka.Message) -> V:
        value: Any = message.value()
        if self._whole:
            return record_of(message, None if value is None else self._parse(value))  # type: ignore[return-value]
        if value is None:
            raise ValueError("it has no value: a tombstone. Read KafkaRecord[TYPE], whose value may be None")
        return self._parse(value)  # type: ignore[no-any-return]

    def read_all(
        self, messages: Sequence[confluent_kafka.Message], most: int
    ) -> list[tuple[V, Timestamp | None]] | None:
        """The values of messages with their event times, in half of the time that they take one by one.

        Args:
            messages: The messages, at least one.
            most: So many bytes are too many.

        Returns:
            None if one of them is an event or cannot be read, or if they are too many bytes. One by one, those before
            it are read.
        """
        of = type(messages[0])  # with its methods, as ``map`` calls a method of C by itself
        # An error of the library cannot be compared with None.
        if self.alone or set(map(type, map(of.error, messages))) != {NoneType}:
            return None
        encoded: list[Any] = list(map(of.value, messages))
        if None in encoded and not self._whole:
            return None
        size = sum(map(len, filter(None, encoded))) + sum([len(key) for key in map(of.key, messages) if key])
        if any(map(of.headers, messages)):
            size = sum(map(message_bytes, messages))
        if size >= most:
            return None
        try:
            # map() would take a user's StopIteration for the end.
            parse = self._parse
            values = [self(one) for one in messages] if self._whole else [parse(one) for one in encoded]
        except Exception:
            return None
        # As ``_event_time`` says it, without a call for each.
        times: list[Any] = [None if kind == 0 or at < 0 else at * 1_000 for kind, at in map(of.timestamp, messages)]
        return list(zip(values, times, strict=True))


def record_of(message: confluent_kafka.Message, value: Any) -> KafkaRecord[Any]:
    """The record of a message, with ``value`` as its value."""
    headers: Any = message.headers() or []
    return KafkaRecord(
        value, message.key(), headers, message.partition() or 0, message.offset() or 0, event_time(message)
    )


def reads_as(
    kind: Any, format: Format, decode: Callable[[KafkaRecord[bytes]], Any] | RegistryFormat[Any] | None
) -> Callable[[confluent_kafka.Message], Any]:
    """The function that makes a value of a message. What it raises says that the record cannot be read.

    Args:
        kind: The type of the value: any that the format can have, bytes, or a KafkaRecord of one of them.
        format: How the bytes have it.
        decode: A function that does it instead, or the format of a schema registry.

    Raises:
        UsageError: No message can become such a value.
    """
    if format not in _DECODERS:
        raise UsageError(f"Kafka reads the formats {', '.join(_DECODERS)}, not {format!r}: give decode=FUNCTION")
    if decode is not None and not isinstance(decode, RegistryFormat):
        return lambda message: decode(record_of(message, message.value()))
    is_whole = (get_origin(kind) or kind) is KafkaRecord
    if is_whole:
        (kind,) = get_args(kind) or (bytes,)
    parse = _parser(kind, format) if decode is None else decode.decode
    return ParsedValue(parse, alone=decode is not None, whole=is_whole)


def _parser(kind: Any, format: Format) -> Callable[[bytes], Any]:
    if kind is bytes:
        return lambda value: value
    try:
        parse: Callable[[bytes], Any] = _DECODERS[format](known(kind)).decode
    except TypeError as error:
        raise UsageError(f"no {format} can be read as {kind!r}: {error}. Give decode=FUNCTION") from error
    return parse
