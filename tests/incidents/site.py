"""A cluster in production: etcd, Cassandra, all daemons, Prometheus with the alert rules, and a shop that works."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.local.prometheus import Prometheus
from tests.faults.cluster import PATIENCE, Cluster, cluster
from tests.incidents import shop as program
from tests.incidents.ledger import Ledger
from tests.incidents.till import PROCESS, STREAM, Till
from tests.monitoring.incidents import quick
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system.server import Finished, run_cli

QUICK: Final = bool(os.environ.get("MILLWHEEL_QUICK"))
"""Whether a minute of the alert rules is shorter here. The measured times then say nothing of production."""


@dataclass(frozen=True, slots=True)
class Site:
    """All that runs, and what an operator has: the command line, the console, and Prometheus."""

    place: Path
    cluster: Cluster
    prometheus: Prometheus
    till: Till
    ledger: Ledger

    async def cli(self, *command: str) -> Finished:
        """Run a command of ``millwheel``."""
        return await run_cli(self.cluster.daemons.address, *command)

    async def console(self, path: str, **query: str) -> Any:
        """The answer of the console's API, such as ``ClusterService/GetOverview``. None: no console answers."""
        for address in self.cluster.daemons.consoles.values():
            try:
                return await asyncio.to_thread(_get, f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(query)}")
            except OSError:
                continue
        return None

    def changed_program(self, *changes: tuple[str, str]) -> str:
        """Write the shop's program with other texts in some places, and return what `topology update` takes."""
        source = Path(program.__file__).read_text()
        for old, new in changes:
            assert old in source
            source = source.replace(old, new)
        changed = self.place / "changed" / "shop.py"
        changed.parent.mkdir(exist_ok=True)
        changed.write_text(source)
        return f"{changed}:shop"

    async def close_shop(self) -> None:
        """Sell no more, and wait until each order has taken effect and its window has ended."""
        self.till.rate = 0
        await until(lambda: len(self.ledger.totals) >= self.counted, patience(120), every=0.5)
        await asyncio.to_thread(self.till.process.stop)
        done = await self.cli("injector", "finish", STREAM, PROCESS, "--yes")
        assert done.code == 0, done.err
        await until(lambda: self.ledger.has_all(self.valid), patience(60), every=0.5)

    @property
    def valid(self) -> list[program.Order]:
        """The orders that must count."""
        return [one for one in self.till.sent if one.amount >= 0]

    @property
    def counted(self) -> int:
        """How many must count."""
        return len(self.valid)


@asynccontextmanager
async def site(place: Path, *, nodes: int = 1, with_links: bool = False, **more: Any) -> AsyncIterator[Site]:
    """A site that works: the cluster is healthy, and no alert fires.

    ``with_links``: connections can be cut. ``more``: further options of tests/faults/cluster.py.
    """
    shutil.rmtree(place, ignore_errors=True)
    async with cluster(place / "cluster", nodes=nodes, with_links=with_links, with_consoles=True, **more) as found:
        address = found.daemons.address
        await submit_copy(address, program.__file__, "shop", place, PATIENCE)
        till, ledger = Till(place / "till", address), Ledger(address)
        pages: dict[str, list[str]] = {"programs": [till.page]}
        for name, page in found.daemons.metrics.items():
            pages.setdefault(name.partition(" ")[0], []).append(page)
        rules = quick if QUICK else str
        with Prometheus(place / "prometheus", pages, rules=rules) as prometheus:
            async with ledger.open(), till.open():
                made = Site(place, found, prometheus, till, ledger)
                await until(lambda: asyncio.to_thread(prometheus.is_ready), patience(20), every=0.1)
                await until(lambda: _is_well(made), patience(60), every=1.0)
                yield made


async def _is_well(made: Site) -> bool:
    if not made.ledger.totals or not await made.cluster.all_there():
        return False
    # What was not there at the first scrapes may be about to become an alert.
    if not made.prometheus.values("max(millwheel_master_leads) == 1") or made.prometheus.values("ALERTS"):
        return False
    return (await made.cli("cluster", "health")).code == 0


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return json.load(answer)
