"""Avro: the values of a type, read by any schema of a writer, and written by one that follows from the type."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from io import BytesIO
from typing import Any, Final, TypeVar

import msgspec

from millwheel.connectors.kafka.avro_types import NATIVE, Shapes
from millwheel.connectors.kafka.clients import KafkaError
from millwheel.connectors.kafka.formats import Parse, RegistryValues
from millwheel.connectors.kafka.registry import RegisteredSchema
from millwheel.sdk.errors import UsageError
from millwheel.sdk.known_types import known

__all__ = ["AvroValues"]

T = TypeVar("T")

_KINDS: Final = ("record", "error", "enum", "array", "map", "fixed")
"""What ``type`` says of a schema with parts. A record may have one of these as its name."""


def _library() -> Any:
    """The library of Avro. It is loaded at its first use.

    Raises:
        UsageError: It is not installed.
        KafkaError: Its files cannot be read now.
    """
    try:
        import fastavro
    except ImportError as error:
        raise UsageError(
            "Avro needs the library fastavro where the topology runs: install openmillwheel[avro] there"
        ) from error
    except OSError as error:  # the process may have no descriptor left: the record has no fault
        raise KafkaError(f"the library fastavro cannot be loaded now: {error.strerror}; it is tried again") from error
    return fastavro


def _contains_itself(schema: Any, within: frozenset[str] = frozenset()) -> bool:
    """Whether a record of a parsed schema is a part of itself. ``within``: the names of the records around it."""
    if isinstance(schema, str):
        return schema in within
    if isinstance(schema, list):
        return any(_contains_itself(one, within) for one in schema)
    if "fields" in schema:
        within |= {schema["name"]}
    parts = [one["type"] for one in schema.get("fields", ())]
    parts += [schema[name] for name in ("items", "values") if name in schema]
    if schema["type"] not in _KINDS:  # the name of a type, or a schema
        parts.append(schema["type"])
    return any(_contains_itself(one, within) for one in parts)


def _only_record(schema: Any) -> str | None:
    """The name of the record that all values of a parsed schema are, but for null. None: there is no such record.

    The library names a record only where the writer had several to choose from.
    """
    parts = schema if isinstance(schema, list) else [schema]
    names = [one["name"] for one in parts if isinstance(one, dict) and "fields" in one]
    return names[0] if len(names) == len([one for one in parts if one != "null"]) == 1 else None


class AvroValues(RegistryValues[T]):
    """Values in Avro.

    *A value is read by the writer's schema alone*, and then becomes a value of the type. So what Avro's rules of
    resolution do with a second schema, the type does: unknown fields are left out, missing ones get the defaults of
    the type, and names of records do not matter.

    Args:
        kind: The type of the values.
        schema: The schema for a sink. None: that of ``kind``.

    Raises:
        UsageError: There is no such type for msgspec, or ``schema`` is no schema of Avro.
    """

    schema_type = "AVRO"

    def __init__(self, kind: type[T], schema: str | None) -> None:
        try:
            known(kind)
        except TypeError as error:
            raise UsageError(f"nothing can be read as {kind!r}: {error}") from error
        self._kind: Any = kind
        self._shapes = Shapes()
        self._shape = self._shapes.of_kind(kind)
        self._given = schema
        if schema is not None:
            try:
                self._made: Any = msgspec.json.decode(schema)
            except (msgspec.DecodeError, TypeError) as error:
                raise UsageError(f"schema= is a text of JSON with a schema of Avro: {error}") from error
        else:
            self._made = self._shape.schema

    def schema(self) -> str:
        if self._given is not None:
            return self._given
        if self._shapes.problems:
            raise UsageError(
                f"{self._kind!r} has no schema of Avro: {'; '.join(self._shapes.problems)}. Or give one by schema="
            )
        return msgspec.json.encode(self._made).decode()

    def name(self) -> str:
        made = self._made if isinstance(self._made, dict) else {"type": self._made}
        name, space = str(made.get("name", made.get("type"))), made.get("namespace")
        return f"{space}.{name}" if space and "." not in name else name

    def encode(self, value: T) -> bytes:
        plain = msgspec.to_builtins(value, builtin_types=NATIVE)
        outward, buffer = self._shape.outward, BytesIO()
        _library().schemaless_writer(buffer, self._parsed, plain if outward is None else outward(plain))
        return buffer.getvalue()

    @cached_property
    def _parsed(self) -> Any:
        self.schema()  # raises if the type has none
        library = _library()
        try:
            return library.parse_schema(self._made)
        except Exception as error:  # the library has no class for all
            raise UsageError(f"the schema of the sink cannot be used: {error}") from error

    def parser(self, find: Callable[[], RegisteredSchema]) -> Parse[T]:
        library, registered = _library(), find()
        if registered.kind != self.schema_type:
            raise ValueError(f"its schema is of the type {registered.kind}, and not {self.schema_type}")
        if registered.references:
            raise ValueError("its schema refers to other schemas of the registry, which cannot be read")
        try:
            schema = library.parse_schema(msgspec.json.decode(registered.schema))
        except Exception as error:  # the library has no class for all
            raise ValueError(f"its schema cannot be used: {error}") from error
        if _contains_itself(schema):
            # The library reads it by recursion without a bound, so 10 kB of a damaged record would end the process.
            raise ValueError("its schema contains itself, and such values cannot be read")
        read, inward, kind = library.schemaless_reader, self._shape.inward, self._kind
        alone = _only_record(schema) if self._shape.is_any_of else None

        def parse(data: bytes) -> T:
            buffer = BytesIO(data)
            try:
                plain = read(buffer, schema, return_record_name=True, return_record_name_override=True)
            except (EOFError, IndexError) as error:
                raise ValueError("its bytes end within the value, or do not fit its schema") from error
            if buffer.tell() != len(data):
                raise ValueError("its bytes go on behind the value, so they do not fit its schema")
            if alone is not None and isinstance(plain, dict):
                plain = alone, plain
            value: T = msgspec.convert(plain if inward is None else inward(plain), kind)
            return value

        return parse
