"""Each run in a process of its own, forked from one that has everything loaded: cheap, and nothing is shared."""

from __future__ import annotations

import os
import pickle
import selectors
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from simulation.run import Verdict, run_seed
from simulation.world import World

__all__ = ["run_apart", "run_many"]

Arrange = Callable[[World], None]


def run_apart(seed: int, directory: Path, arrange: Arrange | None = None) -> Verdict:
    """Run one seed."""
    return next(iter(run_many([seed], directory, 1, arrange)))


def run_many(
    seeds: Iterable[int], directory: Path, processes: int, arrange: Arrange | None = None
) -> Iterator[Verdict]:
    """Run seeds, some side by side; yields as they end. A run that dies without a verdict raises RuntimeError."""
    waiting = iter(seeds)
    with selectors.DefaultSelector() as selector:
        while True:
            while len(selector.get_map()) < processes and (seed := next(waiting, None)) is not None:
                number, pipe = _fork(seed, directory, arrange)
                selector.register(pipe, selectors.EVENT_READ, (seed, number, bytearray()))
            if not selector.get_map():
                return
            for key, _ in selector.select():
                seed, number, content = key.data
                if chunk := os.read(key.fd, 1 << 20):
                    content += chunk
                    continue
                selector.unregister(key.fd)
                os.close(key.fd)
                os.waitpid(number, 0)
                if not content:
                    raise RuntimeError(f"the run of seed {seed} died")
                yield pickle.loads(content)


def _fork(seed: int, directory: Path, arrange: Arrange | None) -> tuple[int, int]:
    """The child's number, and the end of the pipe that its verdict comes by."""
    sys.stdout.flush()
    sys.stderr.flush()
    come, go = os.pipe()
    number = os.fork()
    if number:
        os.close(go)
        return number, come
    status = 1
    try:
        os.close(come)
        content = pickle.dumps(run_seed(seed, directory, arrange))
        with os.fdopen(go, "wb") as pipe:
            pipe.write(content)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Without the interpreter's end: what the run left behind would be finalized, and speak up.
        sys.stderr.flush()
        os._exit(status)
