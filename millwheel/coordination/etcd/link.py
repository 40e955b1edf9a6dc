"""Calls to etcd: channels, failover between members, authentication, deadlines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

import grpc
from google.protobuf.message import Message

from millwheel.coordination.etcd import failures
from millwheel.coordination.etcd.failures import RetryDecision
from millwheel.coordination.etcd.settings import EtcdSettings
from millwheel.coordination.etcd.v3 import etcd_pb2 as etcd
from millwheel.model.backoff import Backoff

__all__ = [
    "AUTHENTICATE",
    "BACKOFF",
    "CHANNEL_OPTIONS",
    "FIRST_ATTEMPT_SECONDS",
    "NEEDS_LEADER",
    "EtcdConnection",
    "Stream",
]

CHANNEL_OPTIONS: Final[Sequence[tuple[str, int]]] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # etcd refuses pings less than 5 s apart, and pings without calls. A watch counts as a call.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)
# With this, a member without a leader fails calls and watches at once, so that another member is tried.
NEEDS_LEADER: Final = ("hasleader", "true")
BACKOFF: Final = Backoff(0.05, 1.0)
"""Seconds between attempts."""
FIRST_ATTEMPT_SECONDS: Final = 1.0
"""Seconds that a member has to answer the first attempt. Then the next member is tried."""
AUTHENTICATE: Final = "/etcdserverpb.Auth/Authenticate"

Answer = TypeVar("Answer", bound=Message)
Stream = grpc.aio.StreamStreamCall[Any, Any]


class _Endpoint:
    """The channel of one member."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        options = list(CHANNEL_OPTIONS)
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options=options)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options=options)

    async def connected(self, patience: float) -> bool:
        """Return whether the channel connects within ``patience`` seconds.

        gRPC would queue a call on an unconnected channel, and might send it later than the caller expects.
        """
        try:
            async with asyncio.timeout(patience):
                state = self.channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY:
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        return False
                    await self.channel.wait_for_state_change(state)
                    state = self.channel.get_state(try_to_connect=True)
                return True
        except TimeoutError:
            return False


