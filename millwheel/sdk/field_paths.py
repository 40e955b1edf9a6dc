"""Fields of values by their paths, such as ``user.age``: their types, and Python source that reads them."""

from __future__ import annotations

from functools import reduce
from typing import Any

from millwheel.sdk.errors import UsageError
from millwheel.sdk.exact_types import is_writable
from millwheel.sdk.typeinfo import Field, field_of, type_name

__all__ = ["attribute", "has_attributes", "source_of", "type_at"]


def type_at(record_type: Any, path: str) -> Any:
    """The type of the field at a path. None: the type of the records does not determine it.

    Raises:
        UsageError: The type has no such field.
    """
    at = record_type
    for name in path.split("."):
        found = field_of(at, name)
        if isinstance(found, str):
            known = f"its fields are {found}" if found else "it has no fields"
            raise UsageError(f"a step reads {path!r}, but {type_name(at)} has no field {name!r} ({known})")
        if found is None:
            return None
        at = found.type
    return at


def has_attributes(record_type: Any, path: str) -> bool:
    """Whether values of the type have the path as attributes, and not as the items of dicts."""
    at = record_type
    for name in path.split("."):
        found = field_of(at, name)
        if not isinstance(found, Field) or found.item is not False:
            return False
        at = found.type
    return True


def attribute(of: str, name: str) -> str:
    """Python source that reads an attribute."""
    return f"{of}.{name}" if is_writable(name) else f"getattr({of}, {name!r})"


def source_of(record_type: Any, path: str) -> str:
    """Python source that reads the path from the variable ``value``. It may use the variable ``at``."""
    names, source = path.split("."), "value"
    if has_attributes(record_type, path):
        return reduce(attribute, names, source)
    for name in names:
        source = f"(at[{name!r}] if (at := {source}).__class__ is dict else {attribute('at', name)})"
    return source
