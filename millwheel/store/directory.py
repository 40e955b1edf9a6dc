"""The directory of an embedded database: its marker file and its lock file.

The marker file says that the directory belongs to MillWheel, and names its format. A directory with other files is
never changed. The lock file is locked through the operating system until the process ends. It keeps a second
process out, and names the first one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import socket
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from millwheel.store.contract import StoreConflictError, StoreError, StoreInUseError, StoreUnavailableError

__all__ = ["DIRECTORY_FORMAT", "DatabaseDirectory"]

DIRECTORY_FORMAT: Final = 1
"""The directory format that this software writes, and the only one that it opens."""

_KIND: Final = "openmillwheel embedded database"
_MARKER: Final = "MILLWHEEL.json"
_MARKER_DRAFT: Final = "MILLWHEEL.json.draft"
_LOCK: Final = "MILLWHEEL.lock"
_DATA: Final = "data"
_PROBE_BYTES: Final = 1 << 16


class DatabaseDirectory:
    """A directory that this process has locked, from construction to :meth:`release`."""

    def __init__(self, path: Path) -> None:
        """Lock ``path``, and create it if need be; StoreError says what prevents that."""
        self.path = path
        self.data = path / _DATA
        self.is_new = False
        try:
            self._refuse_foreign()
            path.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock()
        except OSError as error:
            raise _os_error(path, error) from error
        try:
            self._check_marker()
        except BaseException:
            self.release()
            raise

    def mark_ready(self) -> None:
        """Record that the data exists. From now on missing data is an error, and never an empty database."""
        if self.is_new:
            self._write_marker("ready")
            self.is_new = False

    def check_space(self) -> None:
        """Raise OSError unless some bytes can be written and synced here."""
        probe = self.path / "probe"
        try:
            with probe.open("wb") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)

    def release(self) -> None:
        """Release the lock, so that another process can open the directory."""
        os.close(self._lock)

    def _refuse_foreign(self) -> None:
        """Raise StoreConflictError if the directory has other files. This runs before anything is created."""
        path = self.path
        if not path.exists():
            return
        if not path.is_dir():
            raise StoreConflictError(
                f"{path} is a file, not a database directory: name a directory, or one that does not exist"
            )
        names = sorted(entry.name for entry in path.iterdir())
        if _MARKER in names or set(names) <= {_LOCK, _MARKER_DRAFT}:
            return
        what = "a RocksDB database of something else" if "CURRENT" in names else "files that are not ours"
        listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise StoreConflictError(
            f"{path} holds {what} ({listed}) and no {_MARKER}: nothing was changed. "
            "Name an empty directory, or one that MillWheel created"
        )

    def _take_lock(self) -> int:
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 4096).decode("utf-8", "replace").strip() or "an unknown process"
            os.close(descriptor)
            raise StoreInUseError(
                f"{self.path} is in use by {holder}. One process owns a database: stop that one, "
                "or name another directory"
            ) from None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        command = shlex.join(sys.argv)[:200]
        text = f"process {os.getpid()} on host {socket.gethostname()} since {since} (command: {command})\n".encode()
        # The text only helps the user of the second process. A full disk must not be reported as a lock.
        with suppress(OSError):
            os.pwrite(descriptor, text, 0)
            os.ftruncate(descriptor, len(text))
        return descriptor

    def _check_marker(self) -> None:
        marker = self.path / _MARKER
        if not marker.exists():
            self._write_marker("creating")
        found = self._read_marker(marker)
        if found.get("format") != DIRECTORY_FORMAT:
            raise StoreConflictError(
                f"{self.path} has directory format {found.get('format')!r}, and this software opens format "
                f"{DIRECTORY_FORMAT}: use the version of MillWheel that wrote it, or another directory"
            )
        self.is_new = found.get("state") == "creating"
        if self.is_new:
            # An earlier creation did not finish. Nothing in it was ever acknowledged.
            shutil.rmtree(self.data, ignore_errors=True)
        elif not (self.data / "CURRENT").exists():
            raise StoreError(
                f"{self.path} is marked as a database, but {self.data} holds none: its files were removed. "
                "Restore them from a snapshot, or name an empty directory to start without state"
            )

    def _read_marker(self, marker: Path) -> dict[str, object]:
        try:
            found = json.loads(marker.read_bytes())
        except OSError as error:
            raise _os_error(self.path, error) from error
        except ValueError as error:
            raise StoreError(f"{marker} is damaged ({error}): restore the directory from a snapshot") from error
        if not isinstance(found, dict) or found.get("kind") != _KIND:
            raise StoreConflictError(
                f"{marker} was not written by MillWheel: name an empty directory, or one that it created"
            )
        return found

    def _write_marker(self, state: str) -> None:
        draft = self.path / _MARKER_DRAFT
        try:
            with draft.open("w", encoding="utf-8") as file:
                json.dump({"kind": _KIND, "format": DIRECTORY_FORMAT, "state": state}, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path / _MARKER)
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _os_error(self.path, error) from error


def _os_error(path: Path, error: OSError) -> StoreUnavailableError:
    return StoreUnavailableError(f"cannot use {path}: {error}. Check that the directory is writable and has free space")
