"""What drivers of Python's DB-API 2.0 say of themselves: the style of their parameters, and kinds of errors."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from millwheel.errors import MillwheelError

__all__ = ["DatabaseError", "is_of_record", "mark_of", "names_parameters"]

_MARKS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}
"""By the driver's style: the mark of a parameter in a statement."""
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Parts of a statement where a colon is text."""
_NAMED: Final = {"?": re.compile(r"(?<![:\w\]]):[^\W\d]\w*"), "%s": re.compile(r"%\(\w+\)")}
"""By the mark of a parameter: what a named one looks like. ``::`` is a cast."""


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
