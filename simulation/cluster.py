"""The cluster's own processes: each role as its daemon runs it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any, Final, cast
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from millwheel.authority.core import CoreSettings as AuthoritySettings
from millwheel.authority.shard import ShardSettings
from millwheel.config import AuthoritySection, ClusterSection, MasterSection, Settings, WorkerSection
from millwheel.master.balancing import Balancer, BalanceSettings
from millwheel.master.settings import MasterSettings
from millwheel.model.time import seconds
from millwheel.server.authority import AUTHORITY
from millwheel.server.backends import Backends
from millwheel.server.cluster_settings import ensure_cluster_settings
from millwheel.server.daemon import Daemon, Role
from millwheel.server.master import MASTER
from millwheel.server.startup import retried
from millwheel.server.worker import WORKER
from millwheel.worker.dedup import Dedup
from millwheel.worker.interval import IntervalSettings as CoreSettings
from millwheel.worker.interval.hook_meter import BatchTime, HookTime
from millwheel.worker.log import DEAD_LETTER_RETENTION, LogConfig, LogSettings
from millwheel.worker.messages import GroupWatermarks
from millwheel.worker.process.destinations import CatalogRouting
from millwheel.worker.process.watermarks import GroupWatch
from millwheel.worker.process.worker import Worker
from simulation.etcd import client_of
from simulation.process import PROCESS, Clock, Process
from simulation.serving import SimulatedServer
from simulation.world import Main, World

__all__ = ["AUTHORITIES", "MASTERS", "WORKERS", "Routed", "start_cluster", "tuned"]

MASTERS: Final = ("m0", "m1")
AUTHORITIES: Final = ("t0", "t1")
WORKERS: Final = ("w0", "w1", "w2")


def start_cluster(world: World) -> None:
    """Start all processes of the cluster."""
    for names, role in ((MASTERS, MASTER), (AUTHORITIES, AUTHORITY), (WORKERS, WORKER)):
        for name in names:
            offset, drift = world.plan.clocks.get(name, (0.0, 0.0))
            world.start(name, _daemon(role), Clock(offset, drift))


class Routed(CatalogRouting):
    """Routing that checkers can compare with a catalog."""

    routed: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    """By topology: the incarnations that records are routed by."""

    def refresh(self) -> None:
        """See :class:`CatalogRouting`."""
        super().refresh()
        self.routed = {name: dict(one.incarnations) for name, one in self._catalog.topologies.items()}


@contextmanager
def tuned(world: World) -> Iterator[None]:
    """Workers use the plan's bounds and register with the world.

    The bounds are small, so that a few records reach them.
    """
    tuning = world.plan.tuning
    # Deliveries of any size wait for the next one, and those for a sink some time.
    core = CoreSettings(gathered_from=1, collects_for=30_000, **cast("dict[str, Any]", tuning["core"]))

    def core_of(**_: object) -> CoreSettings:
        process = PROCESS.get()
        by_hooks = world.plan.columns_mixed and process is not None and process.name == WORKERS[-1]
        return replace(core, columns_from=0) if by_hooks else core

    logs = LogSettings(**tuning["log"])
    shards = AuthoritySettings(**cast("dict[str, Any]", tuning["authority"]))
    # The letters of a week would fill a log with a small cap for good, so they go when the subscriber has them.
    letters = replace(DEAD_LETTER_RETENTION, stated="cap_bytes" not in tuning["log"])

    class Known(Worker):
        """A worker that checkers can inspect."""

        async def start(self) -> None:
            """See :class:`Worker`."""
            process = PROCESS.get()
            assert process is not None
            world.workers[process.name] = self
            await super().start()

    class Broadcast(GroupWatch):
        """A watch that shows checkers what is broadcast."""

        def publish(self, news: GroupWatermarks) -> None:
            """See :class:`GroupWatch`."""
            for see in world.broadcasts:
                see(news.values)
            super().publish(news)

    with (
        patch("millwheel.server.worker.CoreSettings", core_of),
        patch("millwheel.server.worker.Worker", Known),
        patch("millwheel.worker.process.notices.GroupWatch", Broadcast),
        patch("millwheel.worker.process.worker.CatalogRouting", Routed),
        patch("millwheel.worker.process.building.LogConfig", partial(LogConfig, settings=logs)),
        patch("millwheel.worker.process.building.DEAD_LETTER_RETENTION", letters),
        patch("millwheel.worker.process.programs.beside", _at_once),
        patch("millwheel.server.authority.ShardSettings", partial(ShardSettings, core=shards)),
        _ids_tuned(tuning["ids"]),
        _bounded(tuning["bounds"]),
        _paged(tuning["pages"]),
        _settling(world.plan.settled),
        _balanced(world),
        _turned(world),
    ):
        yield


@contextmanager
def _balanced(world: World) -> Iterator[None]:
    """If the plan has masters balance by themselves, they check often, and each event costs its interval some work."""
    plan = world.plan
    if not plan.balanced:
        yield
        return
    used = itertools.count()
    quick = BalanceSettings(cold_for=seconds(0.5), smallest_side=0.3, merge_busy=0.14)
    with (
        patch("millwheel.worker.process.event_host.perf_counter", lambda: next(used) * plan.balanced),
        patch("millwheel.server.master.BalanceSettings", lambda: quick),
        patch("millwheel.worker.process.rates.MAX_WINDOW_SECONDS", 2.0),
        patch("millwheel.master.loads.Balancer", lambda settings, _: Balancer(settings)),
        patch("millwheel.server.master.MasterSettings", partial(MasterSettings, poll_loads_every=seconds(0.5))),
    ):
        yield


@contextmanager
def _turned(world: World) -> Iterator[None]:
    """In every fourth run, other topologies and slow hooks shorten some batches: at any moment, to any length."""
    chance = Random(f"turns {world.plan.seed}")
    if chance.random() > _SHORT_BATCHES:
        yield
        return

    lengths = [chance.choice((1, 2, 3, 1_000)) for _ in range(100)]

    def drawn(batch_time: BatchTime, time: HookTime, most: int) -> int:
        """See ``fitting``. As there, the answer changes only when this hook has run."""
        return min(most, lengths[time.calls % len(lengths)])

    with patch("millwheel.worker.interval.hooks.runner.fitting", drawn):
        yield


@contextmanager
def _ids_tuned(bounds: Mapping[str, int]) -> Iterator[None]:
    """Runs and segments of ids have the sizes that ``bounds`` gives."""
    with ExitStack() as stack:
        if bounds:
            stack.enter_context(patch("millwheel.worker.dedup.opaque.MAX_RUN_IDS", bounds["run"]))
            tuned = {"segment_ids": bounds["segment"], "cached_segments": bounds["cached"]}
            for make in (Dedup.__init__, Dedup.restore.__func__, Dedup.inherit.__func__):  # type: ignore[attr-defined]
                stack.enter_context(patch.dict(make.__kwdefaults__, tuned))
        yield


_SHORT_BATCHES: Final = 0.25
"""The fraction of runs whose batches are cut short by the time that they take."""

_BOUNDS: Final = {
    "old": "interval.commits.commits.STUCK_AFTER_COMMITS",
    "acks": "interval.commits.weak_commits.MAX_ACKS_PER_ENTRY",
    "stuck": "interval.outbox.outbox.MAX_STUCK_RECORDS",
    "sifted": "interval.outbox.outbox.MAX_SIFTED_BATCHES",
    "flows": "interval.outbox.outbox_flows.MAX_FLOWS",
    "batch": "interval.outbox.flows.MAX_BATCH_RECORDS",
    "early": "interval.early_deliveries.MAX_DELIVERIES",
    "run": "interval.commits.result_runs.MIN_RUN",
    "outbox_rows": "interval.commits.base_parts.MAX_OUTBOX_ROWS",
    "arrivals": "admission.MAX_WAITING_PER_SENDER",
}
"""The worker's bounds that have no setting, and the constants that hold them."""


