"""Restarts daemons when they end, as a service manager does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from deploy.local.child import ChildProcess

__all__ = ["Services"]

_POLL_SECONDS: Final = 0.2
_PAUSE: Final = 1.0
"""Seconds until a service that ended is restarted. It is systemd's RestartSec in deploy/systemd."""


class Services:
    """Keeps processes running between :meth:`start` and :meth:`stop`. All calls come from the main thread."""

    def __init__(self, processes: Mapping[str, ChildProcess], say: Callable[[str], None]) -> None:
        self.processes = processes
        self._say = say
        self._watching: asyncio.Task[None] | None = None
        self._stopped: set[str] = set()

    def start(self) -> None:
        """Start all processes, and restart them from now on when they end."""
        for process in self.processes.values():
            process.start()
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop all processes with SIGTERM. Their logs stay."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        # In a thread, not on the event loop: the processes may need responses from this process before they end.
        await asyncio.to_thread(ChildProcess.stop_all, list(self.processes.values()), 15.0)

    def stop_service(self, name: str) -> None:
        """Stop one process in order, and leave it stopped, as ``systemctl stop`` does."""
        self._stopped.add(name)
        self.processes[name].stop()

    def start_service(self, name: str) -> None:
        """Start a process that was stopped, as ``systemctl start`` does."""
        self._stopped.discard(name)
        self.processes[name].start()

    async def _watch(self) -> None:
        ended: dict[str, float] = {}
        loop = asyncio.get_running_loop()
        while True:
            for name, process in self.processes.items():
                if process.is_running or name in self._stopped:
                    continue
                since = ended.setdefault(name, loop.time())
                if loop.time() - since >= _PAUSE:
                    del ended[name]
                    process.start()
                    self._say(f"{name} had ended, and is started again (pid {process.pid})")
            await asyncio.sleep(_POLL_SECONDS)
