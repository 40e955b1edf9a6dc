"""Calls to whichever member of etcd answers: channels, failover, authentication, deadlines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

import grpc
from google.protobuf.message import Message

from millwheel.coordination.etcd import failures
from millwheel.coordination.etcd.failures import Verdict
from millwheel.coordination.etcd.settings import EtcdSettings
from millwheel.coordination.etcd.v3 import etcd_pb2 as etcd

__all__ = ["FIRST_ATTEMPT", "Backoff", "Link", "Stream"]

_OPTIONS: Final[Sequence[tuple[str, int]]] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # etcd takes no pings closer than 5 s, and none without calls. A watch is always one.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)
# A member that has no leader says so, instead of letting callers and watches wait: another may have one.
_NEEDS_LEADER: Final = ("hasleader", "true")
FIRST_ATTEMPT: Final = 1.0
"""Seconds that a member has to answer in, at first; then another is asked."""
_AUTHENTICATE: Final = "/etcdserverpb.Auth/Authenticate"

Answer = TypeVar("Answer", bound=Message)
Stream = grpc.aio.StreamStreamCall[Any, Any]


class Backoff:
    """Pauses between attempts: doubling, up to a second, with jitter, so that clients do not come back all at once."""

    def __init__(self) -> None:
        self._failures = 0

    def succeeded(self) -> None:
        """The next pause is a short one again."""
        self._failures = 0

    def pause(self) -> float:
        """Seconds to wait now."""
        self._failures += 1
        return float(min(1.0, 0.025 * 2.0 ** min(self._failures, 10)) * random.uniform(0.5, 1.0))


class _Endpoint:
    """One member's channel."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        options = list(_OPTIONS)
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options=options)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options=options)

    async def connected(self, patience: float) -> bool:
        """Whether there is a connection, by ``patience`` seconds from now at the latest. A call made without
        one may be sent later than is thought."""
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


