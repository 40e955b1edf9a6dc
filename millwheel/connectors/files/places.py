"""Where files are: a directory or a bucket, and a pattern of names below it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike, fspath
from typing import Final

from millwheel.sdk.errors import UsageError

__all__ = ["EVERY_DEPTH", "FilePattern", "Root", "is_match", "is_one_match", "parse_pattern", "parse_root"]

EVERY_DEPTH: Final = "**"
"""The component of a pattern that stands for any number of folders, also none."""
_BUCKET: Final = re.compile(r"(s3|gs|az)://([^/@?#\s]+)(?:/(.*))?")
_WILD: Final = re.compile(r"[*?\[]")
_TAKES: Final = (
    "an absolute path, or s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH; credentials come from the "
    "environment of the worker"
)


@dataclass(frozen=True, slots=True)
class Root:
    """A folder.

    Attributes:
        bucket: The URL of a bucket, such as ``s3://sales``. Empty: it is a directory.
        path: The absolute path of the directory, or the prefix in the bucket, without a slash at its end.
    """

    bucket: str
    path: str

    def __str__(self) -> str:
        return f"{self.bucket}/{self.path}".rstrip("/") if self.bucket else self.path or "/"


@dataclass(frozen=True, slots=True)
class FilePattern:
    """Files below a root.

    Attributes:
        root: The components of the pattern before the first one with a wildcard.
        parts: The components after it. A file's name relative to the root matches them.
    """

    root: Root
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{str(self.root).rstrip('/')}/{'/'.join(self.parts)}"


def parse_root(text: str | PathLike[str]) -> Root:
    """The folder that a path or a URL names. A URL is taken as it is: nothing in it is decoded.

    Raises:
        UsageError: It is neither.

    >>> str(parse_root("s3://sales/2026/"))
    's3://sales/2026'
    """
    given = fspath(text)
    found = _BUCKET.fullmatch(given)
    if found is not None:
        path = (found[3] or "").rstrip("/")
        bucket = f"{found[1]}://{found[2]}"
    else:
        path, bucket = re.sub("/+", "/", given).rstrip("/"), ""
    inner = path.split("/") if bucket and path else path.split("/")[1:]
    if not given.isprintable() or (not bucket and not given.startswith("/")) or {"", ".", ".."}.intersection(inner):
        # The text is not repeated if it may have a secret.
        raise UsageError(f"{'this URL' if '://' in given else repr(given)} is no place of files: give {_TAKES}")
    return Root(bucket, path)


def parse_pattern(text: str | PathLike[str]) -> FilePattern:
    """The files that a path or a URL with wildcards names: ``*``, ``?``, ``[...]``, and ``**`` for folders.

    Raises:
        UsageError: It is none, or it names no file.

    >>> parse_pattern("/var/log/shop/*/sales-*.csv").parts
    ('*', 'sales-*.csv')
    """
    given = fspath(text)
    if given.endswith(("/", f"/{EVERY_DEPTH}")):
        raise UsageError(f"{given!r} names folders, and no file: end it with the name of the files, such as /*.jsonl")
    root = parse_root(given)
    parts = root.path.split("/")
    if parts == [""]:
        raise UsageError(f"{given!r} names no file: end it with the name of the files, such as /*.jsonl")
    odd = next((part for part in parts if EVERY_DEPTH in part and part != EVERY_DEPTH), None)
    if odd is not None:
        raise UsageError(f"{odd!r} in {given!r}: ** stands alone between two slashes, and means folders of any depth")
    fixed = next((index for index, part in enumerate(parts) if _WILD.search(part)), len(parts))
    fixed = min(fixed, len(parts) - 1)
    return FilePattern(Root(root.bucket, "/".join(parts[:fixed])), tuple(parts[fixed:]))


def is_one_match(part: str, name: str) -> bool:
    """Whether one component of a name matches one of a pattern. No wildcard stands for a ``.`` or ``_`` at the start.

    Programs that are still writing a file give it such a name.
    """
    if name[0] in "._" and part[0] in "*?[":
        return False
    return part == EVERY_DEPTH or fnmatchcase(name, part)


def is_match(parts: Sequence[str], names: Sequence[str]) -> bool:
    """Whether the components of a name match those of a pattern.

    >>> is_match(("**", "*.csv"), ("2026", "01", "sales.csv"))
    True
    >>> is_match(("*.csv",), (".sales.csv",))
    False
    """
    if not parts or not names:
        return not parts and not names
    if parts[0] == EVERY_DEPTH and is_match(parts[1:], names):
        return True
    rest = parts if parts[0] == EVERY_DEPTH else parts[1:]
    return is_one_match(parts[0], names[0]) and is_match(rest, names[1:])
