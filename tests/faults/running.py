"""The common parts of `make test-faults` and `make soak`: the load on its cluster, and the report."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import uvloop

from deploy.local.apt import InstallError
from deploy.local.ending import causes, stoppable
from examples.demo.showing import say
from millwheel import MillwheelError
from tests.faults import program
from tests.faults.checking import Violation
from tests.faults.cluster import PATIENCE, Cluster, cluster
from tests.faults.history import History
from tests.faults.load import Load
from tests.patience import until
from tests.submitting import submit_copy

BUILD: Final = Path(__file__).parents[2] / "build"
_EXPECTED: Final = (InstallError, RuntimeError, TimeoutError, MillwheelError)
_END: Final = 120.0
"""Seconds after the last record in which the streams must end."""
_SHOWN: Final = 40


def parser(module: str, text: str | None, nodes: int) -> argparse.ArgumentParser:
    """Of a command whose cluster has so many ``nodes`` of Cassandra, and members of etcd, if nothing else is said."""
    found = argparse.ArgumentParser(prog=f"python -m {module}", description=text)
    found.add_argument("--nodes", type=int, default=nodes, help="of Cassandra")
    found.add_argument("--members", type=int, default=nodes, help="of etcd")
    found.add_argument("--seed", type=int, default=1, help="of the load")
    return found


@asynccontextmanager
async def loaded(
    place: Path, options: argparse.Namespace, missed: list[str], **more: Any
) -> AsyncIterator[tuple[Cluster, Load, History]]:
    """A cluster with the load, whose history is in ``place``/history.jsonl. The streams end with the block.

    If they do not end, ``missed`` gets a text. ``more``: options of :func:`cluster`.
    """
    shutil.rmtree(place, ignore_errors=True)
    with closing(History(place / "history.jsonl")) as written:
        async with cluster(place, say, nodes=options.nodes, members=options.members, **more) as found:
            await submit_copy(found.daemons.address, program.__file__, "faults", place, PATIENCE)
            load = Load(found.daemons.address, written, options.seed)
            async with load.flowing(_END) as unended:
                await until(found.all_there, PATIENCE, every=0.2)
                yield found, load, written
                say("no more records: waiting for the ends of the streams")
            missed += unended
            say(f"sent {load.sent.total():,} records; received {dict(load.received)}")


def complain(violations: Sequence[Violation], missed: Sequence[str], when: Callable[[Violation], str]) -> None:
    """Print violations and failures on stderr."""
    for violation in violations[:_SHOWN]:
        print(f"VIOLATION: {violation.kind}: {violation.text} ({when(violation)})", file=sys.stderr)
    for one in missed:
        print(f"FAILED: {one}", file=sys.stderr)


def run_to_end(work: Coroutine[Any, Any, int], place: Path) -> int:
    """Run ``work``. Returns its exit status, also if it raised. Its logs are in ``place``."""
    try:
        return uvloop.run(stoppable(work))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted: everything is stopped", file=sys.stderr)
        return 130
    except Exception as error:
        for cause in causes(error, _EXPECTED, "it took too long"):
            print(f"FAILED: {cause}; logs: {place}", file=sys.stderr)
        return 1
