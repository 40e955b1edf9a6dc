"""The checkpoint of a file injector: how far each file is ACKed, and a hash of those bytes (section 5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from millwheel.injectors.errors import SourceError

__all__ = ["FileStart", "load_checkpoint", "save_checkpoint"]


class FileStart(msgspec.Struct):
    """One file in a checkpoint.

    ``offset``: where reading begins, in bytes. ``created``: the timestamp, in microseconds, of records without one.
    ``digest``: the hash of the bytes before ``offset``.
    """

    offset: int
    created: int
    digest: str


def load_checkpoint(path: Path | None) -> dict[str, FileStart]:
    """Read a checkpoint. Returns the files by partition. Empty if there is no checkpoint yet.

    Raises:
        SourceError: The checkpoint cannot be read, or its directory does not exist.
    """
    if path is None:
        return {}
    if not path.parent.is_dir():
        raise SourceError(f"checkpoint {path}: there is no directory {path.parent} to keep it in")
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, FileStart])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(
            f"checkpoint {path} is not one of ours ({error}): name another, or remove it; under the same process name "
            "nothing is injected twice"
        ) from error


def save_checkpoint(path: Path, starts: Mapping[str, FileStart]) -> None:
    """Replace the checkpoint atomically. OSError if it cannot be written."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(starts)))
    temporary.replace(path)
