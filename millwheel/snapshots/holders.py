"""Which process holds a claim on a location, and whether that process is gone.

Invariant: a process that is said to be gone is gone. It ran on this host since its last start, in this space of process
ids, and no process there has its id and its start. Ids are used again, but not with the same start.

Who could break it: a copy of a running virtual machine under the same host name. Its processes look like those of the
original.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

__all__ = ["ClaimHolder", "holder_of", "this_process"]

_ENDED: Final = frozenset("ZXx")
"""States of a process that does nothing any more: its parent has not asked for its end yet."""


class ClaimHolder(msgspec.Struct, frozen=True):
    """A process, as a claim's file names it. Empty texts: the system does not say."""

    host: str = ""
    pid: int = 0
    system: str = ""
    """The start of the host, and the space of process ids."""
    start: str = ""
    """When the process began, in ticks of the system."""

    def is_gone(self) -> bool:
        """Whether the process has ended for sure. False also if that cannot be known here."""
        mine = this_process()
        same_system = (self.host, self.system) == (mine.host, mine.system)
        return bool(self.pid > 0 and self.start and mine.start) and same_system and self._has_ended()

    def _has_ended(self) -> bool:
        if found := _stat(self.pid):
            # The first thread of a process may have ended while others still run.
            return found.start != self.start or (found.state in _ENDED and found.threads <= 1)
        # The system may hide the processes of other users.
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            pass
        return False

    def __str__(self) -> str:
        return f"process {self.pid} of host {self.host}" if self.pid else "a process that its claim does not name"


_decode: Final = msgspec.json.Decoder(ClaimHolder).decode


def this_process() -> ClaimHolder:
    """The process that calls."""
    boot = _read("/proc/sys/kernel/random/boot_id").strip()
    space = ""
    with suppress(OSError):
        space = str(Path("/proc/self/ns/pid").readlink())
    found = _stat(os.getpid())
    start = found.start if boot and space and found else ""
    return ClaimHolder(socket.gethostname(), os.getpid(), f"{boot} {space}", start)


def holder_of(content: bytes) -> ClaimHolder:
    """The process that a claim's file names. Files of earlier versions name none."""
    with suppress(msgspec.DecodeError):
        return _decode(content)
    return ClaimHolder()


class _Seen(NamedTuple):
    state: str
    start: str
    threads: int
    """With the first one, also if that has ended."""


def _stat(pid: int) -> _Seen | None:
    """What the system says of a process. None: it cannot be seen."""
    # The name of the program stands in parentheses, and may have spaces and parentheses itself.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return _Seen(fields[0], fields[19], int(fields[17])) if len(fields) > 19 else None


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""
