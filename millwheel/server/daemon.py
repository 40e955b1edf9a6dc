"""The part that all daemons share: a server, health, metrics, store, coordinator, and an orderly shutdown.

The server answers from the start. Before the role runs, health checks return NOT_SERVING, and other calls return an
error that says what the daemon waits for. The daemon serves when store and coordinator are open and the role has
started. On a stop request, health checks return NOT_SERVING again. The role ends while the server still answers other
calls. Then the server closes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import grpc
from grpc_health.v1._async import HealthServicer
from prometheus_client import CollectorRegistry

from millwheel.config import Configuration, Settings
from millwheel.config.addresses import is_loopback
from millwheel.model.stalls import ProcessConditions
from millwheel.model.traces import SpanSource
from millwheel.rpc.gate import Gate
from millwheel.rpc.identity import use_tls, use_token
from millwheel.rpc.measuring import Measuring
from millwheel.rpc.server import add_health, bind, create_server, set_health
from millwheel.server.access import authorization_of, topology_lookup
from millwheel.server.backends import Backends, OpenBackends, open_backends
from millwheel.server.certificate_end import register_certificate, warn_of_end
from millwheel.server.cluster_settings import ensure_cluster_settings, until_unknown_format
from millwheel.server.listen_address import advertised, listen_address_of, tls_of
from millwheel.server.logs import fields
from millwheel.server.measured_backends import measured_backends
from millwheel.server.stall_watch import watch_stalls
from millwheel.server.startup import cancel, retried, settle_memory
from millwheel.server.status_page import ProcessHealth, register_name, register_process, serve_status
from millwheel.server.telemetry import open_telemetry

if TYPE_CHECKING:
    from millwheel.rpc.access.authorization import Authorization

__all__ = ["Daemon", "Role", "run_daemon", "stop_on_signals"]

log = logging.getLogger("millwheel")

_LAST_CALLS_SECONDS: Final = 0.5
"""Seconds that calls in progress have to finish after the role has ended."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """The input of a role.

    ``address`` is the address that other processes use. ``index`` is the number of this process within the daemon.
    """

    settings: Settings
    address: str
    index: int
    server: grpc.aio.Server
    backends: Backends
    registry: CollectorRegistry
    shards: int
    """The authority's number of shards."""
    spans: SpanSource | None = None
    """Starts spans of sampled records. None: there are none."""
    access: Authorization | None = None
    """Admits the calls of the server. None without TLS."""
    conditions: ProcessConditions = field(default_factory=ProcessConditions)
    """What the process observes of its machine and of the store."""


@dataclass(frozen=True, slots=True)
class Role:
    """A role that a daemon runs.

    ``open`` returns a context manager. Entering it adds the services, which serve until it exits. ``grace`` returns the
    maximum seconds for the exit.
    """

    name: str
    services: Sequence[str]
    open: Callable[[Daemon], AbstractAsyncContextManager[None]]
    grace: Callable[[Settings], float]
    who: Callable[[Settings, str], str] | None = None
    """Returns the name of a daemon with these settings at this address. None: its address alone is its name."""

    def shown(self, settings: Settings, address: str, index: int) -> str:
        """Return the name of process ``index`` of a daemon, as operators see it."""
        return self.name if self.who is None else f"{self.name} {self.who(settings, address)}.{index}"


