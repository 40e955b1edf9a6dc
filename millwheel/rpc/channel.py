"""gRPC channels as every client and role opens them, and the patience that goes with them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import process_tls
from millwheel.rpc.security import client_credentials
from millwheel.rpc.server import MAX_MESSAGE_BYTES, MAX_METADATA_BYTES

__all__ = ["CHANNEL_OPTIONS", "DEFAULT_DEADLINE", "PASSING", "RETRYABLE", "Backoff", "open_channel", "retrying"]

DEFAULT_DEADLINE: Final = 10.0
"""Seconds that a unary call may take, unless its caller says otherwise."""

RETRYABLE: Final = frozenset({FailureCode.UNAVAILABLE, FailureCode.ABORTED})
"""Failures that may pass by themselves. A DEADLINE_EXCEEDED has used up its caller's patience already."""

PASSING: Final = RETRYABLE | {FailureCode.DEADLINE_EXCEEDED, FailureCode.CANCELLED}
"""The same to those who have more patience than one call's deadline. One that was cancelled from the other side is that
of a server which stops."""

CHANNEL_OPTIONS: Final[Sequence[tuple[str, int]]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Failures travel as metadata; by default a list of some fifty problems would be dropped on its way.
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A master or worker that comes back is found within a second, not after gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In spite of its name: how long one attempt to connect may take, over a slow line or to a busy machine.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Connections are not shared between channels: each has its own flow control.
    ("grpc.use_local_subchannel_pool", 1),
)

Answer = TypeVar("Answer")


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to ``host:port``, with TLS if this process speaks it; it connects at its first call."""
    tls = process_tls()
    if tls is None:
        return grpc.aio.insecure_channel(address, options=list(CHANNEL_OPTIONS))
    return grpc.aio.secure_channel(address, client_credentials(tls), options=list(CHANNEL_OPTIONS))


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt: doubling from ``first`` to ``largest`` seconds, with full jitter."""

    first: float = 0.05
    largest: float = 2.0

    def delay(self, failures: int, chance: float) -> float:
        """Seconds after ``failures`` failed attempts; ``chance`` in [0, 1) spreads those that failed together.

        Never less than half of the step, so that a retry is never a hammer.
        """
        step = min(self.largest, self.first * 2.0 ** min(failures - 1, 30))
        return step * (0.5 + chance / 2)


async def retrying(
    call: Callable[[], Awaitable[Answer]],
    *,
    patience: float = DEFAULT_DEADLINE,
    backoff: Backoff | None = None,
    passing: Collection[FailureCode] = RETRYABLE,
) -> Answer:
    """The answer of ``call``, tried again while it fails with a ``passing`` RequestError and ``patience`` seconds last.

    The last attempt begins when ``patience`` ends, however long the back-off has become.

    Only for calls that may take effect twice: idempotent ones, or ones with a request id.
    """
    backoff = backoff or Backoff()
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    failures = 0
    while True:
        try:
            return await call()
        except RequestError as error:
            remaining = end - loop.time()
            if error.code not in passing or remaining <= 0:
                raise
            failures += 1
        await asyncio.sleep(min(remaining, backoff.delay(failures, random.random())))
