"""Fast checks that a value consists of exactly the declared classes: one function per type (sections 4.3, 4.4).

Such a value decodes to an equal one, so it need not be decoded for a check. The generated function compares classes and
creates no objects. It takes less than half of the time of decoding. It is generated as source and compiled, as
``dataclasses`` does, because a call for each part would take longer than decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import getattr_static, ismemberdescriptor
from itertools import count
from keyword import iskeyword
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NewType, Union, get_args, get_origin
from unicodedata import normalize

import msgspec

from millwheel.model.time import Timestamp
from millwheel.sdk.typeinfo import cached_by_type

__all__ = [
    "Exact",
    "ExactAll",
    "behind",
    "exact_test",
    "exact_test_of_all",
    "is_plain_struct",
    "is_writable",
    "unless_none",
]

Exact = Callable[[Any], bool]
"""True if the classes of a value's parts prove that it is of its type. False proves nothing."""
ExactAll = Callable[[Sequence[Any]], bool]

_SCALARS: Final = (bool, bytes, float, int, str)
_MAX_DEPTH: Final = 8
"""The most nested loops in a generated function. Python compiles up to 20."""
_MAX_PLACES: Final = 2_000
"""The most places in a type where a class is expected, which take some 60 ms to compile, once: unions of hundreds of
Structs. The values of a larger type, among them recursive ones, are decoded instead."""
_MAX_BRANCHES: Final = 8
"""A larger union is tested by a table of functions. Comparisons one after the other would take longer than decoding."""


class _NoTestError(Exception):
    """A part of the type has its own rules, such as a union of texts and bytes, a constraint or a hook."""


@cached_by_type
def exact_test(annotation: Any) -> Exact | None:
    """The exact test for values of ``annotation``; None if only the decoder can decide.

    Scalars have a test, and so have lists, dicts, tuples and Structs of them. So have unions of Structs with tags. The
    test is valid only for values that the encoder accepted, because the encoder rejects numbers and texts without an
    encoding.
    """
    exact: Exact | None = _compiled(annotation, "def exact(value):", depth=1)
    return exact


@cached_by_type
def exact_test_of_all(annotation: Any) -> ExactAll | None:
    """As ``exact_test``, but the test takes many values, and says whether each of them passes."""
    exact: ExactAll | None = _compiled(annotation, "def exact(values):\n    for value in values:", depth=2)
    return exact


def _compiled(annotation: Any, head: str, depth: int) -> Any:
    """The function that begins with ``head``, with the lines for one value at a depth. None: there is no exact test."""
    source = _TestSource()
    try:
        lines = list(source.test(annotation, "value", depth))
    except _NoTestError:
        return None
    names: dict[str, Any] = {f"class_{number}": cls for number, cls in enumerate(source.classes)}
    names["no_test"] = lambda value: False
    exec("\n".join([*source.tables, head, *lines, "    return True"]), names)
    return names["exact"]


