"""The common parts of `make test-faults` and `make soak`: the load on its cluster, and what it reports."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

from examples.demo.showing import say
from tests.faults import program
from tests.faults.cluster import PATIENCE, Cluster, cluster
from tests.faults.history import History
from tests.faults.load import Load
from tests.patience import until
from tests.submitting import submit_copy

BUILD: Final = Path(__file__).parents[2] / "build"
_END: Final = 120.0
"""Seconds after the last record in which the streams must end."""


@asynccontextmanager
async def loaded(
    place: Path, missed: list[str], *, seed: int, **more: Any
) -> AsyncIterator[tuple[Cluster, Load, History]]:
    """A cluster with the load, whose history is in ``place``/history.jsonl. The streams end with the block.

    If they do not end, ``missed`` gets a text. ``more``: options of :func:`cluster`.
    """
    shutil.rmtree(place, ignore_errors=True)
    with closing(History(place / "history.jsonl")) as written:
        async with cluster(place, **more) as found:
            await submit_copy(found.daemons.address, program.__file__, "faults", place, PATIENCE)
            load = Load(found.daemons.address, written, seed)
            async with load.flowing(_END) as unended:
                await until(found.all_there, PATIENCE, every=0.2)
                yield found, load, written
                say("no more records: waiting for the ends of the streams")
            missed += unended
            say(f"sent {load.sent.total():,} records; received {dict(load.received)}")
