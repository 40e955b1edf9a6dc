"""Workers come by their backlog and go when it is gone, without an operator, and nothing is lost or counted twice.

A small controller does what KEDA and Kubernetes do: it asks a real Prometheus the queries of the chart, decides by the
formulas of the autoscaler, and starts and stops the pods of the chart as processes, the last one first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import millwheel as mw
from deploy.local.prometheus import Prometheus
from millwheel.client.injector import Injector
from millwheel.client.states import StateReader
from tests.deploy import chart, scaled
from tests.deploy.autoscaler import Autoscaler, Policy, Scaling, Trigger, scaling_of
from tests.deploy.chart import of_kind, rendered
from tests.deploy.containers import RunningContainer
from tests.deploy.test_chart_processes import cluster
from tests.patience import patience, until
from tests.submitting import submit_copy

FASTER = 12.0
"""So many times as fast as in a cluster all times of the chart pass: a minute is five seconds."""
SMALLER = 10.0
"""So many times smaller is the backlog that one worker may have."""
MOST = 4
RECORDS, ITEMS, SOURCES = 40_000, 96, 3
"""Records of each source. The sources send at the same time, each within its window of un-ACKed records."""

UP = (Policy("Percent", 100, 60), Policy("Pods", 2, 60))
PLAIN = Scaling(2, 10, 15, [Trigger("backlog", "", 100), Trigger("cores", "", 0.5)], UP, [Policy("Pods", 1, 60)], 300)


def test_the_larger_need_of_two_metrics_counts() -> None:
    assert Autoscaler(PLAIN).decide(0, 3, {"backlog": 350, "cores": 0.1}) == 4
    assert Autoscaler(PLAIN).decide(0, 3, {"backlog": 0, "cores": 2.1}) == 5


def test_a_small_difference_changes_nothing() -> None:
    assert Autoscaler(PLAIN).decide(0, 3, {"backlog": 329, "cores": 0.0}) == 3
    assert Autoscaler(PLAIN).decide(0, 3, {"backlog": 331, "cores": 0.0}) == 4


def test_workers_at_most_double_within_a_minute() -> None:
    deciding, full = Autoscaler(PLAIN), {"backlog": 5_000.0, "cores": 9.0}
    assert deciding.decide(0, 3, full) == 6
    assert deciding.decide(15, 6, full) == 6
    assert deciding.decide(61, 6, full) == 10


def test_workers_leave_late_and_one_by_one() -> None:
    deciding, idle = Autoscaler(PLAIN), {"backlog": 0.0, "cores": 0.0}
    assert deciding.decide(0, 5, {"backlog": 500, "cores": 0.0}) == 5
    assert [deciding.decide(now, 5, idle) for now in (100, 200, 300)] == [5, 5, 5]
    assert [deciding.decide(now, number, idle) for now, number in ((301, 5), (331, 4), (362, 4), (423, 3))] == [
        4,
        4,
        3,
        2,
    ]
    assert deciding.decide(600, 2, idle) == 2


def test_a_metric_that_is_missing_stops_no_worker() -> None:
    deciding = Autoscaler(PLAIN)
    assert [deciding.decide(now, 4, {"cores": 0.0}) for now in (0, 400, 800)] == [4, 4, 4]
    assert deciding.decide(900, 4, {"backlog": 700}) == 7


def chart_scaling() -> Scaling:
    """The chart's ScaledObject, with times, backlog and workers that fit a test."""
    (manifest,) = of_kind(rendered("full"), "ScaledObject")
    found = scaling_of(manifest, FASTER)
    assert {one.name: one.threshold for one in found.triggers} == {"backlog": 20_000, "cores": 0.7}
    triggers = [
        replace(one, threshold=one.threshold / SMALLER)
        if one.name == "backlog"
        else replace(one, query=faster(one.query))
        for one in found.triggers
    ]
    return replace(found, most=MOST, triggers=triggers)


def faster(query: str) -> str:
    """A query whose range is as much shorter as the chart's times are."""
    assert "[2m]" in query
    return query.replace("[2m]", f"[{120 / FASTER:.0f}s]")


