"""One event loop for each Spark process, in a background thread.

A worker process runs many tasks, one after the other, and one loop serves them all. gRPC has one poller per process.
If a loop that uses the poller were closed, other loops would lose events.
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
"""By process id: Spark forks its workers, and a fork does not copy threads."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on the process's loop, and block until it is done.

    Objects that it opens stay usable in later calls.
    """
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except BaseException:
        # For example a KeyboardInterrupt: the work must not continue in the background.
        future.cancel()
        raise


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="millwheel-spark", daemon=True).start()
        return loop
