"""A worker daemon of several processes. Each process is a worker, and the supervisor restarts one that dies.

A process that the cluster refuses, such as one with a duplicate worker id, is not restarted: the daemon ends.

The processes run the supervisor's command with their number appended. The kernel kills them when the supervisor ends
for any reason (PR_SET_PDEATHSIG). So a restarted daemon never runs beside processes of its previous run.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Final

from millwheel.model.backoff import Backoff
from millwheel.server.logs import fields

__all__ = ["die_with_parent", "own_command", "supervise"]

log = logging.getLogger("millwheel")

_PR_SET_PDEATHSIG: Final = 1
RETRY_BACKOFF: Final = Backoff(0.5, 30.0)
_HEALTHY_SECONDS: Final = 60.0
"""Seconds that a process must run to reset the count of failures, and so the restart back-off."""


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent process ``parent`` ends. Kill it now if the parent has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


async def supervise(
    command: Callable[[int], Sequence[str]], count: int, stop: asyncio.Event, grace: float, final: Collection[int]
) -> int:
    """Keep ``count`` processes running until ``stop``. Then terminate them, and kill them after ``grace`` seconds.

    ``final``: exit codes after which a restart cannot help. A process that ends with one of them ends the daemon.

    Returns:
        That exit code, or 0.
    """
    async with asyncio.TaskGroup() as group:
        keeping = [group.create_task(_keep(command(index), index, stop, grace, final)) for index in range(count)]
    return max(task.result() for task in keeping)


async def _keep(command: Sequence[str], index: int, stop: asyncio.Event, grace: float, final: Collection[int]) -> int:
    loop = asyncio.get_running_loop()
    failures = 0
    while not stop.is_set():
        began = loop.time()
        process = await asyncio.create_subprocess_exec(
            # A terminal sends its signals to a whole process group. In a new session the process does not receive
            # them. So it receives each stop request once, from the supervisor.
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        log.info("process %d runs", index, extra=fields(pid=process.pid))
        code = await _run(process, stop, grace)
        if stop.is_set():
            break
        if code in final:
            log.error("process %d ended %s: a restart cannot help, so the daemon ends", index, _how(code))
            stop.set()
            return code
        failures = 1 if loop.time() - began > _HEALTHY_SECONDS else failures + 1
        delay = RETRY_BACKOFF.delay(failures, 0.5)
        log.error("process %d ended (%s); it is started again in %.1f s", index, _how(code), delay)
        await _wait(stop, delay)
    return 0


async def _run(process: asyncio.subprocess.Process, stop: asyncio.Event, grace: float) -> int:
    """Wait until a process ends. After ``stop``, terminate it, and kill it after ``grace`` seconds."""
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
    """Return the command line of this process, extended for its worker process ``index``."""
    return [sys.executable, "-c", "from millwheel.cli.main import main; main()", *sys.argv[1:], *_own(index)]
