"""A cluster that outlives the command that started it. A background process owns it until that process is stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deploy.local.cluster import LocalCluster

__all__ = ["keep_in_background", "stop_kept"]

_STOPS: Final = 60.0


def keep_in_background(place: Path, run: Callable[[Callable[[LocalCluster | None, int], None]], int]) -> int:
    """Call ``run`` in a background process, which stays with its cluster.

    Return the exit code as soon as it is known.
    """
    reading, writing = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(reading)
        os.setsid()
        os._exit(_keep(place, run, writing))
    os.close(writing)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os.kill(keeper, signal.SIGTERM))
    with os.fdopen(reading) as pipe:
        code = pipe.read()
    if code:
        return int(code)
    _, status = os.waitpid(keeper, 0)
    return os.waitstatus_to_exitcode(status) or 1


def _keep(place: Path, run: Callable[[Callable[[LocalCluster | None, int], None]], int], writing: int) -> int:
    def done(cluster: LocalCluster | None, code: int) -> None:
        if cluster is not None:
            _pid_file(place).write_text(str(os.getpid()))
            print(f"the cluster stays up:\n  export MILLWHEEL_ADDRESS={cluster.address}")
            print(f"its settings: {cluster.daemons.config}\nits logs: {cluster.place / 'logs'}")
            print("stop it with: make cluster-stop")
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(writing, str(code).encode())
        os.close(writing)
        log = os.open(place / "keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for here, there in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(here, there)

    code = run(done)
    _pid_file(place).unlink(missing_ok=True)
    return code


def stop_kept(place: Path, *, quiet: bool = False) -> int:
    """Stop the cluster that an earlier run kept. Return 0 if no cluster is left."""
    try:
        pid = int(_pid_file(place).read_text())
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        if not quiet:
            print("no cluster is kept")
        return 0
    end = time.monotonic() + _STOPS
    while _pid_file(place).exists() and time.monotonic() < end:
        time.sleep(0.1)
    stopped = not _pid_file(place).exists()
    print("the cluster that was kept is stopped" if stopped else f"process {pid} does not stop", flush=True)
    return 0 if stopped else 1


def _pid_file(place: Path) -> Path:
    return place / "keeper.pid"