class Link:
    """The members of one etcd, of which one is spoken to: for as long as it answers, the same."""

    def __init__(self, settings: EtcdSettings) -> None:
        """Nothing is connected before the first call. ValueError if a TLS file cannot be read."""
        self.settings = settings
        self._credentials = settings.credentials()
        self._order = random.sample(settings.endpoints, len(settings.endpoints))
        self._endpoints: dict[str, _Endpoint] = {}
        # "": to be asked for; None: etcd wants none, and takes none, as long as it does not ask who one is.
        self._token: str | None = ""
        self._authenticating = asyncio.Lock()
        self._closing = asyncio.Event()

    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closing.is_set()

    async def pause(self, seconds: float) -> None:
        """Sleep, unless the link is closed meanwhile."""
        await self.unless_closed(asyncio.sleep(seconds))

    async def unless_closed(self, work: Any) -> Any:
        """The result of ``work``; None, with ``work`` cancelled, once the link is closed."""
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
        """End all calls and streams."""
        self._closing.set()
        endpoints, self._endpoints = list(self._endpoints.values()), {}
        for endpoint in endpoints:
            await endpoint.channel.close(None)

    # Calls.

    async def call(self, method: str, request: Message, answer: type[Answer], *, repeatable: bool) -> Answer:
        """The answer to one call. Made again elsewhere if it failed without effect; if nobody knows whether
        it had one, only if ``repeatable``. CoordinatorError and what derives from it, in the contract's meaning."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.timeout
        backoff, why, attempts = Backoff(), "no connection", 0
        while not self.is_closed():
            left = end - loop.time()
            if left <= 0:
                raise failures.unavailable(self.settings, why)
            endpoint = self._current()
            # A member that has lost its leader may let a call wait for as long as it lasts, as one that hangs does:
            # attempts begin short, and grow for those that take their time. What may not be repeated has one chance.
            share = min(left, FIRST_ATTEMPT * 2 ** (attempts // 2)) if repeatable else left
            attempts += 1
            try:
                if not await endpoint.connected(min(left, FIRST_ATTEMPT)):
                    verdict, why = Verdict.AGAIN, await self._why_not(endpoint)
                else:
                    return await self._call_once(endpoint, method, request, answer, share)
            except grpc.aio.AioRpcError as error:
                why = f"{endpoint.address}: {error.details() or error.code().name}"
                verdict = self.judge(error.code(), error.details() or "")
                if verdict is Verdict.FINAL:
                    raise failures.refusal(self.settings, error.details() or error.code().name) from error
            if verdict is not Verdict.TOKEN:
                self.failed(endpoint.address)
            if verdict is Verdict.AWAY and not repeatable:
                raise failures.unavailable(self.settings, f"{why}; what was asked may or may not have been done")
            await self.pause(min(backoff.pause(), max(0.0, end - loop.time())))
        raise failures.closed()

    async def open(self, method: str, request: type[Message], answer: type[Message]) -> tuple[Stream, str]:
        """A stream of requests and answers at the member now spoken to, and that member's address.

        AioRpcError or CoordinatorError if there is none. Its user tells of a stream that fails by ``failed``.
        """
        endpoint = self._current()
        if not await endpoint.connected(FIRST_ATTEMPT / 2):
            # Before it is asked why: a caller with little time goes on at the next member.
            self.failed(endpoint.address)
            raise failures.unavailable(self.settings, await self._why_not(endpoint))
        stream = cast("Any", endpoint.channel.stream_stream(method, request.SerializeToString, answer.FromString))
        metadata = await self._metadata(endpoint, self.settings.timeout)
        return stream(metadata=metadata), endpoint.address

    async def exchange(self, stream: Stream, request: Message | None = None) -> Any:
        """The next answer on a stream, after sending ``request``; None or EOF if it has ended, or the
        link is closed. AioRpcError if it failed."""
        if request is not None:
            # A stream that is over already takes nothing; why it is over is what reading tells.
            with suppress(asyncio.InvalidStateError):
                await self.unless_closed(stream.write(request))
        return await self.unless_closed(stream.read())

    def failed(self, address: str) -> None:
        """This member failed: speak to the next one."""
        if self._order[0] == address:
            self._order = [*self._order[1:], address]

    def judge(self, code: grpc.StatusCode, details: str) -> Verdict:
        """What a failure calls for; a token that is not good any more is forgotten."""
        verdict = failures.judge(code, details)
        if verdict is Verdict.FINAL and "user name is empty" in details and self.settings.username:
            verdict = Verdict.TOKEN
        if verdict is Verdict.TOKEN:
            self._token = ""
        return verdict

    # Within.

    def _current(self) -> _Endpoint:
        if self.is_closed():
            raise failures.closed()
        address = self._order[0]
        if address not in self._endpoints:
            self._endpoints[address] = _Endpoint(address, self._credentials)
        return self._endpoints[address]

    async def _call_once(
        self, endpoint: _Endpoint, method: str, request: Message, answer: type[Answer], patience: float
    ) -> Answer:
        call = endpoint.channel.unary_unary(method, type(request).SerializeToString, answer.FromString)
        metadata = await self._metadata(endpoint, patience)
        try:
            return await call(request, timeout=patience, metadata=metadata)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            # A channel that is closed under a call cancels it; its caller was not.
            task = asyncio.current_task()
            if self.is_closed() and task is not None and not task.cancelling():
                raise failures.closed() from None
            raise

    async def _metadata(self, endpoint: _Endpoint, patience: float) -> Any:
        if not self.settings.username:
            return (_NEEDS_LEADER,)
        async with self._authenticating:
            if self._token == "":
                self._token = await self._authenticate(endpoint, patience)
        return (_NEEDS_LEADER,) if self._token is None else (_NEEDS_LEADER, ("token", self._token))

    async def _authenticate(self, endpoint: _Endpoint, patience: float) -> str | None:
        request = etcd.AuthenticateRequest(name=self.settings.username, password=self.settings.password)
        call = endpoint.channel.unary_unary(
            _AUTHENTICATE, etcd.AuthenticateRequest.SerializeToString, etcd.AuthenticateResponse.FromString
        )
        try:
            answer: etcd.AuthenticateResponse = await call(request, timeout=patience, metadata=(_NEEDS_LEADER,))
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" in (error.details() or ""):
                return None
            raise
        return answer.token

    async def _why_not(self, endpoint: _Endpoint) -> str:
        """Why there is no connection: the channel tells only those who call."""
        call = endpoint.channel.unary_unary(
            "/etcdserverpb.Maintenance/Status", etcd.StatusRequest.SerializeToString, etcd.StatusResponse.FromString
        )
        try:
            await call(etcd.StatusRequest(), timeout=FIRST_ATTEMPT)
        except grpc.aio.AioRpcError as error:
            return f"{endpoint.address}: {error.details() or error.code().name}"
        except asyncio.CancelledError:
            if not self.is_closed():
                raise
        return f"{endpoint.address}: no connection"
