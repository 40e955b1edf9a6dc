"""The names of streams. A stream belongs to one topology, and its full name begins with that topology's name. Pure.

The cluster knows a stream only by its full name, such as ``web/sessions``: in specs, coordinator keys, messages,
metrics and logs. There the name is an opaque string. A short name exists at the edges alone:

- The code of topology ``web`` calls its own stream ``sessions`` (:func:`full_name`, :func:`local_name`).
- A program or an operator may write ``sessions`` while only one topology has such a stream (:func:`candidates`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = [
    "DEAD_LETTERS",
    "candidates",
    "dead_letter_stream",
    "full_name",
    "is_dead_letter_stream",
    "is_full",
    "is_valid",
    "local_name",
    "owner_of",
    "query_parts",
]

DEAD_LETTERS: Final = "dead-letters"
"""The name of the dead-letter stream within its topology. Every topology has one, without a declaration."""

_SEPARATOR: Final = "/"


def is_full(name: str) -> bool:
    """Whether a stream's name says to which topology the stream belongs."""
    return _SEPARATOR in name


def is_valid(name: str) -> bool:
    """Whether ``name`` has the form of a full name or of a short one."""
    return all(name.split(_SEPARATOR)) and name.count(_SEPARATOR) <= 1


def full_name(topology: str, name: str) -> str:
    """The full name of the stream that the code of ``topology`` calls ``name``."""
    return name if is_full(name) else f"{topology}{_SEPARATOR}{name}"


def local_name(topology: str, stream: str) -> str:
    """The name by which the code of ``topology`` calls a stream."""
    return stream.removeprefix(f"{topology}{_SEPARATOR}")


def owner_of(stream: str) -> str:
    """The topology that a stream belongs to, by its full name. Only this topology writes the stream."""
    return stream.partition(_SEPARATOR)[0]


def query_parts(query: str) -> tuple[str, str, str] | None:
    """The parts of a batch query ``{query}/{topology}/{stream}``. None: the name has no such form."""
    parts = query.rsplit(_SEPARATOR, 2)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 and parts[1] else None


def dead_letter_stream(topology: str) -> str:
    """The full name of the stream of a topology's dead letters."""
    return full_name(topology, DEAD_LETTERS)


def is_dead_letter_stream(stream: str) -> bool:
    """Whether the stream of this full name has a topology's dead letters."""
    return stream.endswith(f"{_SEPARATOR}{DEAD_LETTERS}")


def candidates(name: str, streams: Iterable[str]) -> list[str]:
    """The streams that a short name may mean, of the full names ``streams``. Sorted."""
    return sorted(stream for stream in streams if stream.partition(_SEPARATOR)[2] == name)
