"""How the files of a sink are laid out: their format, and the folders of their records. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Final
from urllib.parse import quote

import msgspec

from millwheel.model.time import Timestamp, to_datetime

__all__ = ["TIMES", "Layout", "time_folder", "value_folder"]

TIMES: Final = {"day": "date=%Y-%m-%d/", "hour": "date=%Y-%m-%d/hour=%H/"}
"""The folders of a time, in UTC."""
_LONGEST_VALUE: Final = 100
"""The most characters of a value in the name of a folder. A longer one is cut, and has a digest."""
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""The value of a partition that has none, as programs of the field write it."""


class Layout(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the records of a batch are. An update may change it.

    Attributes:
        format: The format of the files, and the ending of their names.
        by_time: ``day``, ``hour`` or None: the folders by the event time.
        by: The field whose values are folders, or None.
    """

    format: str
    by_time: str | None = None
    by: str | None = None

    @property
    def has_folders(self) -> bool:
        """Whether records are in folders. If not, a batch is one file."""
        return self.by_time is not None or self.by is not None

    def folder_of(self, value: Any, at: Timestamp) -> str:
        """The folder of a record: empty, or with a slash at its end."""
        times = "" if self.by_time is None else time_folder(TIMES[self.by_time], at)
        return times + ("" if self.by is None else value_folder(self.by, _value_at(self.by, value)))


def time_folder(form: str, at: Timestamp) -> str:
    """The folder of a time, by one of ``TIMES``."""
    try:
        return to_datetime(at).strftime(form)
    except (OverflowError, ValueError):  # before the year 1, or after 9999
        return re.sub("%[^/]*", _NO_VALUE, form)


def _value_at(field: str, value: Any) -> Any:
    return value.get(field) if isinstance(value, Mapping) else attrgetter(field)(value)


def value_folder(field: str, found: Any) -> str:
    """The folder of a field's value. Everything that a path or a query could read in another way is escaped."""
    text = "" if found is None else str(msgspec.to_builtins(found))
    name = quote(text, safe="") or _NO_VALUE
    if len(name) > _LONGEST_VALUE:
        name = f"{name[:_LONGEST_VALUE]}-{blake2b(text.encode(), digest_size=8).hexdigest()}"
    return f"{field}={name}/"
