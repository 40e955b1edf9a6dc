"""The speed of the machine during a measurement, for comparing figures from different hours.

On a shared machine, memory may be several times slower in one hour than in another, because of other users' work. A
plain loop does not show this.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Final

from bench.report import Figure

__all__ = ["Machine"]

_LOOP: Final = 1_000_000
_COPIED: Final = 64 << 20
_COPIES: Final = 4
_SYNCS: Final = 50
_SYNCED: Final = 4_096


class Machine:
    """Samples the machine's speed, half a second each time. ``figures`` returns the medians."""

    def __init__(self) -> None:
        self._looks: dict[tuple[str, str], list[float]] = {}

    def look(self) -> None:
        """Take a sample. Call it only while nothing is measured."""
        for name, unit, sample in _SAMPLES:
            self._looks.setdefault((name, unit), []).append(sample())

    def figures(self) -> list[Figure]:
        """The samples and their medians."""
        return [
            Figure(f"machine.{name}", statistics.median(found), unit, tuple(found))
            for (name, unit), found in self._looks.items()
        ]


def _loop() -> float:
    began = time.perf_counter()
    for _ in range(_LOOP):
        pass
    return (time.perf_counter() - began) * 1e3


def _copy() -> float:
    source = bytearray(_COPIED)
    bytes(source)
    began = time.perf_counter()
    for _ in range(_COPIES):
        bytes(source)
    return _COPIES * _COPIED / (time.perf_counter() - began) / 1e9


def _sync() -> float:
    with tempfile.TemporaryFile() as file:
        took = []
        for _ in range(_SYNCS):
            file.write(bytes(_SYNCED))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took)


_SAMPLES: Final[tuple[tuple[str, str, Callable[[], float]], ...]] = (
    ("loop_ms", "ms", _loop),
    ("copy_gb_per_s", "GB/s", _copy),
    ("sync_ms", "ms", _sync),
)
"""A million iterations of an empty loop; a copy of uncached memory; a durable write of four kilobytes to the disk."""