@contextmanager
def _bounded(bounds: Mapping[str, int]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in bounds.items():
            stack.enter_context(patch(f"millwheel.worker.{_BOUNDS[name]}", value))
        yield


@contextmanager
def _paged(sizes: Mapping[str, int]) -> Iterator[None]:
    """Pages of growing states have the sizes that ``sizes`` gives, and are deleted a few at a time."""
    with ExitStack() as stack:
        for name, size in sizes.items():
            stack.enter_context(patch(f"millwheel.sdk.growing.tree.{name}", size))
        if sizes:
            stack.enter_context(patch("millwheel.worker.interval.cache.pages.MAX_COLLECTED_PAGES", 2))
        yield


@contextmanager
def _settling(seconds_after: float) -> Iterator[None]:
    """Owners drop what they have of ended senders after this time; 0: after the usual time."""
    if not seconds_after:
        yield
        return
    with patch("millwheel.worker.process.notices.SETTLED_AFTER_SECONDS", seconds_after):
        yield


async def _at_once(call: Callable[[], Any]) -> Any:
    """Replaces a thread, because the simulation has no threads."""
    return call()


def _daemon(role: Role) -> Main:
    async def main(world: World, process: Process) -> None:
        address = f"{process.name}:1"
        settings = _settings(world, process)
        server = SimulatedServer(world.network, process, address)
        coordinator = client_of(world.coordinator)
        backends = Backends(world.store.open(), coordinator, AsyncExitStack())
        ensure: Callable[[], Any] = lambda: ensure_cluster_settings(coordinator, settings.cluster)  # noqa: E731
        shards = await retried("settling the shards", ensure)
        daemon = Daemon(settings, address, 0, cast("Any", server), backends, CollectorRegistry(), shards)
        stop = world.stops[process.name] = asyncio.Event()
        async with role.open(daemon):
            server.start()
            await stop.wait()
            world.history.note("is asked to stop")
        server.stop()
        world.kill(process.name)

    return main


def _settings(world: World, process: Process) -> Settings:
    balance = MasterSection(
        lease_seconds=3.0,
        intervals_per_computation=world.plan.intervals,
        balance=world.plan.balanced > 0,
        imbalance=0.05,
        split_busy=0.1,
        cool_down_seconds=1.0,
    )
    return Settings(
        cluster=ClusterSection(authority_shards=2),
        master=balance,
        worker=WorkerSection(
            id=process.name, lease_seconds=4.0, drain_seconds=2.0, packages=world.directory, slow_hook_seconds=0
        ),
        authority=AuthoritySection(lease_seconds=3.0),
    )
