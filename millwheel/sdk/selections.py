"""Values whose fields are fields of a record or expressions of them: a function whose content is known (section 2).

Like an expression it is called with a value. Beside that, its fields are checked when a program is built, windows by
columns compute them for a whole delivery at once, and a key that it takes over is known without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millwheel.sdk.errors import UsageError, did_you_mean
from millwheel.sdk.exact_types import is_writable
from millwheel.sdk.expressions import Expression, col
from millwheel.sdk.field_paths import type_at
from millwheel.sdk.typeinfo import can_be_read_as, describe_type, field_of, type_name

__all__ = ["Selection", "selection_of"]


class Selection:
    """How a value of type ``to`` is made of a record of type ``record_type``.

    >>> import msgspec
    >>> class Sale(msgspec.Struct):
    ...     shop: str
    ...     cents: int
    >>> class Income(msgspec.Struct):
    ...     shop: str
    ...     euros: float
    >>> Selection(Income, {"euros": col("cents") / 100}, Sale).function()(Sale("north", 250))
    Income(shop='north', euros=2.5)
    """

    def __init__(self, to: Any, given: Mapping[str, Any], record_type: Any) -> None:
        """
        Args:
            to: A struct, a dataclass or another type with named fields.
            given: By field: an expression, or the path of a field. The others are those of the same names.
            record_type: The type of the records. Any: it is not known.

        Raises:
            UsageError: ``to`` has no such field, or needs one that is not given. Or the records have no such field. Or
                a field cannot hold what it is given.
        """
        self.to = to
        self.record_type = record_type
        try:
            fields = describe_type(to).fields  # type: ignore[attr-defined]  # of a type with named fields
        except Exception as error:  # msgspec raises many
            raise UsageError(
                f"select makes values of structs, dataclasses and other types with named fields, and {type_name(to)} "
                f"is none ({error})"
            ) from error
        names = [field.name for field in fields if is_writable(field.name)]
        if unknown := [name for name in given if name not in names]:
            hint = did_you_mean(unknown[0], names)
            raise UsageError(f"select: {type_name(to)} has no field {unknown[0]!r}{hint}; its fields are {names}")
        self.fields: dict[str, Expression] = {}
        """By field: what it is made of. A field that is missing has its default."""
        for field in fields:
            if field.name in given:
                self.fields[field.name] = self._given(field.name, given[field.name])
            elif not isinstance(field_of(record_type, field.name), str):
                self.fields[field.name] = col(field.name)
            elif field.required:
                raise UsageError(
                    f"select: {type_name(to)} needs the field {field.name!r}, which {type_name(record_type)} has not: "
                    f"give an expression for it, such as {field.name}=mw.col('...')"
                )
        for name, expression in self.fields.items():
            self._check(name, expression)

    def _given(self, name: str, given: Any) -> Expression:
        if isinstance(given, Expression):
            return given
        if isinstance(given, str):
            return col(given)
        raise UsageError(f"select: {name}= takes an expression or the name of a field, not {given!r:.80}: call map")

    def _check(self, name: str, expression: Expression) -> None:
        """Check that the field can hold the expression, as far as types show it."""
        plain = expression.operator == "col"
        kind = type_at(self.record_type, expression.parts[0]) if plain else expression.type_in(self.record_type)
        field = field_of(self.to, name)
        wanted = None if field is None or isinstance(field, str) else field.type
        if kind is not None and wanted is not None and not can_be_read_as(wanted, kind):
            raise UsageError(
                f"select: the field {name!r} of {type_name(self.to)} is {type_name(wanted)}, and {expression!r} is "
                f"{type_name(kind)}"
            )

    def function(self) -> Callable[[Any], Any]:
        """A plain function of a record's value, which makes the value."""
        parts = (f"{name}={one.source(self.record_type)}" for name, one in self.fields.items())
        names: dict[str, Any] = {"__name__": __name__, "made": self.to}
        exec(f"def run(value): return made({', '.join(parts)})", names)
        run: Any = names["run"]
        run.__qualname__, run.selection = repr(self), self
        run.__annotations__ = {"return": self.to}
        found: Callable[[Any], Any] = run
        return found

    def __repr__(self) -> str:
        return f"select({type_name(self.to)})"

    def source_of(self, path: str) -> str | None:
        """The path in the record of what is at a path in the value that is made. None: it is computed, or a default."""
        name, _, rest = path.partition(".")
        expression = self.fields.get(name)
        if expression is None or expression.operator != "col":
            return None
        return f"{expression.parts[0]}.{rest}" if rest else str(expression.parts[0])


def selection_of(function: Any) -> Selection | None:
    """The selection that a function was made of. None: it is another one."""
    found = getattr(function, "selection", None)
    return found if isinstance(found, Selection) else None
