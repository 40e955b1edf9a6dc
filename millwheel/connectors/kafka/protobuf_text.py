"""A file of Protobuf as text: what a schema registry keeps. Generated classes have the same as a descriptor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from itertools import groupby
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    Edition,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)

__all__ = ["proto_text"]

_LAST_FIELD: Final = (1 << 29) - 1
_LAST_SYMBOL: Final = (1 << 31) - 1
"""The largest number of a field, and of a symbol. Ranges call it ``max``."""
_ESCAPES: Final = {
    **{sign: f"\\{sign:03o}" for sign in (*range(32), 127)},
    **{ord(sign): f"\\{sign}" for sign in '\\"'},
}
"""What stands for some characters in a string."""
_SCALARS: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
}


def proto_text(file: FileDescriptorProto) -> str:
    """The text of a file: the same at each call, and without comments.

    For example, ``proto_text(FileDescriptorProto.FromString(bid_pb2.DESCRIPTOR.serialized_pb))``.

    Args:
        file: Its descriptor. A compiler makes this descriptor of the text again.
    """
    return "\n".join([*_ProtoText(file).lines(), ""])


class _ProtoText:
    """The lines of a file. Its syntax decides how labels and names look."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._syntax = file.syntax or "proto2"

    def lines(self) -> Iterator[str]:
        file = self._file
        if self._syntax == "editions":
            yield f"edition = {_quoted(Edition.Name(file.edition).removeprefix('EDITION_'))};"
        else:
            yield f"syntax = {_quoted(self._syntax)};"
        if file.package:
            yield f"package {file.package};"
        for place, name in enumerate(file.dependency):
            kind = "public " if place in file.public_dependency else "weak " if place in file.weak_dependency else ""
            yield f"import {kind}{_quoted(name)};"
        yield from _statements(file.options)
        yield from self._all(self._enum, file.enum_type)
        yield from self._all(self._message, file.message_type)
        yield from self._extensions(file.extension, file.message_type)
        yield from self._all(_service, file.service)

    def _all(self, lines: Callable[[Any], Iterable[str]], parts: Iterable[Any]) -> Iterator[str]:
        for part in parts:
            yield from lines(part)

    def _message(self, message: DescriptorProto) -> Iterator[str]:
        yield from _block(f"message {message.name}", self._body(message))

    def _body(self, message: DescriptorProto) -> Iterator[str]:
        yield from _statements(message.options)
        inline = _groups([*message.field, *message.extension])
        nested = {one.name: one for one in message.nested_type}
        for _, together in groupby(message.field, key=lambda field: _oneof(field, message)):
            fields = list(together)
            lines = [line for field in fields for line in self._field(field, nested)]
            oneof = _oneof(fields[0], message)
            if oneof is None:
                yield from lines
            else:
                options = _statements(oneof.options)
                yield from _block(f"oneof {oneof.name}", [*options, *lines])
        yield from self._all(self._enum, message.enum_type)
        for one in message.nested_type:
            if one.name not in inline and not one.options.map_entry:
                yield from self._message(one)
        yield from self._extensions(message.extension, message.nested_type)
        for part in message.extension_range:
            yield f"extensions {_range(part.start, part.end - 1, _LAST_FIELD)}{_brackets(part.options)};"
        yield from self._reserved(
            [_range(one.start, one.end - 1, _LAST_FIELD) for one in message.reserved_range], message.reserved_name
        )

    def _field(self, field: FieldDescriptorProto, nested: dict[str, DescriptorProto]) -> Iterator[str]:
        name = field.type_name.rpartition(".")[2]
        entry = nested.get(name)
        if entry is not None and entry.options.map_entry:
            key, value = (_type(one) for one in entry.field)
            yield f"map<{key}, {value}> {field.name} = {field.number}{_details(field)};"
        elif field.type == FieldDescriptorProto.TYPE_GROUP:
            head = f"{self._label(field)}group {name} = {field.number}{_details(field)}"
            yield from _block(head, self._body(nested[name]))
        else:
            yield f"{self._label(field)}{_type(field)} {field.name} = {field.number}{_details(field)};"

    def _label(self, field: FieldDescriptorProto) -> str:
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return "repeated "
        if field.proto3_optional:
            return "optional "
        if self._syntax != "proto2" or field.HasField("oneof_index"):
            return ""
        return "required " if field.label == FieldDescriptorProto.LABEL_REQUIRED else "optional "

    def _extensions(
        self, extensions: Iterable[FieldDescriptorProto], nested: Iterable[DescriptorProto]
    ) -> Iterator[str]:
        messages = {one.name: one for one in nested}
        for extended, fields in groupby(extensions, key=lambda field: field.extendee):
            yield from _block(f"extend {extended}", [line for one in fields for line in self._field(one, messages)])

    def _enum(self, enum: EnumDescriptorProto) -> Iterator[str]:
        symbols = [f"{one.name} = {one.number}{_brackets(one.options)};" for one in enum.value]
        ranges = [_range(one.start, one.end, _LAST_SYMBOL) for one in enum.reserved_range]
        reserved = self._reserved(ranges, enum.reserved_name)
        yield from _block(f"enum {enum.name}", [*_statements(enum.options), *symbols, *reserved])

    def _reserved(self, ranges: Sequence[str], names: Iterable[str]) -> Iterator[str]:
        if ranges:
            yield f"reserved {', '.join(ranges)};"
        shown = [name if self._syntax == "editions" else _quoted(name) for name in names]
        if shown:
            yield f"reserved {', '.join(shown)};"


