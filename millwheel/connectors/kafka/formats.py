"""Records whose schema is in a registry: a byte 0, the schema's id in four bytes, and the value."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from millwheel.connectors.kafka.clients import KafkaError
from millwheel.connectors.kafka.registry import RegisteredSchema, RegistryAccess, UnknownSchemaError
from millwheel.sdk.errors import UsageError
from millwheel.sdk.known_types import known

__all__ = ["KEPT_SCHEMAS", "UNKNOWN_SECONDS", "JsonValues", "RegistryFormat", "RegistryValues", "UnknownIds"]

T = TypeVar("T")

Parse = Callable[[bytes], T]

_HEAD: Final = 5
"""The bytes before the value."""
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
"""The version of JSON Schema that msgspec writes. Registries recognise it by this."""
KEPT_SCHEMAS: Final = 1_000
"""So many schemas of writers are kept, those used last. A topic has a few."""
UNKNOWN_SECONDS: Final = 30.0
"""So long a schema must be unknown until it is not there. A registry's servers learn of it one after the other."""
FORGOTTEN_SECONDS: Final = 3600.0
"""When an id that was not there is waited for again: it may have been given to a schema meanwhile."""


class RegistryValues(ABC, Generic[T]):
    """How values of a type are in records: in Avro, Protobuf or JSON."""

    schema_type: str
    """What the registry calls it."""

    @abstractmethod
    def schema(self) -> str:
        """The schema that a sink writes with.

        Raises:
            UsageError: The type has none.
        """

    @abstractmethod
    def name(self) -> str:
        """The name of the schema's record."""

    def registered(self, registry: RegistryAccess, *, register: bool) -> RegisteredSchema:
        """What a sink registers or looks up. A schema that refers to others asks for these first.

        Raises:
            UsageError: The type has no schema.
            KafkaError: The registry refuses another schema, does not have it, or cannot be asked.
        """
        return RegisteredSchema(self.schema(), self.schema_type)

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """The bytes of a value. It raises if they cannot have it."""

    @abstractmethod
    def parser(self, find: Callable[[], RegisteredSchema]) -> Parse[T]:
        """The function that reads what was written with a schema. It raises for bytes that it cannot read.

        Args:
            find: Asks the registry for the schema.

        Raises:
            ValueError: No value can be read by this schema.
            KafkaError: The registry cannot be asked.
        """