class EtcdConnection:
    """The connection to an etcd cluster. It uses one member for as long as that member answers."""

    def __init__(self, settings: EtcdSettings) -> None:
        """Connects at the first call. ValueError if a TLS file cannot be read."""
        self.settings = settings
        self.credentials = settings.credentials()
        self._order = random.sample(settings.endpoints, len(settings.endpoints))
        self._endpoints: dict[str, _Endpoint] = {}
        # "": request a token before the next call. None: etcd has no authentication, so no token is sent until etcd
        # complains about a missing user.
        self._token: str | None = ""
        self._authenticating = asyncio.Lock()
        self._closing = asyncio.Event()

    def members(self) -> list[str]:
        """Return the members' addresses, the one in use first."""
        return list(self._order)

    def is_closed(self) -> bool:
        """Return whether :meth:`close` was called."""
        return self._closing.is_set()

    async def pause(self, seconds: float) -> None:
        """Sleep; return early if the connection is closed."""
        await self.unless_closed(asyncio.sleep(seconds))

    async def unless_closed(self, work: Any) -> Any:
        """Return the result of ``work``. If the connection closes first, cancel ``work`` and return None."""
        task, end = asyncio.ensure_future(work), asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() and not self.is_closed() else None
        finally:
            end.cancel()
            if not task.done():
                task.cancel()
            await asyncio.gather(task, end, return_exceptions=True)

    async def close(self) -> None:
        """End all calls and streams, and close the channels."""
        self._closing.set()
        endpoints, self._endpoints = list(self._endpoints.values()), {}
        for endpoint in endpoints:
            await endpoint.channel.close(None)

    # Calls.

    async def call(self, method: str, request: Message, answer: type[Answer], *, repeatable: bool) -> Answer:
        """Return the answer to one call.

        A call that failed without effect is made again at the next member. A call that may have taken effect is made
        again only if it is ``repeatable``.

        Raises:
            CoordinatorError: or a subclass, as the contract defines them.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.timeout
        why, attempts = "no connection", 0
        while not self.is_closed():
            left = end - loop.time()
            if left <= 0:
                raise failures.unavailable(self.settings, why)
            endpoint = self._current()
            # A member without a leader, or one that hangs, may delay a call until its deadline. So attempts start short
            # and grow, for calls that need more time. A call that must not be repeated gets all of the time at once.
            share = min(left, FIRST_ATTEMPT_SECONDS * 2 ** (attempts // 2)) if repeatable else left
            attempts += 1
            try:
                if not await endpoint.connected(min(left, FIRST_ATTEMPT_SECONDS)):
                    verdict, why = RetryDecision.AGAIN, await self._why_not(endpoint)
                else:
                    return await self._call_once(endpoint, method, request, answer, share)
            except grpc.aio.AioRpcError as error:
                why = f"{endpoint.address}: {error.details() or error.code().name}"
                verdict = self.judge(error.code(), error.details() or "")
                if verdict is RetryDecision.FINAL:
                    raise failures.refusal(self.settings, error.details() or error.code().name) from error
            if verdict is not RetryDecision.TOKEN:
                self.failed(endpoint.address)
            if verdict is RetryDecision.AWAY and not repeatable:
                raise failures.unavailable(self.settings, f"{why}; what was asked may or may not have been done")
            delay = BACKOFF.delay(attempts, random.random())
            await self.pause(min(delay, max(0.0, end - loop.time())))
        raise failures.closed()

    async def open(self, method: str, request: type[Message], answer: type[Message]) -> tuple[Stream, str]:
        """Open a stream at the current member. Return the stream and the member's address.

        AioRpcError or CoordinatorError if that fails. The caller reports a stream that fails later by :meth:`failed`.
        """
        endpoint = self._current()
        if not await endpoint.connected(FIRST_ATTEMPT_SECONDS / 2):
            # Switch first: if the caller times out while the reason is read, its next attempt uses another member.
            self.failed(endpoint.address)
            raise failures.unavailable(self.settings, await self._why_not(endpoint))
        stream = cast("Any", endpoint.channel.stream_stream(method, request.SerializeToString, answer.FromString))
        metadata = await self._metadata(endpoint, self.settings.timeout)
        return stream(metadata=metadata), endpoint.address

    async def exchange(self, stream: Stream, request: Message | None = None) -> Any:
        """Send ``request`` on a stream, if given, and return the next answer.

        None or EOF if the stream has ended or the connection is closed. AioRpcError if the stream failed.
        """
        if request is not None:
            # A stream that has ended accepts no message. The read below returns the reason.
            with suppress(asyncio.InvalidStateError):
                await self.unless_closed(stream.write(request))
        return await self.unless_closed(stream.read())

    def failed(self, address: str) -> None:
        """Switch to the next member, because the one at ``address`` failed."""
        if self._order[0] == address:
            self._order = [*self._order[1:], address]

    def judge(self, code: grpc.StatusCode, details: str) -> RetryDecision:
        """Decide what to do after a failure. An expired token is deleted."""
        verdict = failures.judge(self.settings, code, details)
        if verdict is RetryDecision.TOKEN:
            self._token = ""
        return verdict

    # Helpers.

    def _current(self) -> _Endpoint:
        if self.is_closed():
            raise failures.closed()
        address = self._order[0]
        if address not in self._endpoints:
            self._endpoints[address] = _Endpoint(address, self.credentials)
        return self._endpoints[address]

    async def _call_once(
        self, endpoint: _Endpoint, method: str, request: Message, answer: type[Answer], patience: float
    ) -> Answer:
        call = endpoint.channel.unary_unary(method, type(request).SerializeToString, answer.FromString)
        metadata = await self._metadata(endpoint, patience)
        try:
            return await call(request, timeout=patience, metadata=metadata)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            # Closing a channel cancels its calls. That is not a cancellation of this task.
            task = asyncio.current_task()
            if self.is_closed() and task is not None and not task.cancelling():
                raise failures.closed() from None
            raise

    async def _metadata(self, endpoint: _Endpoint, patience: float) -> Any:
        if not self.settings.username:
            return (NEEDS_LEADER,)
        async with self._authenticating:
            if self._token == "":
                self._token = await self._authenticate(endpoint, patience)
        return (NEEDS_LEADER,) if self._token is None else (NEEDS_LEADER, ("token", self._token))

    async def _authenticate(self, endpoint: _Endpoint, patience: float) -> str | None:
        request = etcd.AuthenticateRequest(name=self.settings.username, password=self.settings.password)
        call = endpoint.channel.unary_unary(
            AUTHENTICATE, etcd.AuthenticateRequest.SerializeToString, etcd.AuthenticateResponse.FromString
        )
        try:
            answer: etcd.AuthenticateResponse = await call(request, timeout=patience, metadata=(NEEDS_LEADER,))
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" in (error.details() or ""):
                return None
            raise
        return answer.token

    async def _why_not(self, endpoint: _Endpoint) -> str:
        """Return why there is no connection. gRPC gives the reason only as the failure of a call."""
        call = endpoint.channel.unary_unary(
            "/etcdserverpb.Maintenance/Status", etcd.StatusRequest.SerializeToString, etcd.StatusResponse.FromString
        )
        try:
            await call(etcd.StatusRequest(), timeout=FIRST_ATTEMPT_SECONDS)
        except grpc.aio.AioRpcError as error:
            return f"{endpoint.address}: {error.details() or error.code().name}"
        except asyncio.CancelledError:
            if not self.is_closed():
                raise
        return f"{endpoint.address}: no connection"
