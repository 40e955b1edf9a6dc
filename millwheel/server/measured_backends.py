"""Metrics of the requests to the store and to the coordinator: time and outcome, by operation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar, cast

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millwheel.coordination.contract import (
    Coordinator,
    CoordinatorUnavailableError,
    LeaseExpiredError,
    TransactionTooLargeError,
)
from millwheel.rpc.measuring import REQUEST_BUCKETS
from millwheel.server.backends import Backends
from millwheel.store.contract import (
    JournalExistsError,
    JournalMissingError,
    SequencerRefusedError,
    StateStore,
    StoreUnavailableError,
)

__all__ = ["measured_backends", "measured_coordinator", "measured_store"]

Backend = TypeVar("Backend", StateStore, Coordinator)

_APPEND: Final = "append"
"""Who appends measures it: intervals and the authority have metrics of their own, so each record saves the way here."""

_REFUSED: Final = (
    JournalExistsError,
    JournalMissingError,
    LeaseExpiredError,
    SequencerRefusedError,
    TransactionTooLargeError,
)
"""Answers of a service that works."""


def measured_backends(backends: Backends, registry: CollectorRegistry) -> Backends:
    """The same store and coordinator, whose requests are measured. The store's nodes have a metric, too."""
    registry.register(_StoreNodes(backends))
    return replace(
        backends,
        store=measured_store(backends.store, registry),
        coordinator=measured_coordinator(backends.coordinator, registry),
    )


class _StoreNodes(Collector):
    """Reads the state of the store's nodes at each scrape."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends

    def collect(self) -> Iterator[Metric]:
        """See :class:`prometheus_client.registry.Collector`."""
        family = GaugeMetricFamily(
            "millwheel_store_node_down_seconds",
            "For how long this process has not reached a node of the store; 0: it does",
            labels=["node"],
        )
        for node, seconds in sorted(self._backends.node_outages().items()):
            family.add_metric([node], seconds)
        yield family


def measured_store(store: StateStore, registry: CollectorRegistry) -> StateStore:
    """The same store, whose requests are measured."""
    return cast(StateStore, _Measured(store, _seconds("store", registry)))


def measured_coordinator(coordinator: Coordinator, registry: CollectorRegistry) -> Coordinator:
    """The same coordinator, whose requests are measured, except watches."""
    return cast(Coordinator, _Measured(coordinator, _seconds("coordinator", registry)))


def _seconds(what: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(
        f"millwheel_{what}_request_seconds",
        f"Time of requests to the {what}, by operation and outcome: ok, refused, unavailable, cancelled or error",
        ["operation", "outcome"],
        buckets=REQUEST_BUCKETS,
        registry=registry,
    )


class _Measured:
    """Has all members of a store or a coordinator. Each coroutine function among them is measured, but ``append``."""

    def __init__(self, backend: Any, seconds: Histogram) -> None:
        self._backend = backend
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._backend, name)
        if iscoroutinefunction(member) and name != _APPEND:
            member = self._measured(name, member)
        setattr(self, name, member)  # from now on it is found at once
        return member

    def _measured(self, operation: str, member: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        seconds = self._seconds
        succeeded = seconds.labels(operation, "ok")

        async def call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                result = await member(*arguments, **named)
            except BaseException as error:
                seconds.labels(operation, _outcome(error)).observe(time.perf_counter() - began)
                raise
            succeeded.observe(time.perf_counter() - began)
            return result

        return call


def _outcome(error: BaseException) -> str:
    match error:
        case StoreUnavailableError() | CoordinatorUnavailableError():
            return "unavailable"
        case asyncio.CancelledError():
            return "cancelled"
        case _:
            return "refused" if isinstance(error, _REFUSED) else "error"
