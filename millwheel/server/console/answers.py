"""Answers of the API as JSON: protobuf's JSON form, made by a plan for each message type, and kept for equal answers.

A page asks for the same list again and again, and other viewers ask for it, too. As long as the answer is equal, it is
encoded and compressed once.
"""

from __future__ import annotations

import base64
import gzip
import math
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

__all__ = ["FASTEST", "KeptAnswers", "to_json", "zipped"]

_ZIPPED_FROM: Final = 4_096
"""The bytes from which on an answer is compressed. A smaller one fits into a few packets."""
_MAX_KEPT: Final = 8
"""Answers that are kept: those of some views of some viewers."""
_LARGEST_KEPT: Final = 2 << 20
"""The most bytes of a message whose answer is kept. So all kept ones together take some 20 MiB at most."""
FASTEST: Final = 1
"""The level of compression. An answer has the same names again and again, so this makes it several times smaller."""

_Form = Callable[[Any], Any]


def to_json(message: Message) -> dict[str, Any]:
    """Return a message in protobuf's JSON form, with the protos' names.

    A field without a value has its default. A message, or an optional field, that is not set is left out. It is what
    ``json_format.MessageToDict`` returns, in a fifth of the time. Messages of ``google.protobuf`` have another form,
    and no answer contains one.
    """
    made: dict[str, Any] = _object_form(message.DESCRIPTOR)(message)
    return made


class KeptAnswers:
    """The last large answers, compressed."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()

    def content(self, message: Message, *, zips: bool) -> tuple[bytes, bool]:
        """Return the JSON of a message, and whether it is compressed.

        Args:
            message: The answer.
            zips: Whether the client takes a compressed one.
        """
        raw = message.SerializeToString()
        name = (message.DESCRIPTOR.full_name, raw)
        if zips and (found := self._kept.get(name)) is not None:
            self._kept.move_to_end(name)
            return found, True
        body = msgspec.json.encode(to_json(message))
        if not zips or len(body) < _ZIPPED_FROM:
            return body, False
        made = zipped(body, FASTEST)
        if len(raw) <= _LARGEST_KEPT:
            self._kept[name] = made
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return made, True


def zipped(content: bytes, level: int) -> bytes:
    """Return a content, compressed. Equal contents have equal results."""
    return gzip.compress(content, level, mtime=0)


# Plans.


@cache
def _object_form(descriptor: Descriptor) -> _Form:
    """Return what makes an object of a message of a type: its defaults, and then the fields that have a value."""
    fields = list(descriptor.fields)
    defaults = {field.name: _default(field) for field in fields if not field.has_presence}
    forms = {field.number: (field.name, _field_form(field)) for field in fields}

    def form(message: Message) -> dict[str, Any]:
        made = defaults.copy()
        for field, value in message.ListFields():
            name, change = forms[field.number]
            made[name] = value if change is None else change(value)
        return made

    return form


# The class of a field depends on how protobuf was built.


def _default(field: Any) -> Any:
    if field.is_repeated:
        return {} if _is_map(field) else []
    one = _one_form(field)
    return field.default_value if one is None else one(field.default_value)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _field_form(field: Any) -> _Form | None:
    """Return what changes the value of a field into its JSON form. None: nothing has to."""
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return _map_form(_one_form(entry["value"]), of_bool=entry["key"].cpp_type == FieldDescriptor.CPPTYPE_BOOL)
    one = _one_form(field)
    if not field.is_repeated:
        return one
    return list if one is None else lambda values: [one(value) for value in values]


def _map_form(one: _Form | None, *, of_bool: bool) -> _Form:
    form = one or _same
    name = (lambda key: "true" if key else "false") if of_bool else str
    return lambda values: {name(key): form(values[key]) for key in values}


def _one_form(field: Any) -> _Form | None:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return _nested_form(field.message_type)
        case FieldDescriptor.CPPTYPE_INT64 | FieldDescriptor.CPPTYPE_UINT64:
            return str
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return _number
        case FieldDescriptor.CPPTYPE_ENUM:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return lambda value: names.get(value, value)
    return _base64 if field.type == FieldDescriptor.TYPE_BYTES else None


def _nested_form(descriptor: Descriptor) -> _Form:
    """Return the plan of a type. A type may contain itself, so its plan is made when it is used first."""
    found: list[_Form] = []

    def form(message: Message) -> Any:
        if not found:
            found.append(_object_form(descriptor))
        return found[0](message)

    return form


def _same(value: Any) -> Any:
    return value


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
