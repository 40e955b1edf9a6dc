"""How gRPC waits for its connections in the processes that are ours.

Its event engine, which Python has by default since 2026, reads connections in threads of its own, and hands what they
have read to the thread that wakes Python's event loop. Until then that thread read them itself: a small message takes
a fifth to a quarter less CPU so, and waits for a core once less often. docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

__all__ = ["poll_without_threads"]

_SWITCH: Final = "GRPC_EXPERIMENTS"
_KNOWN: Final = (1, 85)
"""The newest release that is known to have the switch. One that has not would say so at each start, and do without."""


def poll_without_threads() -> None:
    """Have gRPC do without its event engine, unless the environment says something of its experiments already.

    It looks at the environment when it is imported: later this does nothing. Only for a process that is ours from the
    start; whoever imports this library has set gRPC up for themselves.
    """
    if "grpc" not in sys.modules and _release() <= _KNOWN:
        os.environ.setdefault(_SWITCH, "-event_engine_client,-event_engine_listener")


def _release() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version("grpcio").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return (*_KNOWN, 1)  # built in a way of its own: who knows
