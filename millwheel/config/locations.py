"""Places where snapshots are kept: a directory, or a prefix in a bucket of an object store. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

__all__ = ["TAKES_LOCATIONS", "Place", "locations", "parse_place"]

TAKES_LOCATIONS: Final = 'absolute directories and URLs, such as ["/backups", "s3://bucket/prefix"]'

_SCHEMES: Final = frozenset(("file", "memory", "s3", "gs", "az"))
"""Others of obstore are no places for snapshots. The master would ask any web server, for example."""
_ODD_PARTS: Final = frozenset(("", ".", ".."))


@dataclass(frozen=True, slots=True)
class Place:
    """A directory (scheme ``file``), or a prefix in a bucket. ``parts``: its path, component by component."""

    scheme: str
    bucket: str
    parts: tuple[str, ...]

    @property
    def directory(self) -> str | None:
        """The absolute path of a directory. None: the place is in an object store."""
        return f"/{'/'.join(self.parts)}" if self.scheme == "file" else None

    def is_within(self, other: Place) -> bool:
        """Whether this is the other place, or below it.

        >>> parse_place("s3://b/x/y").is_within(parse_place("s3://b/x"))
        True
        >>> parse_place("s3://b/xy").is_within(parse_place("s3://b/x"))
        False
        """
        same = (self.scheme, self.bucket) == (other.scheme, other.bucket)
        return same and self.parts[: len(other.parts)] == other.parts


def parse_place(text: str) -> Place:
    """The place that a path or a URL names. No link is followed. ValueError, without the text, if there is none.

    A URL may be read in different ways: libraries drop ``..``, its encoded form and control characters. So it has none
    of these.

    >>> parse_place("/backups//daily/../weekly").directory
    '/backups/weekly'
    """
    if not text.isprintable():
        raise ValueError("the snapshots' location has a control character")
    if "://" not in text:
        if not text:
            raise ValueError("the snapshots' location is empty")
        return _directory(text)
    try:
        url = urlsplit(text)
    except ValueError:
        raise ValueError("the snapshots' location is no URL") from None
    if url.scheme not in _SCHEMES:
        raise ValueError(f"a snapshots' location cannot begin with {url.scheme}://")
    if "@" in url.netloc or url.query or url.fragment or (url.scheme == "file" and url.netloc):
        # The text is not repeated: it may have a secret.
        raise ValueError("the URL of the snapshots' location has more than a host and a path")
    path = unquote(url.path)
    if url.scheme == "file":
        return _directory(path or "/")
    parts = path.removeprefix("/").removesuffix("/").split("/") if path.strip("/") else []
    if _ODD_PARTS.intersection(parts) or "\\" in path or not path.isprintable() or (not parts and len(path) > 1):
        raise ValueError("the URL of the snapshots' location has an empty component, '.', '..' or '\\'")
    return Place(url.scheme, url.netloc, tuple(parts))


def _directory(path: str) -> Place:
    # Links are not followed: this process need not be on the server's machine.
    return Place("file", "", tuple(part for part in os.path.abspath(path).split("/") if part))  # noqa: PTH100


def locations(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Check for a list of places. Directories are absolute, because daemons have other working directories."""
    for text in texts:
        try:
            parse_place(text)
        except ValueError as error:
            raise ValueError(f"it takes {TAKES_LOCATIONS}: {error}") from error
        if "://" not in text and not os.path.isabs(text):  # noqa: PTH117  # no Path: the text may be a URL
            raise ValueError(f"it takes {TAKES_LOCATIONS}: {text} is not absolute")
    return texts
