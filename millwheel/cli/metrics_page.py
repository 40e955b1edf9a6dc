"""The metrics page of a command that runs for long (``--metrics-port``)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

__all__ = ["client_metrics"]

_HOST: Final = "127.0.0.1"


@contextmanager
def client_metrics(port: int | None) -> Iterator[None]:
    """Serve the metrics of this process's injectors and subscriptions, during the block, on the loopback address.

    Args:
        port: The port. None: no page, and no import of what it needs.

    Raises:
        RequestError: The port is not available.
    """
    if port is None:
        yield
        return
    from prometheus_client import CollectorRegistry

    from millwheel.client.metrics import register_metrics
    from millwheel.server.status_page import ProcessHealth, register_process, serve_status

    registry, health = CollectorRegistry(), ProcessHealth()
    register_process(registry, health)
    register_metrics(registry)
    health.waits_for = ""
    with ExitStack() as stack:
        serve_status(stack, registry, health, _HOST, port)
        beating = asyncio.create_task(health.beat_for_ever())
        stack.callback(beating.cancel)
        yield
