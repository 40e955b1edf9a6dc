"""Where a source begins to read a split of which nothing was read yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from millwheel.model.time import Timestamp, from_datetime
from millwheel.sdk.errors import UsageError

__all__ = ["Start", "checked_start"]

Start = Literal["earliest", "latest"] | datetime | Timestamp
"""What each source that can seek takes as ``start=``. A source may take positions by split, too."""


def checked_start(given: object, positions: str = "") -> Any:
    """A start in its plain form: ``"earliest"``, ``"latest"``, a Timestamp, or a dict of positions by split.

    >>> from datetime import UTC, datetime
    >>> checked_start(datetime(2026, 1, 5, tzinfo=UTC))
    1767571200000000

    Args:
        given: What the program says.
        positions: What a mapping has, for the error. Empty: the source takes none.

    Raises:
        UsageError: It is none of these.
    """
    shown = f"{given!r:.80}"
    if isinstance(given, datetime):
        try:
            given = from_datetime(given)
        except ValueError as error:
            raise UsageError(f"start=: {error}") from error
    if positions and isinstance(given, Mapping):
        return dict(given)
    is_time = isinstance(given, int) and not isinstance(given, bool) and given >= 0
    if not is_time and given not in ("earliest", "latest"):
        more = f", or {positions}" if positions else ""
        raise UsageError(
            f"start= is 'earliest', 'latest', a datetime with a time zone since 1970, a Timestamp{more}, and not "
            f"{shown}"
        )
    return given
