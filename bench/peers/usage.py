"""What the processes of a system use while it runs."""

from __future__ import annotations

import re
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

__all__ = ["MEBI", "Usage"]

MEBI: Final = 1 << 20


class Usage:
    """The memory and the processor time of all processes that this process starts from now on."""

    def __init__(self) -> None:
        self._others = {one.pid for one in psutil.Process().children(recursive=True)}
        self._spent: dict[int, float] = {}
        self._before = 0.0
        self._ended_before = 0.0
        self.peak = 0

    def mark(self) -> None:
        """Processor time counts from here on."""
        self.sample()
        self._before = sum(self._spent.values())
        self._ended_before = _of_ended()

    @property
    def seconds(self) -> float:
        """Processor time since the mark.

        What a process used after the last look is only in the sum that the system keeps of ended children. That sum
        lacks the children of an ended process which it did not wait for. So the larger of the two is closer.
        """
        return max(sum(self._spent.values()) - self._before, _of_ended() - self._ended_before)

    def sample(self) -> None:
        """Look once."""
        memory = 0
        for one in psutil.Process().children(recursive=True):
            if one.pid not in self._others:
                with suppress(psutil.Error, OSError):
                    memory += _proportional(one.pid)
                    times = one.cpu_times()
                    self._spent[one.pid] = float(times.user + times.system)
        self.peak = max(self.peak, memory)


def _of_ended() -> float:
    """The processor seconds of all children that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def _proportional(pid: int) -> int:
    """The bytes of a process in memory. A page that n processes share counts as an n-th of it."""
    found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found.group(1)) << 10 if found else 0
