"""The gRPC channels of all clients and roles, and the retries of their calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, TypeVar

import grpc

from millwheel.model.backoff import Backoff
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import ENVIRONMENT, TOKEN_ENVIRONMENT, process_tls, process_token
from millwheel.rpc.renewed_channel import RenewedChannel
from millwheel.rpc.security import client_credentials

__all__ = [
    "CHANNEL_OPTIONS",
    "DEFAULT_DEADLINE_SECONDS",
    "MAX_MESSAGE_BYTES",
    "PASSING",
    "RETRYABLE",
    "open_channel",
    "retrying",
]

MAX_MESSAGE_BYTES: Final = 64 << 20
"""The largest message that either side accepts, in bytes."""

_MAX_METADATA_BYTES: Final = 1 << 20
"""The most metadata that a client accepts with a response, in bytes. A failed call has its error there."""

DEFAULT_DEADLINE_SECONDS: Final = 10.0
"""Seconds that a unary call may take, unless its caller gives another limit."""

RETRYABLE: Final = frozenset({FailureCode.UNAVAILABLE, FailureCode.ABORTED})
"""Failures that a retry may cure. DEADLINE_EXCEEDED is not one of them: the call has used up its caller's time."""

PASSING: Final = RETRYABLE | {FailureCode.DEADLINE_EXCEEDED, FailureCode.CANCELLED}
"""Failures that a retry may cure, for a caller that waits longer than one call's deadline. CANCELLED means here that
the server cancelled the call because it stops."""

CHANNEL_OPTIONS: Final[Sequence[tuple[str, int]]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Failures travel as metadata. By default gRPC would drop a list of about fifty problems.
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # With these limits a restarted master or worker is reached within a second. gRPC's default limit is two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In spite of its name, this is the limit for one attempt to connect. A slow line or a busy machine needs the time.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Channels do not share connections, so each channel has its own flow control.
    ("grpc.use_local_subchannel_pool", 1),
)

Answer = TypeVar("Answer")


def open_channel(address: str) -> grpc.aio.Channel:
    """Return a channel to ``host:port``, with TLS if this process uses TLS. It connects at its first call.

    With TLS, each call begins with the present certificate: a renewal needs no restart.

    RequestError: this process has a token and no TLS. A token never travels without TLS.
    """
    tls, token = process_tls(), process_token()
    if tls is None:
        if token is not None:
            raise RequestError(
                FailureCode.UNAUTHENTICATED,
                f"a token is never sent without TLS, and there is none for {address}",
                f"name the files of TLS by {', '.join(ENVIRONMENT)}, or unset {' and '.join(TOKEN_ENVIRONMENT)}",
                reason="TOKEN_NEEDS_TLS",
            )
        return grpc.aio.insecure_channel(address, options=list(CHANNEL_OPTIONS))

    def connect() -> grpc.aio.Channel:
        return grpc.aio.secure_channel(address, client_credentials(tls, token), options=list(CHANNEL_OPTIONS))

    return RenewedChannel(tls, connect)


async def retrying(
    call: Callable[[], Awaitable[Answer]],
    *,
    patience: float = DEFAULT_DEADLINE_SECONDS,
    backoff: Backoff | None = None,
    passing: Collection[FailureCode] = RETRYABLE,
) -> Answer:
    """Return the answer of ``call``. Retry a ``passing`` RequestError for ``patience`` seconds.

    The last attempt starts when ``patience`` ends, even if the back-off is longer.

    Only for calls that may take effect twice: idempotent calls, and calls with a request id.
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