async def run_daemon(
    role: Role,
    configuration: Configuration,
    stop: asyncio.Event,
    index: int = 0,
    open_with: OpenBackends = open_backends,
) -> None:
    """Run process ``index`` of a daemon until ``stop``. RequestError: it cannot listen on the configured address."""
    settings = configuration.settings
    tls = tls_of(settings)
    use_tls(tls)
    use_token(None)
    place = listen_address_of(role.name, settings, index)
    gate = Gate()
    registry, health = CollectorRegistry(), ProcessHealth()
    access = authorization_of(tls, settings.security.policy)
    server = create_server([gate, Measuring(registry), *([] if access is None else [access])])
    address = advertised(settings, bind(server, place.port, place.host, tls), index)
    async with AsyncExitStack() as stack:
        register_process(registry, health)
        register_name(registry, f"{role.shown(settings, address, index)} at {address}")
        stalls = watch_stalls(stack.enter_context(ExitStack()), registry)
        serving = _Serving(role.services, gate, await add_health(server, role.services, serving=False), health)
        page = ""
        if place.metrics_port is not None:
            # On an address other than loopback, a scraper needs a certificate of the cluster.
            shown = None if is_loopback(place.metrics_host) else tls
            page_stack = stack.enter_context(ExitStack())
            port = serve_status(page_stack, registry, health, place.metrics_host, place.metrics_port, shown)
            page = f"{place.metrics_host}:{port}"
        spans = await open_telemetry(stack, settings.otlp, role.name, address, registry, for_hooks=True)
        beating = asyncio.create_task(health.beat_for_ever())
        stack.callback(beating.cancel)
        if access is not None:
            stack.callback(asyncio.create_task(access.watch()).cancel)
        if tls is not None:
            register_certificate(registry, tls)
            stack.callback(asyncio.create_task(warn_of_end(tls)).cancel)
        await server.start()
        log.info("listening", extra=fields(address=address, metrics=page))

        async def live() -> None:
            async with await open_with(configuration, serving.waits_for) as opened:
                backends = measured_backends(opened, registry)
                late = cast("grpc.aio.Server", _LateServer(server))
                serving.waits_for("it is starting")
                coordinator, section = backends.coordinator, settings.cluster
                if access is not None:
                    access.topology_of = topology_lookup(coordinator)
                shards = await retried("settling the shards", lambda: ensure_cluster_settings(coordinator, section))
                conditions = ProcessConditions(stalls.share, stalls.longest, backends.node_outages)
                daemon = Daemon(settings, address, index, late, backends, registry, shards, spans, access, conditions)
                async with role.open(daemon):
                    settle_memory()
                    await serving.set(True)
                    log.info("ready", extra=fields(address=address, metrics=page))
                    try:
                        await _until_stop(stop, until_unknown_format(coordinator))
                    finally:
                        log.info("stopping")
                        await serving.set(False)

        try:
            await _until_stopped(live(), stop, serving, role.grace(settings))
        finally:
            await server.stop(_LAST_CALLS_SECONDS)
    log.info("stopped")


async def _until_stop(stop: asyncio.Event, unfit: Coroutine[Any, Any, None]) -> None:
    """Return at ``stop``. Raise what ``unfit`` raises: the reason why this process can no longer serve."""
    waiting, watching = asyncio.create_task(stop.wait()), asyncio.create_task(unfit)
    try:
        await asyncio.wait({waiting, watching}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
    finally:
        waiting.cancel()
        await cancel(watching)


async def _until_stopped(live: Coroutine[Any, Any, None], stop: asyncio.Event, serving: _Serving, grace: float) -> None:
    """Run a role until ``stop``. Then the role has ``grace`` seconds to end, or none if it never started to serve."""
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
    """Lets generated code add services to a server that is already running.

    A running server finds methods by their generic handlers. The generated code also registers method handlers. A
    running server ignores those with a warning, so this class drops them.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, *_: object) -> None:
        """Do nothing. The class docstring says why."""


class _Serving:
    """Publishes whether the role serves: in health checks and probes, in a metric, and in the errors of early calls."""

    def __init__(self, services: Sequence[str], gate: Gate, servicer: HealthServicer, health: ProcessHealth) -> None:
        self.began = False
        self._services = services
        self._gate = gate
        self._servicer = servicer
        self._health = health

    def waits_for(self, what: str) -> None:
        """Set the reason why the daemon does not serve yet."""
        self._gate.waits_for = self._health.waits_for = what

    async def set(self, serving: bool) -> None:
        """Publish that the role serves, or that it stops. In both cases the server still answers calls."""
        self.began = True
        self._gate.is_open = True
        self._health.waits_for = "" if serving else "it is stopping"
        await set_health(self._servicer, self._services, serving)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Make SIGTERM and SIGINT set ``stop``. A second signal ends the process at once with exit code 128 + number."""
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stop.is_set():
            log.warning("received a second signal: ending at once")
            logging.shutdown()
            os._exit(128 + number)
        log.info("received %s: stopping", signal.Signals(number).name)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, int(number))
