"""Whether values that were written by one record type can be read by another (sections 4.1, 4.2). Pure.

Invariant: an accepted type decodes every value that the other type encodes, as far as their schemas say what they
decode. What only the user's code refuses, in ``__post_init__`` or a codec, is in no schema.

With ``keep_fields`` the relation is also transitive: fields are never removed, so no later version gives the name of a
field another type. A version that is compared with the last one can therefore read the records of all earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.record_schema import ANY, CONSTRAINTS

__all__ = ["UNTYPED", "StreamDifference", "stream_difference", "unreadable_parts"]

UNTYPED: Final = frozenset({"", "Any"})
"""The record types of streams without a declared type."""

_LOWER_BOUNDS: Final = frozenset({"gt", "ge", "min_length"})
_UPPER_BOUNDS: Final = frozenset({"lt", "le", "max_length"})
_SHOWN: Final = 3
"""The most values of an enum or a literal in a message, and the depth to which it shows a type."""

_DAMAGED: Final = (LookupError, AttributeError, TypeError, ValueError, RecursionError, msgspec.MsgspecError)
"""What a schema raises that no MillWheel wrote. A client may send any bytes."""

_Pair = tuple[str, int, int]
"""The path of a value, and the indexes of its written type and of the type that reads it."""


@dataclass(frozen=True, slots=True)
class StreamDifference:
    """Why records of one declaration of a stream cannot be read by another one."""

    what: str
    """What differs: "type" or "format"."""
    written: str
    read: str
    unreadable: Sequence[str] = ()
    """The parts of the type that cannot be read. Empty: the types have no schemas, or the formats differ."""


def stream_difference(written: specs.StreamSpec, read: specs.StreamSpec, *, replaces: bool) -> StreamDifference | None:
    """Return why ``read`` cannot decode all records of ``written``; None if it can.

    Types are compared by their schemas. If one has no schema, types are compared by their names, and then formats.

    Args:
        written: The declaration that encodes.
        read: The declaration that decodes.
        replaces: Whether ``read`` replaces ``written`` in its topology. Then it must have all fields. Otherwise a
            declaration without a type or without a format goes with every other one.
    """
    typed = replaces or UNTYPED.isdisjoint((written.record_type, read.record_type))
    if typed and _have_schemas(written, read):
        unreadable = unreadable_parts(written.schema, read.schema, keep_fields=replaces)
        return StreamDifference("type", written.record_type, read.record_type, unreadable) if unreadable else None
    if typed and written.record_type != read.record_type:
        return StreamDifference("type", written.record_type, read.record_type)
    if written.format != read.format and (replaces or (written.format and read.format)):
        return StreamDifference("format", _format(written), _format(read))
    return None


def _format(stream: specs.StreamSpec) -> str:
    return specs.ValueFormat.Name(stream.format).removeprefix("VALUE_FORMAT_").lower()


def _have_schemas(*streams: specs.StreamSpec) -> bool:
    """Whether all types have a schema that says more than their name.

    Specs of older versions, codecs, protobuf messages and very large types have no schema. The schema of a class
    such as an array's says nothing but its name.
    """
    return all(one.schema.types and not _is_opaque(_SchemaTypes(one.schema)) for one in streams)


def _is_opaque(types: _SchemaTypes) -> bool:
    try:
        return types.kind(0) == "any" and types.options(0).get("type") != ANY
    except _DAMAGED:
        return False  # the comparison reports it


def unreadable_parts(written: specs.RecordSchema, read: specs.RecordSchema, *, keep_fields: bool) -> list[str]:
    """Say why ``read`` cannot decode all values of ``written``; empty if it can.

    Args:
        written: The schema of the type that encodes.
        read: The schema of the type that decodes.
        keep_fields: Whether ``read`` must have all fields of ``written``.
    """
    try:
        return list(_Comparison(written, read, keep_fields).differences())
    except _DAMAGED:
        return ["its schema is damaged"]


class _Comparison:
    """Compares two schemas. It follows no alternatives, so each pair of types is compared once."""

    def __init__(self, written: specs.RecordSchema, read: specs.RecordSchema, keep_fields: bool) -> None:
        self._written = _SchemaTypes(written)
        self._read = _SchemaTypes(read)
        self._keep_fields = keep_fields

    def differences(self) -> Iterator[str]:
        pending: list[_Pair] = [("", 0, 0)]
        seen: set[tuple[int, int]] = set()
        while pending:
            path, then, now = pending.pop()
            if (then, now) not in seen:
                seen.add((then, now))
                yield from self._union(path, then, now, pending)

    def _union(self, path: str, then: int, now: int, pending: list[_Pair]) -> Iterator[str]:
        """Find what reads each member of a union. msgspec allows members of one kind only if they have no parts."""
        members = self._written.members(then)
        for member in members:
            readers = [one for one in self._read.members(now) if self._read_by(member, one)]
            if not readers or self._is_ambiguous(members, now):
                yield f"{_named(path)} written as {self._written.text(member)} and read as {self._read.text(now)}"
            for reader in readers:
                if self._read.kind(reader) == "struct":
                    yield from self._struct(path, member, reader, pending)
                elif self._read.kind(reader) != "any":
                    same = [one for one in members if self._written.kind(one) == self._read.kind(reader)]
                    yield from self._constraints(path, same, reader)
                    pairs = zip(self._written.parts(member), self._read.parts(reader), strict=True)
                    pending.extend((f"{path}[]", *pair) for pair in pairs)

    def _read_by(self, then: int, now: int) -> bool:
        """Whether the second type is the one that reads values of the first, apart from their parts."""
        before, after = self._written.options(then), self._read.options(now)
        kind = self._read.kind(now)
        if kind == "any" and after.get("type", ANY) == ANY:
            return True
        if kind != self._written.kind(then):
            return False
        if kind == "any":  # an older version does not name the type
            return bool(before.get("type", after["type"]) == after["type"])
        if kind == "literal":
            return _values(before) <= _values(after)
        if kind == "struct":
            return _identity(before) == _identity(after)
        return len(self._written.parts(then)) == len(self._read.parts(now))

    def _is_ambiguous(self, members: list[int], now: int) -> bool:
        """Whether an integer that was written as a float would be read by the new member for integers."""
        before = {self._written.kind(one) for one in members}
        after = {self._read.kind(one) for one in self._read.members(now)}
        return "float" in before and bool((after - before) & {"int", "literal"})

    def _constraints(self, path: str, members: list[int], reader: int) -> Iterator[str]:
        """Compare the constraints of members of one kind. msgspec applies those of all of them."""
        before = [self._written.options(one) for one in members]
        for name, limit in self._read.options(reader).items():
            if name in CONSTRAINTS and not any(_implies(name, one.get(name), limit) for one in before):
                yield f"{_named(path)} read with {name}={limit!r}, which was not required"

    def _struct(self, path: str, then: int, now: int, pending: list[_Pair]) -> Iterator[str]:
        before, after = self._written.fields(then), self._read.fields(now)
        by_place = self._read.options(now).get("array_like", False)
        for place, (name, field) in enumerate(after.items()):
            at = f"{path}.{name}".removeprefix(".")
            was = before.get(name)
            if by_place and place < len(before) and list(before)[place] != name:
                yield f"field {at!r} is read where {list(before)[place]!r} was written"
            elif was is None and not field.optional:
                yield f"field {at!r} is new and has no default"
            elif was is not None and was.optional and not field.optional:
                yield f"field {at!r} has no default any more"
            elif was is not None:
                pending.append((at, was.type, field.type))
        if self._keep_fields or self._read.options(now).get("forbid_unknown_fields", False):
            for name in before.keys() - after.keys():
                yield f"field {f'{path}.{name}'.removeprefix('.')!r} is written and not read"


class _SchemaTypes:
    """The types of a schema, by their indexes."""

    def __init__(self, schema: specs.RecordSchema) -> None:
        self._types = schema.types

    def kind(self, index: int) -> str:
        return self._types[index].kind

    def parts(self, index: int) -> list[int]:
        return list(self._types[index].parts)

    def members(self, index: int) -> list[int]:
        return self.parts(index) if self.kind(index) == "union" else [index]

    def fields(self, index: int) -> dict[str, specs.FieldSchema]:
        return {field.name: field for field in self._types[index].fields}

    def options(self, index: int) -> dict[str, Any]:
        options = self._types[index].options
        return msgspec.msgpack.decode(options, type=dict[str, Any]) if options else {}

    def text(self, index: int, depth: int = _SHOWN) -> str:
        """The type in readable form. It has no names of the user's classes, because these are not stored."""
        kind, options = self.kind(index), self.options(index)
        if kind == "literal":
            values = options["values"]
            return f"one of {', '.join(map(repr, values[:_SHOWN]))}{', …' if len(values) > _SHOWN else ''}"
        if kind == "struct":
            return "object" if "tag" not in options else f"object tagged {options['tag']!r}"
        if kind == "any":
            return str(options.get("type", ANY))
        inner = [self.text(part, depth - 1) if depth else "…" for part in self.parts(index)]
        if kind == "union":
            return " | ".join(inner)
        name = "tuple" if kind == "vartuple" else kind
        return f"{name}[{', '.join(inner)}]" if inner else name


def _named(path: str) -> str:
    return f"field {path!r} is" if path else "its value is"


def _identity(options: dict[str, Any]) -> tuple[Any, Any, bool]:
    """What an encoded struct says of its type."""
    return options.get("tag_field"), options.get("tag"), bool(options.get("array_like"))


def _values(options: dict[str, Any]) -> set[tuple[type, Any]]:
    """The values of an enum or a literal. A bool is no int here, as in MessagePack."""
    return {(type(value), value) for value in options["values"]}


def _implies(name: str, before: Any, after: Any) -> bool:
    """Whether values under a constraint ``before`` also satisfy ``after``. None: no constraint."""
    if before is None or before == after:
        return bool(before == after)
    return bool((name in _LOWER_BOUNDS and before > after) or (name in _UPPER_BOUNDS and before < after))