def _service(service: ServiceDescriptorProto) -> Iterator[str]:
    lines = list(_statements(service.options))
    for one in service.method:
        asked = f"{'stream ' if one.client_streaming else ''}{one.input_type}"
        answered = f"{'stream ' if one.server_streaming else ''}{one.output_type}"
        head = f"rpc {one.name} ({asked}) returns ({answered})"
        lines += _block(head, _statements(one.options)) if one.HasField("options") else [f"{head};"]
    yield from _block(f"service {service.name}", lines)


def _groups(fields: Iterable[FieldDescriptorProto]) -> set[str]:
    """The names of messages that stand within the fields that have them."""
    return {one.type_name.rpartition(".")[2] for one in fields if one.type == FieldDescriptorProto.TYPE_GROUP}


def _oneof(field: FieldDescriptorProto, message: DescriptorProto) -> Any:
    """The oneof of a field. An optional field of proto3 has one that no text has."""
    is_in_one = field.HasField("oneof_index") and not field.proto3_optional
    return message.oneof_decl[field.oneof_index] if is_in_one else None


def _type(field: FieldDescriptorProto) -> str:
    return field.type_name or _SCALARS[field.type]


def _details(field: FieldDescriptorProto) -> str:
    """The brackets behind a field."""
    first = []
    if field.HasField("default_value"):
        value = field.default_value
        if field.type == FieldDescriptorProto.TYPE_STRING:
            value = _quoted(value)
        elif field.type == FieldDescriptorProto.TYPE_BYTES:
            value = f'"{value}"'  # it is escaped already
        first.append(f"default = {value}")
    if field.json_name not in ("", _json_name(field.name)) and not field.extendee:
        first.append(f"json_name = {_quoted(field.json_name)}")
    return _brackets(field.options, first)


def _json_name(name: str) -> str:
    """The name in JSON that a field has by itself."""
    first, *others = name.split("_")
    return first + "".join(one[:1].upper() + one[1:] for one in others)


def _options(options: Any) -> Iterator[str]:
    """The options that are set, each as its name and value."""
    for field, value in options.ListFields():
        name = f"({field.full_name})" if field.is_extension else field.name
        for one in value if field.is_repeated else [value]:
            out = StringIO()
            text_format.PrintFieldValue(field, one, out, as_utf8=True, as_one_line=True)
            yield f"{name} = {out.getvalue().strip()}"


def _statements(options: Any) -> Iterator[str]:
    return (f"option {one};" for one in _options(options))


def _brackets(options: Any, first: Iterable[str] = ()) -> str:
    shown = ", ".join([*first, *_options(options)])
    return f" [{shown}]" if shown else ""


def _range(first: int, last: int, most: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last == most else last}"


def _block(head: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"{head} {{"
    for line in lines:
        yield f"  {line}"
    yield "}"


def _quoted(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'
