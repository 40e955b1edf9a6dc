"""A wall clock for each daemon that can be set while the daemon runs. Its monotonic clock does not change.

Daemons read the wall time only by ``time.time`` and ``time.time_ns``, so these two functions are replaced.
``from tests.faults.clocks import main; main(FOLDER)`` runs the command line with such a clock. The clock's offset is in
a file of FOLDER, whose name is the daemon's port.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Final

from millwheel.cli.main import main as millwheel_main

_OFFSET: Final = struct.Struct("<q")
_LISTEN: Final = "--rpc-listen="


class Clocks:
    """The clocks of all daemons, set from outside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def code(self) -> str:
        """The program of a daemon with such a clock."""
        return f"from tests.faults.clocks import main; main({str(self._folder)!r})"

    def make(self, address: str) -> None:
        """Make a right clock for the daemon that listens at ``address``."""
        self._file(address).write_bytes(_OFFSET.pack(0))

    def step(self, address: str, seconds: float) -> None:
        """Set the clock ahead of the others by ``seconds``, or behind if negative."""
        with self._file(address).open("r+b", buffering=0) as file:
            file.write(_OFFSET.pack(int(seconds * 1e9)))

    def _file(self, address: str) -> Path:
        return self._folder / address.rpartition(":")[2]


def main(folder: str) -> None:
    """Run the command line with this daemon's clock."""
    (listen,) = (argument for argument in sys.argv if argument.startswith(_LISTEN))
    with Path(folder, listen.rpartition(":")[2]).open("rb") as file:
        offset = mmap.mmap(file.fileno(), _OFFSET.size, prot=mmap.PROT_READ)
    right = time.time_ns

    def time_ns() -> int:
        return int(right() + _OFFSET.unpack_from(offset)[0])

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9
    millwheel_main()
