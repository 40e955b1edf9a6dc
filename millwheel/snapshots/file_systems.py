"""Whether a directory is on a file system of this host alone.

Of a network file system, or one that another process serves (FUSE), it is not known what comes of a write whose process
has died: it may still be on its way. Only file systems that are known to be of one host count, so an unknown one is
treated with care.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["MOUNTS", "is_of_this_host"]

MOUNTS: Path = Path("/proc/self/mountinfo")
"""The system's list of what is mounted."""

_LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "ntfs3", "overlay", "ramfs"}
    | {"reiserfs", "tmpfs", "vfat", "xfs", "zfs"}
)


def is_of_this_host(directory: Path) -> bool:
    """Whether only processes of this host write to a directory. False also if that cannot be known here."""
    found = ""
    with suppress(OSError):
        found = _type_at(os.path.realpath(directory), MOUNTS.read_text(errors="surrogateescape"))
    return found in _LOCAL


def _type_at(path: str, mounts: str) -> str:
    """The type of the file system that has a path. Empty: it is not listed."""
    deepest, found = -1, ""
    for line in mounts.splitlines():
        place, _, system = line.partition(" - ")
        fields = place.split()
        if not system or len(fields) < 5:
            continue
        # Of two at the same point, the later one hides the other.
        point = _unescaped(fields[4]).rstrip("/")
        if len(point) >= deepest and (path == point or path.startswith(point + "/")):
            deepest, found = len(point), system.split()[0]
    return found


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