class Controller:
    """Keeps the number of running workers at what the autoscaler decides."""

    def __init__(self, scaling: Scaling, workers: list[RunningContainer], prometheus: Prometheus) -> None:
        self.scaling, self.workers, self.prometheus = scaling, workers, prometheus
        self.replicas = len(workers)
        self.seen: list[tuple[float, int, Mapping[str, float]]] = []

    async def run(self) -> None:
        """Decide at each poll, until cancelled."""
        deciding = Autoscaler(self.scaling)
        while True:
            values = await asyncio.to_thread(self._values)
            wanted = deciding.decide(time.monotonic(), self.replicas, values)
            self.seen.append((time.monotonic(), wanted, values))
            for worker in self.workers[self.replicas : wanted]:
                worker.process.start()
            for worker in reversed(self.workers[wanted : self.replicas]):
                await asyncio.to_thread(worker.stop)
            self.replicas = wanted
            await asyncio.sleep(self.scaling.polling_seconds)

    def _values(self) -> dict[str, float]:
        found = {}
        for trigger in self.scaling.triggers:
            # No series is no value: ignoreNullValues is false.
            for _, value in self.prometheus.values(trigger.query):
                found[trigger.name] = value
        return found


@pytest.mark.long
async def test_workers_come_and_go_by_their_backlog(tmp_path: Path) -> None:
    settings = {"MILLWHEEL_MASTER_COOL_DOWN_SECONDS": str(30 / FASTER)}
    with cluster("trusted-network", tmp_path, workers=MOST, more=settings) as pods:
        for pod in pods.values():
            await asyncio.to_thread(pod.until_ready)
        roles: dict[str, list[str]] = {}
        for pod in pods.values():
            at = pod.place.at(pod.container.probes["readiness"].port)
            roles.setdefault(pod.container.role, []).append(at)
        with Prometheus(tmp_path / "prometheus", roles, labels={"namespace": chart.NAMESPACE}) as scraping:
            await until(lambda: asyncio.to_thread(scraping.is_ready), patience(30), 0.2)
            workers = [pod for pod in pods.values() if pod.container.role == "worker"]
            await _scaled(Controller(chart_scaling(), workers, scraping), pods, tmp_path)


async def _scaled(controller: Controller, pods: Mapping[str, RunningContainer], place: Path) -> None:
    address = ",".join(pod.place.at(7433) for pod in pods.values() if pod.container.role == "master")
    await submit_copy(address, scaled.__file__, "scaled", place)
    controlling = asyncio.create_task(controller.run())
    try:
        await until(lambda: controller.replicas == 2, patience(60), 0.2)
        sent = await _burst(address)
        peak = max(number for _, number, _ in controller.seen)
        await until(lambda: controller.replicas == 2, patience(90), 0.2)
        counts = [number for _, number, _ in controller.seen]
        backlogs = [values.get("backlog", 0.0) for _, _, values in controller.seen]
        print(f"workers {_runs(counts)}, largest backlog {max(backlogs):.0f} records")
        assert peak == MOST
        assert backlogs[-1] == 0
        assert not controlling.done()
    finally:
        controlling.cancel()
        with suppress(asyncio.CancelledError):
            await controlling
    async with StateReader("scaled/count", scaled.Tally, address=address) as states:
        found = await states.get_many(list(sent))
    assert {item: (tally.records, tally.total) for item, tally in found.items() if tally} == sent
    used = controller.prometheus.values("millwheel_records_total")
    assert len({labels["instance"] for labels, _ in used}) >= 2


async def _burst(address: str) -> dict[str, tuple[int, int]]:
    """Send everything at once, and wait until all of it is committed. Returns what each item must have."""
    async with asyncio.TaskGroup() as group:
        for source in range(SOURCES):
            group.create_task(_send(address, source))
    numbers: dict[str, list[int]] = {}
    for number in range(RECORDS):
        numbers.setdefault(_item(number), []).append(number)
    return {item: (SOURCES * len(those), SOURCES * sum(those)) for item, those in numbers.items()}


async def _send(address: str, source: int) -> None:
    async with Injector("orders", process=f"burst-{source}", address=address) as injector:
        for number in range(RECORDS):
            order = scaled.Order(_item(number), number)
            await injector.send(order, timestamp=mw.Timestamp(time.time_ns() // 1_000))
        await injector.flush()


def _item(number: int) -> str:
    return f"item {number % ITEMS}"


def _runs(counts: list[int]) -> str:
    """The numbers without repetitions."""
    return " ".join(str(now) for before, now in zip([0, *counts], counts, strict=False) if now != before)