class _TestSource:
    """The source code of one test, and the classes that it refers to."""

    def __init__(self) -> None:
        self.classes: list[type] = []
        """``class_0``, ``class_1`` and so on: one for each place in the type where a class is expected."""
        self.tables: list[str] = []
        """The functions of the members of large unions, and the tables that have them by class."""
        self._within_tables = 0
        """How many large unions the place that is being written is within."""
        self._numbers = count()

    def test(self, annotation: Any, name: str, depth: int) -> Iterator[str]:
        """Lines that return False unless ``name`` is exactly of the type.

        ``name`` is an expression that is cheap to repeat.
        """
        if depth + self._within_tables > _MAX_DEPTH:
            raise _NoTestError
        indent = "    " * depth
        kinds = _tagged_structs(annotation)
        if kinds:
            yield from self._one_of(kinds, name, depth)
            return
        present = unless_none(annotation)
        if present is not None:
            yield f"{indent}if {name} is not None:"
            yield from self.test(present, name, depth + 1)
            return
        annotation = behind(annotation)
        cls, arguments = get_origin(annotation) or annotation, get_args(annotation)
        yield f"{indent}if type({name}) is not {self._class(cls)}: return False"
        if cls is tuple and arguments and Ellipsis not in arguments:
            yield f"{indent}if len({name}) != {len(arguments)}: return False"
            yield from self._parts([(f"{name}[{index}]", item) for index, item in enumerate(arguments)], depth)
        elif cls in (list, tuple) and arguments:
            item = self._variable()
            yield f"{indent}for {item} in {name}:"
            yield from self.test(arguments[0], item, depth + 1)
        elif cls is dict and arguments and _is_plain_key(arguments[0]):
            key, item = self._variable(), self._variable()
            yield f"{indent}for {key}, {item} in {name}.items():"
            yield from self.test(arguments[0], key, depth + 1)
            yield from self.test(arguments[1], item, depth + 1)
        elif is_plain_struct(cls):
            fields = msgspec.structs.fields(annotation)
            yield from self._parts([(f"{name}.{field.name}", field.type) for field in fields], depth)
        elif not _is_scalar(cls):
            raise _NoTestError

    def _one_of(self, kinds: tuple[Any, ...], name: str, depth: int) -> Iterator[str]:
        """The test of a union: that of the value's class. The tag of an encoding names this class to the decoder."""
        indent = "    " * depth
        if len(kinds) > _MAX_BRANCHES:
            table = self._table(kinds)
            yield f"{indent}if not {table}.get(type({name}), no_test)({name}): return False"
            return
        yield f"{indent}if {name} is None: {'pass' if NoneType in kinds else 'return False'}"
        for kind in kinds:
            if kind is not NoneType:
                yield f"{indent}elif type({name}) is {self._class(get_origin(kind) or kind)}:"
                yield from self.test(kind, name, depth + 1)
        yield f"{indent}else: return False"

    def _table(self, kinds: tuple[Any, ...]) -> str:
        """The name of a table with a function for each member of a union, by its class."""
        members: list[str] = []
        self._within_tables += 1
        for kind in kinds:
            function = f"member_{next(self._numbers)}"
            lines = [] if kind is NoneType else list(self.test(kind, "value", 1))
            self.tables += [f"def {function}(value):", *lines, "    return True"]
            members.append(f"{self._class(get_origin(kind) or kind)}: {function}")
        self._within_tables -= 1
        table = f"table_{next(self._numbers)}"
        self.tables.append(f"{table} = {{{', '.join(members)}}}")
        return table

    def _parts(self, parts: list[tuple[str, Any]], depth: int) -> Iterator[str]:
        """The tests of a tuple's items or a Struct's fields. A part that is read more than once gets a variable."""
        for where, annotation in parts:
            if _is_scalar(annotation):
                yield from self.test(annotation, where, depth)
                continue
            part = self._variable()
            yield f"{'    ' * depth}{part} = {where}"
            yield from self.test(annotation, part, depth)

    def _class(self, cls: Any) -> str:
        if not isinstance(cls, type) or len(self.classes) == _MAX_PLACES:
            raise _NoTestError
        self.classes.append(cls)
        return f"class_{len(self.classes) - 1}"

    def _variable(self) -> str:
        return f"part_{next(self._numbers)}"


def _is_scalar(annotation: Any) -> bool:
    return any(annotation is kind for kind in _SCALARS)


def behind(annotation: Any) -> Any:
    """The type behind a NewType, or behind a ``TimeInt``. Another Annotated type may have constraints, and stays."""
    while True:
        if isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif get_origin(annotation) is Annotated and annotation.__metadata__ == (Timestamp,):
            annotation = get_args(annotation)[0]
        else:
            return annotation


def _is_plain_key(annotation: Any) -> bool:
    """Whether the type is a scalar or a tuple of scalars."""
    plain = behind(annotation)
    parts = get_args(plain) if get_origin(plain) is tuple else (plain,)
    return all(_is_scalar(behind(one)) for one in parts)


def is_plain_struct(cls: Any) -> bool:
    """Whether an instance has no content except its fields, and source code can name each field.

    The encoder reads a field's slot. A property of a subclass may hide the slot, so a test that reads the property
    would look at another value. A ``__getattribute__`` may hide it, too.
    """
    if not isinstance(cls, type) or not issubclass(cls, msgspec.Struct) or hasattr(cls, "__post_init__"):
        return False
    if cls.__getattribute__ is not object.__getattribute__:
        return False
    return all(is_writable(name) and _is_slot_of(getattr_static(cls, name), name) for name in cls.__struct_fields__)


def _is_slot_of(attribute: Any, name: str) -> bool:
    """Whether a class attribute is the slot of this very field. A subclass may put another field's slot there."""
    return ismemberdescriptor(attribute) and attribute.__name__ == name


def is_writable(name: str) -> bool:
    """Whether Python reads ``name`` in source as this very name."""
    return name.isidentifier() and not iskeyword(name) and normalize("NFKC", name) == name


def _tagged_structs(annotation: Any) -> tuple[Any, ...]:
    """The members of a union of several Structs with tags, and perhaps None. Empty for any other type."""
    if get_origin(annotation) not in (Union, UnionType):
        return ()
    kinds = get_args(annotation)
    structs = [get_origin(kind) or kind for kind in kinds if kind is not NoneType]
    tagged = all(is_plain_struct(kind) and kind.__struct_config__.tag is not None for kind in structs)
    return kinds if tagged and len(structs) > 1 else ()


def unless_none(annotation: Any) -> Any:
    """``T`` of ``T | None``; None for any other type."""
    if get_origin(annotation) not in (Union, UnionType):
        return None
    rest = [one for one in get_args(annotation) if one is not NoneType]
    return rest[0] if len(rest) == 1 and len(get_args(annotation)) == 2 else None
