"""Small file systems, which tests can fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path | None]:
    """A file system of ``size`` at ``place``, during the block. None if this process may not mount one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    place.mkdir(parents=True, exist_ok=True)
    if place.is_mount():
        # A run that was killed has left its mount.
        subprocess.run(["umount", "-l", str(place)], check=True)
    if not size or os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