class UnknownIds:
    """Since when ids of schemas are unknown. Pure. Seconds are those of any clock that does not go back."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def wait(self, number: int, now: float) -> float:
        """An id is unknown now. Returns for how many more seconds it may still appear."""
        since = self._since.setdefault(number, now)
        if now - since > FORGOTTEN_SECONDS:  # by now it may be that of another schema
            since = self._since[number] = now
        if len(self._since) > KEPT_SCHEMAS:
            # It waits once more, if a record names it again. Threads share this, so each step is atomic.
            self._since.pop(list(self._since)[0], None)  # noqa: RUF015
        return max(0.0, since + UNKNOWN_SECONDS - now)

    def found(self, number: int) -> None:
        """An id is known."""
        self._since.pop(number, None)


@dataclass(frozen=True, slots=True)
class RegistryFormat(Generic[T]):
    """The format of keys or values whose schema is in a registry. :class:`~millwheel.connectors.kafka.SchemaRegistry`
    makes it.

    ``decode=`` of a source and ``value=`` of a sink take it. A function of a program may call :meth:`decode` and
    :meth:`encode`, as for a key. Threads of a worker share it.
    """

    registry: RegistryAccess
    values: RegistryValues[T]
    subject: str
    register: bool
    _parsers: Callable[[int], Parse[T]] = field(init=False, compare=False, repr=False)
    _ids: dict[str, int] = field(init=False, compare=False, repr=False, default_factory=dict)
    """By subject: the id of the schema to write with. A format has one subject, or one for each topic."""
    _unknown: UnknownIds = field(init=False, compare=False, repr=False, default_factory=UnknownIds)

    def __post_init__(self) -> None:
        if not isinstance(self.subject, str) or not self.subject:
            raise UsageError(f"subject= is a text such as '{{topic}}-value', not {self.subject!r:.80}")
        # An error is not kept. So a registry that was away is asked again.
        object.__setattr__(self, "_parsers", lru_cache(KEPT_SCHEMAS)(self._parser))

    def decode(self, data: bytes) -> T:
        """The value of a record, or of its key.

        It may ask the registry, for up to ten seconds. So it is called in ``decode=`` of a source.

        Raises:
            ValueError: The bytes cannot be read. Or the registry has not had their schema for ``UNKNOWN_SECONDS``.
            KafkaError: The registry cannot be asked, or does not have the schema yet.
            UsageError: The library for this format is missing, or an event loop runs on this thread.
        """
        if len(data) < _HEAD or data[0] != 0:
            raise ValueError(
                "it does not begin with a byte 0 and the id of a schema: it was not written with a schema registry, "
                "or with the id in a header"
            )
        return self._parsers(int.from_bytes(data[1:_HEAD], "big"))(data[_HEAD:])

    def encode(self, value: T) -> bytes:
        """The bytes of a value or a key, with the id of its schema. The first call asks the registry.

        Raises:
            ValueError: The bytes cannot have the value. So does TypeError.
            KafkaError: The registry refuses the schema, does not have it, or cannot be asked.
            UsageError: The type has no schema, ``subject`` names a topic that is not known here, the library is
                missing, or an event loop runs on this thread.
        """
        if "{topic}" in self.subject:
            raise UsageError('only value= of kafka.sink knows its topic: give subject="TOPIC-key" for a key')
        subject = self.subject.replace("{record}", self.values.name())
        number = self._ids.get(subject)
        if number is None:
            schema = self.values.registered(self.registry, register=self.register)
            number = self._ids[subject] = self.registry.id_of(subject, schema, register=self.register)
        return b"\0" + number.to_bytes(4, "big") + self.values.encode(value)

    def of_topic(self, topic: str) -> RegistryFormat[T]:
        """The same format for the values of a topic.

        Raises:
            UsageError: The type has no schema.
        """
        self.values.schema()
        return replace(self, subject=self.subject.replace("{topic}", topic))

    def _parser(self, number: int) -> Parse[T]:
        try:
            parse = self.values.parser(lambda: self.registry.schema(number))
        except UnknownSchemaError as error:
            # A writer may have registered it a moment ago, by another server of the registry.
            if (seconds := self._unknown.wait(number, time.monotonic())) > 0:
                raise KafkaError(
                    f"{error}: it is asked again for {seconds:.0f} s, for its servers learn of a new schema one after "
                    "the other"
                ) from error
            raise
        self._unknown.found(number)
        return parse


class JsonValues(RegistryValues[T]):
    """Values in JSON, with a schema of JSON Schema.

    Args:
        kind: The type of the values.
        schema: The schema for a sink. None: that of ``kind``.

    Raises:
        UsageError: JSON cannot have the type.
    """

    schema_type = "JSON"

    def __init__(self, kind: type[T], schema: str | None) -> None:
        try:
            self._parse: Parse[T] = msgspec.json.Decoder(known(kind)).decode
        except TypeError as error:
            raise UsageError(f"no JSON can be read as {kind!r}: {error}") from error
        self._kind: Any = kind
        self._given = schema

    def schema(self) -> str:
        if self._given is not None:
            return self._given
        try:
            made = msgspec.json.schema(self._kind)
        except TypeError as error:
            raise UsageError(f"{self._kind!r} has no JSON Schema: {error}. Give one by schema=") from error
        return msgspec.json.encode({"$schema": _DRAFT, "title": self.name(), **made}).decode()

    def name(self) -> str:
        return getattr(self._kind, "__name__", str(self._kind))

    def encode(self, value: T) -> bytes:
        return msgspec.json.encode(value)

    def parser(self, find: Callable[[], RegisteredSchema]) -> Parse[T]:
        return self._parse  # the type says more than the schema, and needs no call
