"""Protobuf: messages of a generated class, or values of a type that such a class has by the names of its fields."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, TypeVar

import msgspec
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError, Message

from millwheel.connectors.kafka.formats import Parse, RegistryValues
from millwheel.connectors.kafka.protobuf_places import Place, Places, place_bytes, places_in, read_place
from millwheel.connectors.kafka.protobuf_text import proto_text
from millwheel.connectors.kafka.protobuf_types import MessageShapes
from millwheel.connectors.kafka.registry import RegisteredSchema, RegistryAccess
from millwheel.sdk.errors import UsageError
from millwheel.sdk.known_types import known

__all__ = ["ProtobufValues"]

T = TypeVar("T")

_KNOWN: Final = "google/protobuf/"
"""Files that begin so are known to each registry, as to each compiler."""
_SHOWN: Final = 5
"""So many messages of a schema are in an error."""
_COUNTED: Final = (
    ". It may be one if Confluent's client for Python wrote it, which counts entries of maps as messages, and Java's "
    "serializers do not: in the writer's file, let maps stand behind the messages that are beside them"
)


class ProtobufValues(RegistryValues[T]):
    """Values in Protobuf.

    *A message is read by the class of the program*, by the numbers of its fields, as always in Protobuf. The writer's
    schema says only which message it is. That is needed: bytes of another one could be read, too, as a wrong value.

    Args:
        kind: The type of the values. It is a generated class, or another type with fields.
        message: The generated class. None: it is ``kind``.
        schema: The text of the file for a sink. None: it is made of the class.

    Raises:
        UsageError: The class does not have the type, or ``schema`` does not have the message.
    """

    schema_type = "PROTOBUF"

    def __init__(self, kind: type[T], message: type[Message] | None, schema: str | None) -> None:
        self._kind: Any = kind
        self._class: type[Message] = _message_class(kind) if message is None else _message_class(message)
        self._shapes: MessageShapes | None = None
        if message is not None and kind is not message:
            self._shapes = _shapes(kind, self._class)
        self._given = schema
        self._references: dict[str, dict[str, Any]] = {}
        """By the path of an imported file: where the registry has it."""
        if schema is not None:
            self._head()

    def name(self) -> str:
        return self._class.DESCRIPTOR.full_name

    def schema(self) -> str:
        if self._shapes is not None and self._shapes.unwritable:
            raise UsageError(f"{self._kind!r} cannot be written as {self.name()}: {'; '.join(self._shapes.unwritable)}")
        return self._text

    @cached_property
    def _text(self) -> str:
        return _text(self._class.DESCRIPTOR.file) if self._given is None else self._given

    @cached_property
    def _prefix(self) -> bytes:
        """What stands before each message: its place in the schema."""
        return self._head()

    def _head(self) -> bytes:
        wanted = f"schema= is the text of a .proto file with the message {self.name()}"
        try:
            place = _place_of(self.name(), places_in(self._text))
        except ValueError as error:
            raise UsageError(f"{wanted}: {error}") from error
        if place is None:
            raise UsageError(f"{wanted}, and the text has none")
        return place_bytes(place)

    def registered(self, registry: RegistryAccess, *, register: bool) -> RegisteredSchema:
        schema = self.schema()  # raises before anything is registered
        references = self._registered_imports(self._class.DESCRIPTOR.file, registry, register)
        return RegisteredSchema(schema, self.schema_type, references or None)

    def _registered_imports(self, file: Any, registry: RegistryAccess, register: bool) -> list[Any]:
        """Where the registry has what a file imports. Each of them has the subject of its path, as Confluent's have.

        What is found is kept. So a call that fails midway is continued by the next one.
        """
        found = []
        for one in file.dependencies:
            if one.name.startswith(_KNOWN):
                continue
            if one.name not in self._references:
                imports = self._registered_imports(one, registry, register)
                schema = RegisteredSchema(_text(one), self.schema_type, imports or None)
                version = registry.version_of(one.name, schema, register=register)
                self._references[one.name] = {"name": one.name, "subject": one.name, "version": version}
            found.append(self._references[one.name])
        return found

    def encode(self, value: T) -> bytes:
        message: Message
        if self._shapes is None:
            if not isinstance(value, self._class):
                raise TypeError(f"it is a {type(value).__name__}, and not a message {self.name()}")
            message = value
        else:
            message = self._class()
            self._shapes.fill(value, message)
        return self._prefix + message.SerializeToString(deterministic=True)

    def parser(self, find: Callable[[], RegisteredSchema]) -> Parse[T]:
        registered = find()
        if registered.kind != self.schema_type:
            raise ValueError(f"its schema is of the type {registered.kind}, and not {self.schema_type}")
        try:
            places = places_in(registered.schema)
        except ValueError as error:
            raise ValueError(f"its schema cannot be used: {error}") from error
        place = _place_of(self.name(), places)
        # Of a schema, only this is kept: it may have thousands of messages.
        known = ", ".join(list(places.values())[:_SHOWN]) + ("" if len(places) <= _SHOWN else " and others")
        head = None if place is None else place_bytes(place)

        def parse(data: bytes) -> T:
            if head is not None and data.startswith(head):
                return self._value(data[len(head) :])
            found, length = read_place(data)
            if found != place:
                raise ValueError(
                    f"it is not a {self.name()}: it is the message {list(found)} of a schema that has {known or 'none'}"
                    + (_COUNTED if found == _place_with_entries(self._class.DESCRIPTOR) else "")
                )
            return self._value(data[length:])

        return parse

    def _value(self, data: bytes) -> T:
        try:
            message: Any = self._class.FromString(data)
        except DecodeError as error:
            raise ValueError(f"its bytes are no {self.name()}: they end within a field, or are damaged") from error
        if not message.IsInitialized():
            raise ValueError(f"it has no {', '.join(message.FindInitializationErrors())}, which {self.name()} requires")
        value: T = message if self._shapes is None else msgspec.convert(self._shapes.plain(message), self._kind)
        return value


def _text(file: Any) -> str:
    return proto_text(FileDescriptorProto.FromString(file.serialized_pb))


def _place_of(name: str, places: Places) -> Place | None:
    return next((place for place, one in places.items() if one == name), None)


def _place_with_entries(descriptor: Any) -> Place:
    """The place of a message if entries of maps and groups had places, too, as a descriptor has them."""
    around = descriptor.containing_type
    if around is None:
        return (list(descriptor.file.message_types_by_name).index(descriptor.name),)
    return (*_place_with_entries(around), [one.name for one in around.nested_types].index(descriptor.name))


def _message_class(kind: Any) -> type[Message]:
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message:
        return kind
    raise UsageError(
        f"{kind!r} is no generated class of Protobuf: give that one, too, as in registry.protobuf(Bid, bids_pb2.Bid)"
    )


def _shapes(kind: Any, message: type[Message]) -> MessageShapes:
    try:
        known(kind)
        shapes = MessageShapes(kind, message.DESCRIPTOR)
    except TypeError as error:
        raise UsageError(f"nothing can be read as {kind!r}: {error}") from error
    if shapes.unreadable:
        full_name = message.DESCRIPTOR.full_name
        raise UsageError(f"no {full_name} can be read as {kind!r}: {'; '.join(shapes.unreadable)}")
    return shapes
