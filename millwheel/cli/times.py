"""Times in options: ISO 8601, ``now``, or how long ago; and the fields of records that have times."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import typer

from millwheel.connectors.files.parsing import TimestampField, TimeUnit
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp, from_datetime, seconds
from millwheel.rpc.clock import wall_now

__all__ = ["ago_or_time", "time_or_now", "timestamp_field"]

_UNIT_SECONDS: Final = {"s": 1, "min": 60, "m": 60, "h": 3_600, "d": 86_400}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:s|min|m|h|d))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(s|min|m|h|d)")


def time_or_now(text: str, hint: str) -> Timestamp:
    """Return the time that ``text`` names: ISO 8601 with an offset, or ``now``.

    Raises:
        typer.BadParameter: The text is no time. ``hint`` is the option's name.
    """
    if text == "now":
        return Timestamp(wall_now())
    try:
        return from_datetime(datetime.fromisoformat(text))
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is neither now nor a time such as 2026-01-31T12:00:00Z", param_hint=hint
        ) from error


def ago_or_time(text: str, hint: str) -> Timestamp:
    """Return a time: as ``time_or_now``, or as a duration before now, such as ``90s`` or ``1h30m``."""
    if not _DURATION.fullmatch(text):
        try:
            return time_or_now(text, hint)
        except typer.BadParameter:
            raise typer.BadParameter(
                f"{text!r} is neither a time such as 2026-01-31T12:00:00Z nor a duration such as 90s, 10m, 2h or 1d12h",
                param_hint=hint,
            ) from None
    ago = sum(float(count) * _UNIT_SECONDS[unit] for count, unit in _PART.findall(text))
    return Timestamp(min(max(wall_now() - seconds(ago), MIN_TIMESTAMP + 1), MAX_TIMESTAMP - 1))


def timestamp_field(field: str, unit: TimeUnit | None) -> TimestampField | None:
    """Return the field with a record's time, as ``--timestamp`` and ``--unit`` name it.

    Raises:
        typer.BadParameter: One of the two options is missing.
    """
    if field and unit is None:
        raise typer.BadParameter(
            f"say how the field {field!r} is written: --unit {', '.join(TimeUnit)}", param_hint="--unit"
        )
    if unit is not None and not field:
        raise typer.BadParameter("it belongs to --timestamp, which is not given", param_hint="--unit")
    return None if unit is None else TimestampField(field, unit)
