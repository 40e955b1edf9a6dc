"""What every daemon has around its role: a server, health and metrics, store and coordinator, and an orderly end.

From its first moment the server answers: NOT_SERVING, and to other calls what it waits for. Once store and coordinator
are there and the role has begun, it serves. Told to stop, it says NOT_SERVING, lets the role end while it still
answers, and closes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Final, cast

import grpc
from grpc_health.v1._async import HealthServicer
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from millwheel.cli.backends import Backends, OpenBackends, open_backends
from millwheel.cli.daemons.pieces import cancel, ensure_cluster_settings, patiently, serve_metrics, settle_memory
from millwheel.cli.daemons.places import advertised, place_of, tls_of
from millwheel.cli.logs import fields
from millwheel.config import Configuration, Settings
from millwheel.config.addresses import is_loopback
from millwheel.rpc.gate import Gate
from millwheel.rpc.identity import use_tls
from millwheel.rpc.server import add_health, bind, create_server, set_health

__all__ = ["Daemon", "Role", "run_daemon", "stop_on_signals"]

log = logging.getLogger("millwheel")

_LAST_CALLS: Final = 0.5
"""Seconds that calls have to end in, after the role has."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """What a role is given. ``address`` is how others reach it; ``index`` counts the daemon's processes."""

    settings: Settings
    address: str
    index: int
    server: grpc.aio.Server
    backends: Backends
    registry: CollectorRegistry
    shards: int
    """Of the authority."""


@dataclass(frozen=True, slots=True)
class Role:
    """A role as a daemon runs it. ``open`` adds the services; inside its context they serve, and leaving it is the end.

    ``grace``: how many seconds the end may take.
    """

    name: str
    services: Sequence[str]
    open: Callable[[Daemon], AbstractAsyncContextManager[None]]
    grace: Callable[[Settings], float]


async def run_daemon(
    role: Role,
    configuration: Configuration,
    stop: asyncio.Event,
    index: int = 0,
    open_with: OpenBackends = open_backends,
) -> None:
    """Run process ``index`` of a daemon until ``stop``. RequestError: it cannot listen where it is told to."""
    settings = configuration.settings
    tls = tls_of(settings)
    use_tls(tls)
    place = place_of(role.name, settings, index)
    gate = Gate()
    server = create_server([gate])
    address = advertised(settings, bind(server, place.port, place.host, tls), index)
    with ExitStack() as stack:
        registry = CollectorRegistry()
        serving = _Serving(role.services, gate, await add_health(server, role.services, serving=False), registry)
        page = ""
        if place.metrics_port is not None:
            # Beyond loopback, scraping takes a certificate of the cluster's, too.
            private = is_loopback(place.metrics_host)
            port = serve_metrics(stack, registry, place.metrics_host, place.metrics_port, None if private else tls)
            page = f"{place.metrics_host}:{port}"
        await server.start()
        log.info("listening", extra=fields(address=address, metrics=page))

        async def live() -> None:
            async with await open_with(configuration, serving.waits_for) as backends:
                late = cast("grpc.aio.Server", _LateServer(server))
                serving.waits_for("it is starting")
                coordinator, section = backends.coordinator, settings.cluster
                shards = await patiently("settling the shards", lambda: ensure_cluster_settings(coordinator, section))
                daemon = Daemon(settings, address, index, late, backends, registry, shards)
                async with role.open(daemon):
                    settle_memory()
                    await serving.set(True)
                    log.info("ready", extra=fields(address=address, metrics=page))
                    await stop.wait()
                    log.info("stopping")
                    await serving.set(False)

        try:
            await _until_stopped(live(), stop, serving, role.grace(settings))
        finally:
            await server.stop(_LAST_CALLS)
    log.info("stopped")


async def _until_stopped(live: Coroutine[Any, Any, None], stop: asyncio.Event, serving: _Serving, grace: float) -> None:
    """Let a role live until it is told to stop; then it has ``grace`` seconds to end, or none if it never began."""
    life = asyncio.create_task(live)
    waiting = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({life, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not life.done() and serving.began:
            await asyncio.wait({life}, timeout=grace)
        if life.done():
            life.result()
        elif serving.began:
            log.error("the end takes more than %g s: it is cut short", grace)
    finally:
        await cancel(life)
        waiting.cancel()


class _LateServer:
    """A server that runs, as those see it who add services to it.

    It finds methods by their generic handlers; what the generated code registers besides, a running one only warns of.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, *_: object) -> None:
        """Nothing: see the class."""


class _Serving:
    """Says to whoever asks whether the role serves."""

    def __init__(
        self, services: Sequence[str], gate: Gate, health: HealthServicer, registry: CollectorRegistry
    ) -> None:
        self.began = False
        self._services = services
        self._gate = gate
        self._health = health
        ProcessCollector(registry=registry)
        self._ready = Gauge("millwheel_ready", "Whether the daemon serves its role: 1 or 0", registry=registry)
        tasks = Gauge("millwheel_tasks", "asyncio tasks that have not ended", registry=registry)
        loop = asyncio.get_running_loop()
        tasks.set_function(lambda: len(asyncio.all_tasks(loop)))

    def waits_for(self, what: str) -> None:
        """Why it does not serve yet."""
        self._gate.waits_for = what

    async def set(self, serving: bool) -> None:
        """Serve, or say that it will serve no more: what is asked until the end is still answered."""
        self.began = True
        self._gate.is_open = True
        self._ready.set(serving)
        await set_health(self._health, self._services, serving)


def stop_on_signals(stop: asyncio.Event) -> None:
    """SIGTERM and SIGINT set ``stop``; the second of them ends the process at once, with 128 + its number."""
    loop = asyncio.get_running_loop()

    def heard(number: int) -> None:
        if stop.is_set():
            log.warning("told to stop a second time: ending at once")
            logging.shutdown()
            os._exit(128 + number)
        log.info("told to stop by %s", signal.Signals(number).name)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, heard, int(number))
