"""What an aggregate reads of a value: a field, the result of a function, or the value itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, get_origin

from millwheel.sdk.errors import UsageError
from millwheel.sdk.expressions import Expression, plain_function
from millwheel.sdk.field_paths import has_attributes, source_of, type_at
from millwheel.sdk.records import Record
from millwheel.sdk.typeinfo import members, returned_type, type_name

__all__ = ["NUMBER", "Of", "Reader", "Where", "always", "same"]

NUMBER: Final[Any] = int | float
"""The type of what is read, if nothing determines it."""

Of = str | Callable[[Any], Any] | None
"""A field's path, a function of the value, or None for the value itself."""
Where = Callable[[Any], bool] | None
"""Which records count, by their values. None: all."""


_NO_NUMBERS: Final = frozenset({str, bytes, tuple, list, dict, set, frozenset})
"""Types whose values are surely no numbers. A class of the user's may define ``+``."""


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """Reads ``of`` from a value. ``item`` is the type of what is read. None: the type of the records determines it.

    ``objection``: why such records are no good input, as what is read may be None. A None is then a TypeError with this
    text. Empty: there is none.
    """

    of: Of
    item: Any = None
    objection: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.of, Expression) and self.of.operator == "col":
            object.__setattr__(self, "of", self.of.parts[0])

    def type_in(self, record_type: Any) -> Any:
        """The type of what is read from values of a type.

        Raises:
            UsageError: The type has no such field.
        """
        if self.item is not None:
            return self.item
        if self.of is None:
            return record_type
        if isinstance(self.of, Expression):
            kind = self.of.type_in(record_type)
            return NUMBER if kind is None else kind
        if not isinstance(self.of, str):
            returned = returned_type(self.of)
            return NUMBER if returned in (None, Any) else returned
        kind = type_at(record_type, self.of)
        return NUMBER if kind is None else kind

    def of_numbers(self, called: str, record_type: Any, where: Where = None) -> Reader:
        """The reader of numbers from values of a type. It has an objection if some may be None, and ``where`` is none.

        That is no error here: a topology that runs was perhaps submitted when this was no mistake, and must load. It is
        refused where a topology is checked (``Objection``). A given type does not say that there are no Nones.

        Args:
            called: The aggregate.
            record_type: The type of the values.
            where: Which records count: they may be those with a number.

        Raises:
            UsageError: The type has no such field. Or what is read may be a text or a collection.
        """
        kind = self.type_in(record_type)
        parts = members(kind)
        declared = kind if self.item is None else self._declared_in(record_type)
        some = [one in _NO_NUMBERS for one in map(_plain, parts) if one is not type(None)]
        read = (
            f"agg.{called} takes numbers, but {repr(self.of) if isinstance(self.of, str | Expression) else 'a value'}"
        )
        if some and (any(some) if where is None else all(some)):
            raise UsageError(f"{read} is {type_name(kind)}: name a field of numbers")
        if where is not None or type(None) not in (*parts, *members(declared)):
            return self
        shown = type_name(kind if type(None) in parts else declared)
        return replace(
            self,
            objection=f"{read} is {shown}: leave out the records without a number by where=, or read a "
            "function that returns a number for them",
        )

    def _declared_in(self, record_type: Any) -> Any:
        """The type that the records declare of what is read. NUMBER if they have no such field."""
        try:
            return replace(self, item=None).type_in(record_type)
        except UsageError:
            return NUMBER

    @property
    def get(self) -> Callable[[Any], Any]:
        """The function that reads a value."""
        if self.objection:
            return _no_none(replace(self, objection="").get, self.objection)
        if self.of is None:
            return same
        if isinstance(self.of, str):
            return _path(self.of) if "." in self.of else _field(self.of)
        return self.of

    def source(self, record_type: Any) -> str:
        """Python source that reads the variable ``value``. Empty: only ``get`` can."""
        if self.objection:
            return ""
        if self.of is None:
            return "value"
        if isinstance(self.of, str) and has_attributes(record_type, self.of):
            return source_of(record_type, self.of)
        if isinstance(self.of, Expression) and all(has_attributes(record_type, path) for path in self.of.paths()):
            return self.of.source(record_type)
        return ""

    def of_records(self, record_type: Any = Any) -> Callable[[Record[Any]], Any]:
        """The function that reads the value of a record. It is faster where the type shows that ``of`` is a field."""
        if self.objection:
            return _no_none(replace(self, objection="").of_records(record_type), self.objection)
        if self.of is None:
            return attrgetter("value")
        if isinstance(self.of, str) and has_attributes(record_type, self.of):
            return attrgetter(f"value.{self.of}")
        get = plain_function(self.get, record_type)
        if not isinstance(self.of, str) and self.item is None and returned_type(get) in (None, Any):
            return _numbers(get)
        return lambda record: get(record.value)


def _numbers(get: Callable[[Any], Any]) -> Callable[[Record[Any]], Any]:
    """Reads by a function that states no type, so its values are taken for numbers."""

    def read(record: Record[Any]) -> Any:
        value = get(record.value)
        if value.__class__ in _NO_NUMBERS:
            raise TypeError(
                f"an aggregate's function returned {value!r:.80}, and states no type, so it is taken for a number: "
                f"name a field instead, or write a function that is annotated to return {type_name(type(value))}"
            )
        return value

    return read


def _no_none(get: Callable[[Any], Any], objection: str) -> Callable[[Any], Any]:
    """Reads by ``get``. A None is a TypeError, which says what to do."""

    def read(source: Any) -> Any:
        value = get(source)
        if value is None:
            raise TypeError(f"this record has None, and {objection}")
        return value

    return read


def _field(name: str) -> Callable[[Any], Any]:
    """A field of a struct or, in a dict, an item."""
    return lambda value: value[name] if value.__class__ is dict else getattr(value, name)


def _path(path: str) -> Callable[[Any], Any]:
    fields = [_field(name) for name in path.split(".")]

    def read(value: Any) -> Any:
        for field in fields:
            value = field(value)
        return value

    return read


def _plain(kind: Any) -> Any:
    """The class of a type: list for ``list[int]``."""
    return get_origin(kind) or kind


def same(value: Any) -> Any:
    """The value itself."""
    return value


def always(one: Any, other: Any) -> bool:
    """``differ`` of an aggregate whose result each record changes. Its ``add`` may change an accumulator in place."""
    return True
