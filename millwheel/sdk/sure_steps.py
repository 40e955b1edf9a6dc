"""Which steps between a stream and its reader raise for no record, as far as types show it (sections 4.2, 4.3).

Where one of them may raise, the sender runs it, and gets the error of that record.

*Invariant: steps that are accepted here raise for no value that decodes as the type.* So the rules refuse what is in
doubt: fields that may be None in arithmetic or in an order, divisions, and fields that are not plain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from millwheel.sdk.column_fields import COLUMN_TYPES, column_fields, has_plain_default
from millwheel.sdk.exact_types import behind, unless_none
from millwheel.sdk.expressions import Expression
from millwheel.sdk.selections import Selection

__all__ = ["never_raise"]

_NUMBERS: Final = (bool, int, float)
_WIRE_BITS: Final = 64
"""An integer of an encoded value has no more bits."""
_FLOAT_BITS: Final = 1_000
"""A float may be of any integer with so many bits. A larger integer may be an error beside a float."""


class _Result(NamedTuple):
    """What an expression gives for each record."""

    kind: type
    may_be_none: bool = False
    bits: int = _WIRE_BITS
    """An integer has no more bits."""


def never_raise(steps: Sequence[Expression | Selection], record_type: Any) -> bool:
    """Whether filters and selections raise for no record of a type. False proves nothing.

    >>> from millwheel.sdk.expressions import col
    >>> class Stock(msgspec.Struct):
    ...     sold: int
    ...     left: int | None = None
    >>> never_raise([col("sold") > 1], Stock), never_raise([col("left") > 1], Stock)
    (True, False)
    """
    fields = _fields_of(record_type)
    for step in steps:
        if fields is None:
            return False
        if isinstance(step, Selection):
            fields = _selected(step, fields)
        elif _result(step, fields) is None:
            return False
    return fields is not None


def _fields_of(record_type: Any) -> dict[str, _Result] | None:
    """The plain fields of a struct. None: reading a field may run the user's code."""
    if column_fields(record_type) is None:
        return None
    found = dict[str, _Result]()
    for field in msgspec.structs.fields(record_type):
        present = unless_none(field.type)
        kind = behind(present or field.type)
        if kind in COLUMN_TYPES:
            found[field.name] = _Result(kind, present is not None)
    return found


def _selected(step: Selection, fields: Mapping[str, _Result]) -> dict[str, _Result] | None:
    """The fields of the values that a selection makes, as its expressions give them: no value is checked there.

    None: it may raise for a record.
    """
    if column_fields(step.to) is None or any(
        field.name not in step.fields and not has_plain_default(field) for field in msgspec.structs.fields(step.to)
    ):
        return None
    found = dict[str, _Result]()
    for name, expression in step.fields.items():
        if (result := _result(expression, fields)) is not None:
            found[name] = result
        elif expression.operator != "col" or "." in expression.parts[0]:
            return None  # another field that is taken over is only copied
    return found


def _result(one: Expression, fields: Mapping[str, _Result]) -> _Result | None:
    """What an expression gives. None: it may raise."""
    if one.operator == "col":
        return fields.get(one.parts[0])
    if one.operator == "const":
        return _constant(one.parts[0])
    parts = [_result(part, fields) for part in one.parts]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if one.operator in ("~", "&", "|", "==", "!=", "in"):
        return _Result(bool)
    if any(part.may_be_none for part in known):
        return None
    if one.operator in ("<", "<=", ">", ">="):
        alike = known[0].kind is known[1].kind or all(part.kind in _NUMBERS for part in known)
        return _Result(bool) if alike else None
    return _calculated(one.operator, known)


def _constant(value: Any) -> _Result:
    """What a constant gives, or the items of ``is_in``."""
    bits = value.bit_length() if isinstance(value, int) else _WIRE_BITS
    return _Result(type(value), value is None, bits)


def _calculated(operator: str, parts: Sequence[_Result]) -> _Result | None:
    if operator not in ("+", "-", "*", "-x") or any(part.kind not in _NUMBERS for part in parts):
        return None
    bits = [part.bits for part in parts if part.kind is not float]
    if len(bits) < len(parts):
        return _Result(float) if max(bits, default=0) <= _FLOAT_BITS else None
    return _Result(int, bits=sum(bits) + 1)
