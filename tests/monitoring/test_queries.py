"""A real Prometheus scrapes a server under load, and every query of the dashboards and rules gives something."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from deploy.local.child import free_ports
from deploy.local.prometheus import Prometheus
from millwheel.client.injector import Injector
from tests.monitoring import shop as program
from tests.monitoring.incidents import Shop, program_page
from tests.monitoring.queries import alerts, panel_queries, rules, variable_queries
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system.server import Server, run_cli

NEEDS_A_FAULT = {
    "cluster / Hot keys / {{topology}}/{{computation}}": "a key too busy for one core: tests/master/test_loads.py",
    "cluster / Broken links / {{instance}} to {{peer}}": "a second worker, and a cut link: tests/incidents",
    "cluster / Nodes of the store that are not reached / {{node}} by {{instance}}": "a lost node: tests/incidents",
    "cluster / Calls that fail / {{method}} (stream): {{code}}": "a stream of responses that breaks",
    "computation / Refused deliveries / {{stream}}: {{reason}}": "a full interval, or a takeover at the right moment",
    "streams / Refused deliveries / {{stream}}: {{reason}}": "the same",
    "topology / Back-pressure / {{topology}}/{{computation}}: {{stream}}": "an interval with 200,000 records in its "
    "queue: tests/worker/test_measures.py",
    "streams / Refused reports / {{reason}}": "a deposed owner that reports: tests/authority",
    "computation / Blocked event loop / {{hook}} on {{instance}}: seconds now": "a scrape while a hook blocks the loop",
}
"""Queries that may be empty here, with what they need."""

WITHOUT_SERIES = {
    "millwheel_quarantined_intervals": "a damaged journal: tests/system/test_quarantine.py",
    "millwheel_authority_silent_injector_seconds": "an injector process that hangs: tests/incidents",
    "millwheel_master_unfed_streams": "five minutes without an injector: tests/master/test_unfed.py",
    "millwheel_worker_link_broken_seconds": "a second worker: tests/incidents",
    "millwheel_master_left_workers": "a worker that is stopped: tests/master/test_events.py",
    "millwheel_store_node_down_seconds": "a node of Cassandra: tests/incidents",
}
"""Metrics of rules that need a fault: tests/monitoring/rules_test.yml has them."""


async def give_back(address: str) -> None:
    """Send something whose region is unknown. It waits for its key."""
    async with Injector("returns", address=address, process="counter") as injector:
        await injector.send({"item": "zz"}, timestamp=time.time_ns() // 1_000)
        await asyncio.Event().wait()


async def act(server: Server) -> None:
    """Do what operators do, with a call that fails."""
    split = await run_cli(server.address, "interval", "split", "shop/count", "--key", "item 3", "--at", "item 3")
    assert split.code == 0, split.err
    assert (await run_cli(server.address, "topology", "describe", "unknown")).code == 3


@pytest.mark.timeout(300)
async def test_every_query_works_and_gives_something(tmp_path: Path) -> None:
    page = f"127.0.0.1:{free_ports(1)[0]}"
    options = ("--metrics-port", page.rpartition(":")[2])
    async with Server(tmp_path / "db", tmp_path / "log", options=options) as server:
        await submit_copy(server.address, program.__file__, "shop", tmp_path)
        with (
            program_page() as own,
            Prometheus(tmp_path / "prometheus", {"all": [page], "programs": [own]}) as prometheus,
        ):
            async with Shop(server.address).open() as shop, asyncio.TaskGroup() as group:
                shop.special += ["poison", "slow"]
                giving = group.create_task(give_back(server.address))
                await until(lambda: asyncio.to_thread(prometheus.is_ready), patience(20), every=0.1)
                await act(server)
                await _all_give_something(prometheus)
                assert [one["health"] for one in prometheus.rules()] == ["ok"] * len(alerts())
                giving.cancel()


async def _all_give_something(prometheus: Prometheus) -> None:
    async def empty() -> list[str]:
        queries = [one for one in panel_queries() if one.place not in NEEDS_A_FAULT]
        found = [one.place for one in queries if not await asyncio.to_thread(one.has_data, prometheus)]
        found += [where for where, series, label in variable_queries() if not prometheus.label_values(label, series)]
        names = set(re.findall(r"millwheel_\w+", rules())) - WITHOUT_SERIES.keys()
        return [*found, *(name for name in names if not prometheus.label_values("__name__", f'{{__name__="{name}"}}'))]

    await until(empty, patience(20), every=1.0, holds=lambda found: found == [])
    for one in panel_queries():
        if one.place in NEEDS_A_FAULT:
            one.has_data(prometheus)
    assert NEEDS_A_FAULT.keys() <= {one.place for one in panel_queries()}
