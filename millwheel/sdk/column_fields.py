"""Which columns of Arrow are the fields of records, so that no value needs to be made for them (sections 4.2, 5.2; G1).

A record of columns has a value: the map of its row. It is made, and decoded as the stream's type, where a hook needs
it. Numbers may be taken from a column instead if that has the same effect for each row: its value can be decoded, and
the field then has the number in the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final, get_origin

import msgspec

from millwheel.sdk.exact_types import behind, is_plain_struct, unless_none
from millwheel.sdk.typeinfo import cached_by_type, type_name

__all__ = ["COLUMN_TYPES", "ColumnFields", "column_fields", "encoded_fields", "has_plain_default"]

COLUMN_TYPES: Final = (bool, int, float, str, bytes)
"""The types of the values of columns."""
_EMPTY: Final = (list, dict, set, bytearray)
"""Functions that make a default, and are no user's code."""


class ColumnFields:
    """The fields of a struct, and the columns that they are in.

    >>> class Bid(msgspec.Struct, rename="camel"):
    ...     item: str
    ...     best_price: int
    >>> fields = column_fields(Bid)
    >>> fields.columns_of([("best_price", int)], {"item": str, "bestPrice": int})
    ['bestPrice']
    >>> fields.columns_of([("best_price", int)], {"item": str, "bestPrice": float})  # a value may be refused
    """

    def __init__(self, fields: Sequence[msgspec.structs.FieldInfo], closed: bool) -> None:
        """
        Args:
            fields: The fields of the struct.
            closed: Whether it refuses values with other fields.
        """
        self._names = {one.name: one.encode_name for one in fields}
        self._types = {one.encode_name: behind(unless_none(one.type) or one.type) for one in fields}
        """What the column of a field has exactly, beside nulls. A field that may be None takes it, too."""
        self._take_nulls = {one.encode_name for one in fields if unless_none(one.type) is not None}
        self._needed = {one.encode_name for one in fields if one.required or not has_plain_default(one)}
        self._closed = closed

    def problem(self, wanted: Iterable[tuple[str, type]]) -> str:
        """Why no columns can have some fields of the records. Empty: there may be such columns. See ``columns_of``."""
        wanted = list(wanted)
        needed = [(name, self._types[name]) for name in self._needed]
        for name, kind in [*needed, *wanted]:
            if kind not in COLUMN_TYPES:
                return f"the field {name!r} of its records is no plain text, number or truth value"
        for field, kind in wanted:
            found = self._types.get(self._names.get(field, ""))
            if found is not kind:
                return f"the field {field!r} of its records is no plain {kind.__name__}"
        return ""

    def columns_of(
        self, wanted: Iterable[tuple[str, type]], columns: Mapping[str, type], nulls: Set[str] = frozenset()
    ) -> list[str] | None:
        """The columns that have some fields of the records.

        Args:
            wanted: The names of the fields as Python has them, each with the type of the numbers that are wanted.
            columns: The types of the values of the columns, by name, that are not null.
            nulls: The names of the columns that have nulls. Where a field is wanted, the column may be one of these.

        Returns:
            The names of the columns. None: only the values of the records say what is in these fields.
        """
        types = self._types
        if not self._needed <= columns.keys() or (self._closed and not columns.keys() <= types.keys()):
            return None
        if any(types.get(name, kind) is not kind for name, kind in columns.items()):
            return None
        if nulls and not nulls & types.keys() <= self._take_nulls:
            return None  # a value with None cannot be decoded
        found: list[str] = []
        for field, kind in wanted:
            name = self._names.get(field)
            if name is None or columns.get(name) is not kind:
                return None
            found.append(name)
        return found


@cached_by_type
def column_fields(record_type: Any) -> ColumnFields | None:
    """How the fields of values of a type are found in columns. None: only the values say it."""
    struct = get_origin(record_type) or record_type
    if not is_plain_struct(struct):
        return None
    config = struct.__struct_config__
    if config.array_like or config.tag is not None:
        return None
    return ColumnFields(msgspec.structs.fields(record_type), config.forbid_unknown_fields)


def encoded_fields(record_type: Any) -> Sequence[msgspec.structs.FieldInfo] | str:
    """The fields of a type whose encoded values have each of them, in their order. A text: why it is no such type."""
    struct = get_origin(record_type) or record_type
    if column_fields(record_type) is None:
        return f"the type {type_name(record_type)} is no plain struct"
    if struct.__struct_config__.omit_defaults:
        return f"the type {type_name(record_type)} leaves out defaults (omit_defaults)"
    return msgspec.structs.fields(record_type) or f"the type {type_name(record_type)} has no fields"


def has_plain_default(field: msgspec.structs.FieldInfo | msgspec.inspect.Field) -> bool:
    """Whether no user's code makes the value of a field that is missing."""
    factory = field.default_factory
    return factory is msgspec.NODEFAULT or any(factory is one for one in _EMPTY)
