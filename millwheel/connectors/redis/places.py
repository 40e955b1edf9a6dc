"""How far a stream of Redis was read, and whether anything is missing behind that. Pure.

Redis counts the entries that were ever added to a stream (``entries-added``). The position has this count up to its
entry. So entries that were removed unread are noticed, and those that were removed after they were read do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from millwheel.connectors.starts import Start, checked_start
from millwheel.model.time import Timestamp
from millwheel.sdk.errors import UsageError

__all__ = [
    "NONE",
    "Glimpse",
    "Missing",
    "PlainStart",
    "RedisStart",
    "StreamPosition",
    "beginning",
    "follow",
    "id_before",
    "plain_start",
]

_ID: Final = re.compile(r"\d+-\d+")
_LARGEST: Final = (1 << 64) - 1
"""The largest second part of an id."""


RedisStart = Start | Mapping[str, str]
PlainStart = str | Timestamp | dict[str, str]
"""Where streams begin: at one end, at a time, or behind entries by the names of streams."""


class StreamPosition(msgspec.Struct, frozen=True):
    """How far a stream was read."""

    id: str = "0-0"
    """The last entry that was read. The next one is behind it."""
    added: int | None = 0
    """How many entries were added up to that one, since the stream was made. None: not known until the end is reached,
    because the stream was begun in the middle."""


class Glimpse(NamedTuple):
    """What one read saw of a stream, at one moment."""

    added: int
    """How many entries were added, since it was made."""
    length: int
    """How many of them are there."""
    first: str
    """The id of the first one that is there."""
    last: str
    """The id of the last one that was added."""
    found: list[str]
    """The ids of the next entries behind the position."""
    at_end: bool
    """Whether they are all that there are."""


NONE = Glimpse(0, 0, "0-0", "0-0", [], True)
"""A stream that does not exist."""


class Missing(NamedTuple):
    """What is wrong behind a position.

    Attributes:
        removed: How many entries were removed unread. None: not known, maybe none.
        set_back: Whether the stream is another one, or one of an earlier time.
    """

    removed: int | None
    set_back: bool


def plain_start(given: object, names: Sequence[str] | None) -> PlainStart:
    """What ``start=`` of a source says.

    Args:
        given: What the program says.
        names: The streams that are read. None: any may come.

    Raises:
        UsageError: It says nothing that these streams have.
    """
    start: PlainStart = checked_start(given, "a mapping of streams to ids of entries")
    if isinstance(start, dict):
        for name, id in start.items():
            if not isinstance(id, str) or _ID.fullmatch(id) is None:
                raise UsageError(f"start= has the id of an entry for a stream, as in '1767268800000-0', not {id!r:.80}")
            if names is not None and name not in names:
                raise UsageError(f"start= has stream {name!r:.80}, which the source does not read")
    return start


def beginning(start: str | Timestamp, seen: Glimpse) -> tuple[StreamPosition, Missing | None]:
    """Where a stream begins that was not read yet, and what is missing there.

    Args:
        start: ``earliest``: what was removed before counts as read. ``latest``: so does all that was added. The id of
            the entry before the first one. Or the time of the first one.
        seen: The stream now.
    """
    removed = seen.added - seen.length
    if start == "earliest":
        return StreamPosition("0-0", removed), None
    end = StreamPosition(seen.last, seen.added)
    if start == "latest":
        return end, None
    after = start if isinstance(start, str) else id_before(start)
    if _order(after) >= _order(seen.last):
        beyond = isinstance(start, str) and _order(after) > _order(seen.last)
        return end, Missing(0, set_back=True) if beyond else None
    if seen.length > 0 and _order(seen.first) <= _order(after):
        return StreamPosition(after, None), None  # nothing behind it was trimmed
    return StreamPosition(after, removed), Missing(None, set_back=False) if removed else None


def id_before(time: Timestamp) -> str:
    """The largest id before a time.

    >>> id_before(Timestamp(1_767_268_800_000_000))
    '1767268799999-18446744073709551615'
    """
    milliseconds = -(-time // 1_000)
    return f"{milliseconds - 1}-{_LARGEST}" if milliseconds > 0 else "0-0"


def follow(position: StreamPosition, seen: Glimpse) -> tuple[StreamPosition, Missing | None]:
    """The position behind the entries that were found, and what was missing before it.

    *Invariant (G1): a position that follows without anything missing is behind entries that were all found.* If an
    entry at the position or before it is still there, nothing behind it was trimmed, because Redis trims from the
    beginning. Otherwise all that are there are behind it, and their count says whether any is missing. What was deleted
    in between (XDEL) is found by the count, too, at the latest when the end is reached. *Who may break it:* a server
    that does not count, so the connector needs one that does.
    """
    missing = _missing(position, seen)
    if missing is not None and missing.set_back and not seen.found:
        return StreamPosition(seen.last, seen.added), missing
    id = seen.found[-1] if seen.found else position.id
    if seen.at_end:
        return StreamPosition(id, seen.added), missing
    before = position.added if missing is None else seen.added - seen.length
    return StreamPosition(id, None if before is None else before + len(seen.found)), missing


def _missing(position: StreamPosition, seen: Glimpse) -> Missing | None:
    if _order(seen.last) < _order(position.id):
        return Missing(0, set_back=True)
    trimmed = seen.length == 0 or _order(seen.first) > _order(position.id)
    if position.added is None:
        # Of what was trimmed, it is not known whether any was behind the position, unless nothing came behind it.
        uncertain = trimmed and _order(seen.last) > _order(position.id)
        return Missing(None, set_back=False) if uncertain else None
    if trimmed:
        left = seen.length
    elif seen.at_end:
        left = len(seen.found)
    else:
        return None
    removed = seen.added - position.added - left
    return None if removed == 0 else Missing(max(removed, 0), set_back=removed < 0)


def _order(id: str) -> tuple[int, int]:
    milliseconds, _, number = id.partition("-")
    return int(milliseconds), int(number)
