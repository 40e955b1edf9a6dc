"""What drivers of Python's DB-API 2.0 say of themselves: the style of their parameters, and kinds of errors."""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from millwheel.errors import MillwheelError

__all__ = ["DatabaseError", "is_of_record", "mark_of", "named_parameters", "names_parameters", "stored_fields"]

_MARKS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}
"""By the driver's style: the mark of a parameter in a statement."""
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Parts of a statement where a colon is text."""
_NAMED: Final = {"?": re.compile(r"(?<![:\w\]]):[^\W\d]\w*"), "%s": re.compile(r"%\(\w+\)")}
"""By the mark of a parameter: what a named one looks like. ``::`` is a cast."""

_CERTAIN: Final = (re.compile(r"%\((\w+)\)"), re.compile(r"(?<=[\s(,=]):([^\W\d]\w*)"))
"""Parameters that are named for certain, in a statement of an unknown style. The first style that occurs counts."""


class DatabaseError(MillwheelError):
    """The database does not have the batches that were written to it, or a driver that cannot be used."""


def is_of_record(error: BaseException) -> bool:
    """Whether the error is one of the DB-API that a record causes: not of the connection, a lock, or the statement."""
    names = {one.__name__ for one in type(error).__mro__}
    return "DatabaseError" in names and not names & {"OperationalError", "InterfaceError", "ProgrammingError"}


def mark_of(connection: Any) -> str:
    """The mark of a parameter. The style is in the driver's module, which is one that has the connection's class."""
    for kind in type(connection).__mro__:
        name = kind.__module__
        while name:
            if (style := getattr(sys.modules.get(name), "paramstyle", None)) is not None:
                if style not in _MARKS:
                    known = ", ".join(_MARKS)
                    raise DatabaseError(f"the driver {name!r} has parameters in the style {style!r}: {known} are known")
                return _MARKS[style]
            name = name.rpartition(".")[0]
    raise DatabaseError(
        f"a {type(connection).__module__}.{type(connection).__qualname__} is no connection of a driver of the DB-API: "
        "none of its modules has a paramstyle. Let connect return the driver's own connection"
    )


def names_parameters(statement: str, mark: str) -> bool:
    """Whether the parameters of a statement have names. ``mark``: of a parameter without one."""
    return _NAMED[mark].search(_QUOTED.sub("", statement)) is not None


def named_parameters(statement: str) -> list[str]:
    """The names of a statement's parameters, as far as they are certain without its driver."""
    plain = _QUOTED.sub("", statement)
    found = (style.findall(plain) for style in _CERTAIN)
    return list(dict.fromkeys(next((names for names in found if names), ())))


def stored_fields(record_type: Any) -> Sequence[str] | None:
    """The names of a record's fields as a statement gets them. None: they are not known, or it has no names."""
    kind = typing.get_origin(record_type) or record_type
    if not isinstance(kind, type):
        return None
    if issubclass(kind, msgspec.Struct):
        settings = kind.__struct_config__
        tag = [settings.tag_field] if settings.tag_field else []
        return None if settings.array_like else [*tag, *kind.__struct_encode_fields__]
    return [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else None
