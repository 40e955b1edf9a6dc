"""Expressions of the fields of a record, such as ``mw.col("price") > 100``: functions whose content is known.

An expression is called with a value, as a function is. Beside that, its fields are checked when a program is built, and
windows by columns compute it for a whole delivery at once (``expression_columns``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, cast

from millwheel.sdk.errors import UsageError
from millwheel.sdk.field_paths import source_of, type_at
from millwheel.sdk.typeinfo import supertype

__all__ = ["Expression", "col", "expression_of", "plain_function"]

_COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=", "in")
_FORMS: Final = {
    "-x": "(-{})",
    "~": "(not {})",
    "&": "(True if {} and {} else False)",
    "|": "(True if {} or {} else False)",
}
"""Python source of the operators that are not written between their operands, or mean something else there."""
_CONSTANTS: Final = (bool, int, float, str, bytes, type(None))
_NUMBERS: Final = (bool, int, float)
_MAX_DEPTH: Final = 100
"""The most levels of an expression. Python compiles up to 200 parentheses within each other."""
_MAX_SIZE: Final = 1_000
"""The most parts. An expression that is added to itself again and again would soon have more than any memory."""


def _binary(operator: str, *, swapped: bool = False) -> Callable[[Expression, Any], Expression]:
    """The method of an operator between two operands. ``swapped``: the other one stands first."""
    return lambda self, other: _joined(operator, *((other, self) if swapped else (self, other)))


class Expression:
    """A function of a record's value that reads its fields, made by :func:`col` and by operators.

    There are ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``+``, ``-``, ``*``, ``/``, ``&`` (and), ``|`` (or), ``~``
    (not) and :meth:`is_in`. Each means what it means in a Python function. ``&`` and ``|`` look at their right side
    only if they need it. For example::

        >>> import millwheel as mw
        >>> dear = (mw.col("price") > 100) & mw.col("item").is_in(["tea", "jam"])
        >>> dear
        (col('price') > 100) & col('item').is_in(['tea', 'jam'])
        >>> dear({"price": 120, "item": "tea"})
        True
    """

    __slots__ = ("_made", "_members", "_run", "depth", "operator", "parts", "size")

    def __init__(self, operator: str, *parts: Any) -> None:
        """
        Args:
            operator: What is computed: ``col``, ``const``, ``in`` or an operator.
            parts: The operands. Or the field's path, or the constant, which for ``is_in`` is a tuple.
        """
        self.operator = operator
        self.parts = parts
        inner = [one for one in parts if isinstance(one, Expression)]
        self.depth: int = 1 + max((one.depth for one in inner), default=0)
        self.size: int = 1 + sum(one.size for one in inner)
        self._made: tuple[Any, Callable[[Any], Any]] | None = None
        self._run: Callable[[Any], Any] | None = None
        self._members: frozenset[Any] | None = None
        if self.depth > _MAX_DEPTH or self.size > _MAX_SIZE:
            raise UsageError(f"an expression has at most {_MAX_DEPTH} levels and {_MAX_SIZE:,} parts: write a function")

    def __call__(self, value: Any) -> Any:
        self._run = self._run or self.function()
        return self._run(value)

    def is_in(self, items: Iterable[Any]) -> Expression:
        """Whether it is one of some texts or whole numbers. For example ``mw.col("item").is_in(["tea", "jam"])``.

        Args:
            items: The texts, or the whole numbers.

        Raises:
            UsageError: They are neither, or both.
        """
        given = [*items] if isinstance(items, Iterable) and not isinstance(items, str | bytes) else []
        kinds = set(map(type, given))
        if kinds not in ({str}, {int}):
            raise UsageError(f"is_in takes a list of texts or a list of whole numbers, not {items!r:.80}")
        ordered = given if isinstance(items, list | tuple) else sorted(given)  # a set has an order of its process
        return Expression("in", self, Expression("const", tuple(dict.fromkeys(map(_constant, ordered)))))

    def members(self) -> frozenset[Any]:
        """The items of ``is_in``, if it is their constant. The set is made once: there may be many."""
        if self._members is None:
            self._members = frozenset(self.parts[0])
        return self._members

    @property
    def is_largest(self) -> bool:
        """Whether it has as many levels or parts as an expression may have. So none can have it as a part."""
        return self.depth == _MAX_DEPTH or self.size == _MAX_SIZE

    def paths(self) -> list[str]:
        """The paths of the fields that it reads."""
        if self.operator == "col":
            return [*self.parts]
        return [path for part in self.parts if isinstance(part, Expression) for path in part.paths()]

    def type_in(self, record_type: Any) -> Any:
        """The type of the result for values of a type: bool, int, float, str or bytes. None: nothing determines it.

        Raises:
            UsageError: The type has no such field. Or an operator does not take fields of their types.
        """
        if self.operator == "col":
            kind = supertype(type_at(record_type, self.parts[0]))
            return kind if kind in _CONSTANTS[:-1] else None
        if self.operator == "const":
            (value,) = self.parts
            return None if value is None else type(value[0] if type(value) is tuple else value)
        kinds = [one.type_in(record_type) for one in self.parts]
        if self.operator in _COMPARISONS:
            self._check_same(*kinds)
            return bool
        if self.operator in ("&", "|", "~"):
            self._check_each(kinds, (bool,), "conditions, such as col('price') > 1")
            return bool
        self._check_each(kinds, _NUMBERS, "numbers")
        return None if None in kinds else float if self.operator == "/" or float in kinds else int

    def _check_same(self, one: Any, other: Any) -> None:
        """Check that values of two types may be equal."""
        kinds = {int if kind in _NUMBERS else kind for kind in (one, other)} - {None}
        if len(kinds) > 1:
            raise UsageError(f"{self!r} compares {one.__name__} with {other.__name__}, which are never equal")

    def _check_each(self, kinds: list[Any], wanted: tuple[type, ...], words: str) -> None:
        for part, kind in zip(self.parts, kinds, strict=True):
            if kind is not None and kind not in wanted:
                raise UsageError(f"{self!r}: {self.operator[0]} takes {words}, but {part!r} is {kind.__name__}")

    def source(self, record_type: Any = Any) -> str:
        """Python source that computes it from the variable ``value``. It may use the variable ``at``."""
        if self.operator == "col":
            return source_of(record_type, self.parts[0])
        if self.operator == "const":
            return _literal(self.parts[0])
        sources = [one.source(record_type) for one in self.parts]
        return _FORMS.get(self.operator, f"({{}} {self.operator} {{}})").format(*sources)

    def function(self, record_type: Any = Any) -> Callable[[Any], Any]:
        """A plain function of values of a type, which computes it. Functions can be compared, expressions cannot.

        Raises:
            UsageError: As by :meth:`type_in`.
        """
        if self._made is not None and self._made[0] is record_type:
            return self._made[1]  # steps that are equal have the same function
        kind = self.type_in(record_type)
        names: dict[str, Any] = {"__name__": __name__}
        exec(f"def run(value): return {self.source(record_type)}", names)
        run: Any = names["run"]
        run.__qualname__, run.expression = repr(self), self
        run.__annotations__ = {} if kind is None else {"return": kind}
        self._made = record_type, cast("Callable[[Any], Any]", run)
        return self._made[1]

    def __repr__(self) -> str:
        first, *rest = self.parts
        if self.operator in ("col", "const"):
            return f"col({first!r})" if self.operator == "col" else repr(first)
        if self.operator == "in":
            return f"{_within(first)}.is_in({[*rest[0].parts[0]]!r})"
        if not rest:
            return f"{self.operator[0]}{_within(first)}"
        return f"{_within(first)} {self.operator} {_within(rest[0])}"

    # The operators. An expression in a set or a dict is known by its identity.

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise UsageError(
            f"{self!r} is true or false for a record only: write & for and, | for or, ~ for not, with each comparison "
            "in parentheses, is_in([...]) for in, and two comparisons for a < b < c"
        )

    __eq__ = _binary("==")  # type: ignore[assignment]
    __ne__ = _binary("!=")  # type: ignore[assignment]
    __lt__ = _binary("<")
    __le__ = _binary("<=")
    __gt__ = _binary(">")
    __ge__ = _binary(">=")
    __add__ = _binary("+")
    __radd__ = _binary("+", swapped=True)
    __sub__ = _binary("-")
    __rsub__ = _binary("-", swapped=True)
    __mul__ = _binary("*")
    __rmul__ = _binary("*", swapped=True)
    __truediv__ = _binary("/")
    __rtruediv__ = _binary("/", swapped=True)
    __and__ = _binary("&")
    __rand__ = _binary("&", swapped=True)
    __or__ = _binary("|")
    __ror__ = _binary("|", swapped=True)

    def __reduce__(self) -> Any:
        return Expression, (self.operator, *self.parts)  # not the functions, which have no module

    def __neg__(self) -> Expression:
        return Expression("-x", self)

    def __invert__(self) -> Expression:
        return Expression("~", self)


def col(path: str) -> Expression:
    """A field of a record, for an expression: ``stream.filter(mw.col("price") > 100)``.

    Args:
        path: The field's name or path, such as ``"price"`` or ``"user.age"``. Of a dict, a key.

    Raises:
        UsageError: ``path`` is no name.
    """
    if not isinstance(path, str) or not all(path.split(".")):
        raise UsageError(f"mw.col takes the name of a field, such as 'price' or 'user.age', not {path!r:.80}")
    return Expression("col", path)


def plain_function(function: Any, record_type: Any = Any) -> Any:
    """The plain function of an expression, for values of a type: see ``Expression``. Another function as it is.

    Raises:
        UsageError: It is no function, as ``mw.col("note") is not None`` is none. Or as by ``Expression.type_in``.
    """
    if not callable(function):
        raise UsageError(
            f"{function!r:.80} is no function and no expression: write == None for is None, and is_in([...]) for in"
        )
    return function.function(record_type) if isinstance(function, Expression) else function


def expression_of(function: Any) -> Expression | None:
    """The expression that a function is, or that it was made of. None: it is another one."""
    found = function if isinstance(function, Expression) else getattr(function, "expression", None)
    return found if isinstance(found, Expression) else None


def _joined(operator: str, one: Any, other: Any) -> Expression:
    parts = [part if isinstance(part, Expression) else Expression("const", _constant(part)) for part in (one, other)]
    if operator in ("&", "|") and any(part.operator == "const" for part in parts):
        raise UsageError(
            f"{one!r} {operator} {other!r}: {operator} joins two conditions, and binds stronger than a comparison: put "
            "each comparison in parentheses, as in (col('price') > 1) & (col('price') < 9)"
        )
    return Expression(operator, *parts)


def _constant(value: Any) -> Any:
    """A value that an expression may have, of exactly its type."""
    if type(value) not in _CONSTANTS or value != value or (type(value) is str and re.search("[\ud800-\udfff]", value)):
        raise UsageError(f"an expression takes numbers, texts, bytes and None, not {value!r:.80}: write a function")
    return value


def _literal(value: Any) -> str:
    """Python source of a constant, or of the items of ``is_in``."""
    if type(value) is tuple:
        return f"{{{', '.join(map(repr, value))}}}"
    return repr(value).replace("inf", "1e999") if type(value) is float else repr(value)


def _within(part: Expression) -> str:
    """An operand, as it is written in an expression."""
    return repr(part) if part.operator in ("col", "const", "in") else f"({part!r})"
