"""How a worker reaches Redis, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from weakref import finalize

from millwheel.connectors.threads import CallThread
from millwheel.connectors.urls import check_url, filled_in, place_in
from millwheel.errors import MillwheelError
from millwheel.sdk.errors import UsageError

__all__ = ["RedisAccess", "RedisConnection", "RedisError", "hint", "library"]

R = TypeVar("R")

_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 20.0
"""How long a call waits for the server. With its one repetition, it ends before the limit of a connector's call."""
_ONE_SLOT: Final = "In a Redis Cluster, all keys of a sink need one hash tag, as in {shop}:totals, and slot= names it"
_HINTS: Final = {
    "wrongtype": "The key has another type: name another one",
    "unknown command": "The connector needs Redis 7.0 or newer, or Valkey",
    "unknown redis command": "The connector needs Redis 7.0 or newer, or Valkey",
    "same slot": _ONE_SLOT,
    "non local key": _ONE_SLOT,
}
"""By a part of what Redis says: what helps."""


class RedisError(MillwheelError):
    """Redis does not do what the topology needs. The text says what, and what helps."""


def library() -> Any:
    """The client library. It is loaded at its first use.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import redis
    except ImportError as error:
        raise UsageError(
            "Redis needs the library redis where the topology runs: install openmillwheel[redis] there"
        ) from error
    return redis


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """What a program says of the server: a URL, or a function that makes the client."""

    server: str | Callable[[], Any]

    def __post_init__(self) -> None:
        if callable(self.server):
            return
        check_url(self.server, "Redis", ("redis", "rediss", "unix"))

    @property
    def name(self) -> str:
        """What errors call the server. It has no password."""
        if callable(self.server):
            return "Redis"
        return f"Redis at {place_in(self.server)}"

    def client(self) -> Any:
        """A client. It connects at its first call.

        Raises:
            UsageError: The library is missing, the worker does not have a variable that the URL names, or the function
                makes no client that can be used.
        """
        redis = library()
        if callable(self.server):
            client = self.server()
            if client.get_encoder().decode_responses:
                raise UsageError("let the function make a client of Redis with decode_responses=False")
            return client
        return redis.Redis.from_url(
            filled_in(self.server),
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=_ANSWER_SECONDS,
            # A server may close connections that nothing used for long. All calls may come twice.
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 1),
        )

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Raise a RedisError for each error of the library, which says what was done."""
        redis = library()
        try:
            yield
        except redis.exceptions.RedisError as error:
            raise RedisError(f"{what}: {self.name}: {error}{_hint_for(redis.exceptions, error)}") from error


class RedisConnection:
    """A client on a thread of its own."""

    def __init__(self, access: RedisAccess) -> None:
        self._access = access
        self._thread = CallThread("millwheel-redis")
        self._client: Any = None

    async def call(self, what: str, function: Callable[[Any], R]) -> R:
        """Let the function use the client. ``what``: what an error says that cannot be done.

        Raises:
            RedisError: Redis does not do it.
        """
        return await self._thread.call(lambda: self._call(what, function))  # type: ignore[no-any-return]

    def _call(self, what: str, function: Callable[[Any], R]) -> R:
        if self._client is None:
            self._client = self._access.client()
            finalize(self, self._client.close)  # one that was never closed, as in a test, leaves no socket behind
        with self._access.errors(what):
            return function(self._client)

    async def close(self) -> None:
        """Disconnect, and end the thread."""
        await self._thread.end(self._disconnect)

    def _disconnect(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close()


def _hint_for(known: Any, error: Exception) -> str:
    """What helps against an error."""
    if isinstance(error, known.AuthenticationError):
        return ". Check user and password: the URL takes them from the environment of the worker, as ${NAME}"
    if isinstance(error, known.NoPermissionError):
        return ". Give the user of the topology this right, by ACL SETUSER"
    return hint(str(error))


def hint(text: str) -> str:
    """What helps against what Redis says."""
    said = text.lower()
    for part, helps in _HINTS.items():
        if part in said:
            return f". {helps}"
    return ""
