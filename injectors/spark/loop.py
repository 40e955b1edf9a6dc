"""One event loop for each process of Spark's, on a thread of its own.

A worker process runs many tasks, one after the other. One loop serves them all: gRPC's poller is the
process's, and a loop that was closed under it costs the others their events.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process id: Spark forks its workers, and a thread does not come along."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do ``work`` on the process's loop; blocks until it is done. What is opened on it lives on between calls."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except BaseException:
        # A KeyboardInterrupt, say: the work is not to go on behind the caller's back.
        future.cancel()
        raise


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="millwheel-spark", daemon=True).start()
        return loop
