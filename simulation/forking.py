"""Runs each seed in a forked process. The fork has all modules loaded, so it is cheap, and runs share no state."""

from __future__ import annotations

import gc
import os
import pickle
import selectors
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from simulation.run import Verdict, run_seed
from simulation.world import World

__all__ = ["apart", "run_apart", "run_many"]

Arrange = Callable[[World], None]
Found = TypeVar("Found")


def run_apart(seed: int, directory: Path, arrange: Arrange | None = None) -> Verdict:
    """Run one seed."""
    return next(iter(run_many([seed], directory, 1, arrange)))


def run_many(
    seeds: Iterable[int], directory: Path, processes: int, arrange: Arrange | None = None
) -> Generator[Verdict, None, None]:
    """Run seeds, some in parallel, and yield verdicts as the runs end.

    A run that dies without one raises RuntimeError.
    """
    return apart(
        ((f"the run of seed {seed}", partial(run_seed, seed, directory, arrange)) for seed in seeds), processes
    )


def apart(work: Iterable[tuple[str, Callable[[], Found]]], processes: int = 1) -> Generator[Found, None, None]:
    """Run each function in a fork, and yield the results as the forks end.

    Closing the generator kills the forks that still run. After that, none of them uses any resource.

    Raises:
        RuntimeError: a fork died without a result. The message has its name.
    """
    waiting = iter(work)
    with selectors.DefaultSelector() as selector:
        try:
            while True:
                while len(selector.get_map()) < processes and (one := next(waiting, None)) is not None:
                    name, do = one
                    number, pipe = _fork(do)
                    selector.register(pipe, selectors.EVENT_READ, (name, number, bytearray()))
                if not selector.get_map():
                    return
                for key, _ in selector.select():
                    name, number, content = key.data
                    if chunk := os.read(key.fd, 1 << 20):
                        content += chunk
                        continue
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    os.waitpid(number, 0)
                    if not content:
                        raise RuntimeError(f"{name} died")
                    yield pickle.loads(content)
        finally:
            for key in list(selector.get_map().values()):
                _, number, _ = key.data
                os.kill(number, signal.SIGKILL)  # the child is not reaped yet, so no other process has its number
                os.close(key.fd)
                os.waitpid(number, 0)


def _fork(do: Callable[[], object]) -> tuple[int, int]:
    """The child's process id, and the read end of the pipe for its result."""
    sys.stdout.flush()
    sys.stderr.flush()
    come, go = os.pipe()
    number = os.fork()
    if number:
        os.close(go)
        return number, come
    status = 1
    gc.disable()  # a run is short and frees its memory at exit; collection would take a twelfth of its time
    try:
        os.close(come)
        content = pickle.dumps(do())
        with os.fdopen(go, "wb") as pipe:
            pipe.write(content)
        status = 0
    except KeyboardInterrupt:
        pass  # the parent gets the signal as well
    except BaseException:
        traceback.print_exc()
    finally:
        # Skip the interpreter's shutdown: it would finalize what the run left behind, and print messages.
        sys.stderr.flush()
        os._exit(status)
