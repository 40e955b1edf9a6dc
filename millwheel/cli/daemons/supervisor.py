"""A worker daemon of several processes: each is a worker of its own; one that dies is started again, after a pause.

The processes run the command that the supervisor was given, with their number behind it. They die with the supervisor,
however it ends (PR_SET_PDEATHSIG), so that a daemon that is started again never meets its own past.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

from millwheel.cli.logs import fields
from millwheel.rpc.channel import Backoff

__all__ = ["die_with_parent", "own_command", "supervise"]

log = logging.getLogger("millwheel")

_PR_SET_PDEATHSIG: Final = 1
_AGAIN: Final = Backoff(0.5, 30.0)
_HEALTHY: Final = 60.0
"""Seconds that a process must have run for its end to count as a first one."""


def die_with_parent(parent: int) -> None:
    """Have this process killed when ``parent``, which started it, ends; at once if it has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


async def supervise(command: Callable[[int], Sequence[str]], count: int, stop: asyncio.Event, grace: float) -> None:
    """Keep ``count`` processes running until ``stop``; then tell them to stop, and wait ``grace`` seconds for it."""
    async with asyncio.TaskGroup() as group:
        for index in range(count):
            group.create_task(_keep(command(index), index, stop, grace))


async def _keep(command: Sequence[str], index: int, stop: asyncio.Event, grace: float) -> None:
    loop = asyncio.get_running_loop()
    failures = 0
    while not stop.is_set():
        began = loop.time()
        process = await asyncio.create_subprocess_exec(
            # A group of its own: what a terminal tells all of a group, the supervisor tells each process once.
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        log.info("process %d runs", index, extra=fields(pid=process.pid))
        code = await _run(process, stop, grace)
        if stop.is_set():
            return
        failures = 1 if loop.time() - began > _HEALTHY else failures + 1
        delay = _AGAIN.delay(failures, 0.5)
        log.error("process %d ended (%s); it is started again in %.1f s", index, _how(code), delay)
        await _wait(stop, delay)


async def _run(process: asyncio.subprocess.Process, stop: asyncio.Event, grace: float) -> int:
    """Wait for a process's end; after ``stop``, bring it about."""
    ended = asyncio.ensure_future(process.wait())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            process.terminate()
            await asyncio.wait({ended}, timeout=grace)
        if not ended.done():
            log.error("process %d takes more than %g s to stop: it is killed", process.pid, grace)
            process.kill()
        return await ended
    except BaseException:
        if process.returncode is None:
            process.kill()
        raise
    finally:
        stopping.cancel()


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass


def _how(code: int) -> str:
    return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _own(index: int) -> Sequence[str]:
    return ["--process", str(index), "--parent", str(os.getpid())]


def own_command(index: int) -> Sequence[str]:
    """The command that this process runs by, for one of its processes."""
    return [sys.executable, "-c", "from millwheel.cli.main import main; main()", *sys.argv[1:], *_own(index)]
