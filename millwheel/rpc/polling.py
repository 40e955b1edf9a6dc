"""How gRPC reads its connections in MillWheel's own processes.

gRPC's event engine is the default in Python since 2026. It reads connections in its own threads, and passes the data to
the thread that wakes Python's event loop. Without the event engine that thread reads the connections itself. Then a
small message takes 20 to 25 percent less CPU, and waits for a core one time less. docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

__all__ = ["poll_without_threads"]

_SWITCH: Final = "GRPC_EXPERIMENTS"
_KNOWN: Final = (1, 85)
"""The newest release that is known to have the switch. A release without it would log a warning at each start."""


def poll_without_threads() -> None:
    """Switch off gRPC's event engine, unless the environment already sets gRPC's experiments.

    gRPC reads the environment when it is imported, so a later call has no effect. Only MillWheel's own processes call
    this. A program that imports MillWheel as a library configures gRPC itself.
    """
    if "grpc" not in sys.modules and _release() <= _KNOWN:
        os.environ.setdefault(_SWITCH, "-event_engine_client,-event_engine_listener")


def _release() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version("grpcio").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return (*_KNOWN, 1)  # an unknown build: treat it as too new
