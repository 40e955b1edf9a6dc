"""How fast the machine is while it is measured: what figures of different hours are to be compared by.

On a machine that is shared, a plain loop may run as fast as ever while memory is several times slower than in another
hour: others' work shares it, and nothing else shows that from within.
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
    """Looks at the machine, half a second each time; ``figures`` tells the medians."""

    def __init__(self) -> None:
        self._looks: dict[tuple[str, str], list[float]] = {}

    def look(self) -> None:
        """Take a sample, while nothing is measured."""
        for name, unit, sample in _SAMPLES:
            self._looks.setdefault((name, unit), []).append(sample())

    def figures(self) -> list[Figure]:
        """What the samples were, and their medians."""
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
"""A million turns of an empty loop; copying memory that no cache holds; having four kilobytes on the disk."""
