"""Calls every method of every service, with odd values in messages and with raw bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from random import Random
from typing import Any, Final

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

import millwheel.rpc.v1
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.v1 import control_pb2
from tests.fuzz.cases import LIMIT, Unclear, run
from tests.fuzz.odd import damaged, odd_message
from tests.fuzz.targets import Target, cluster, dev_server
from tests.patience import patience

_CLEAR: Final = frozenset(
    {
        "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "ABORTED",
        "OUT_OF_RANGE", "UNAVAILABLE", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED",
    }
)  # fmt: skip
_HANGS: Final = patience(5)
"""Seconds after which a call that should have ended counts as hanging."""
_OPEN: Final = 0.02
"""Seconds for which the test reads a stream that may stay open."""

_UNHEARD: Final = "Internal error from Core"
"""The error of gRPC's client if a call was answered while it still sent. The client loses the answer."""

_STAYS: Final = frozenset({"WatchRouting", "WatchWatermarks", "Subscribe", "Watch"})
"""Methods that answer until the caller ends the call."""
_SLOW: Final = frozenset({"MoveInterval", "SplitInterval", "MergeIntervals", "GetClusterHealth", "PrepareRelease"})
"""Methods that call other servers. They are called less often."""
_OWN: Final = frozenset(
    {
        "CancelTopology", "DrainTopology", "PauseTopology", "UpdateTopology", "RemoveGroup", "AcceptSequencer",
        "ExpectInjectors", "Report", "OpenInjector", "RetireInjector", "RetireQuery", "MoveInterval", "SplitInterval",
        "MergeIntervals", "DeleteCursor",
    }
)  # fmt: skip
"""Methods that end or take over what a call names. They get no names that the later cases need."""


class Faults(logging.Handler):
    """A log handler for internal errors of the server, which only its log shows."""

    _SIGNS: Final = ("a fault", "internal error", "never retrieved", "Unexpected exception", "Exception in callback")

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep messages that should never be logged."""
        text = self.format(record)
        if any(sign in text for sign in self._SIGNS) or (record.name.startswith("grpc") and record.exc_info):
            self.found.append(text[-3_000:])


def methods() -> dict[str, MethodDescriptor]:
    """All methods that the protos declare, by path."""
    found = [one.name for one in iter_modules(millwheel.rpc.v1.__path__, "millwheel.rpc.v1.")]
    files = [import_module(module).DESCRIPTOR for module in found if module.endswith("_pb2")]
    services = [service for file in files for service in file.services_by_name.values()]
    return {f"/{service.full_name}/{one.name}": one for service in services for one in service.methods}


def test_the_cases_know_every_method() -> None:
    assert {"/millwheel.v1.DeliveryService/Deliver", "/millwheel.v1.ClusterService/GetClusterHealth"} <= set(methods())


@LIMIT
@pytest.mark.parametrize(("name", "serve", "few"), [("dev-server", dev_server, 700), ("daemons", cluster, 500)])
async def test_every_call_is_answered_clearly_and_does_no_harm(
    name: str, serve: Callable[[Path], AbstractAsyncContextManager[Target]], few: int, tmp_path: Path
) -> None:
    """Each case is one call at one server. At the end the servers must still do their work."""
    faults = Faults()
    async with serve(tmp_path) as target, AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(open_channel(address)) for address in target.addresses]
        calls = _Calls(target, channels, faults)
        await calls.find_servers()
        logging.getLogger().addHandler(faults)
        stack.callback(logging.getLogger().removeHandler, faults)
        stack.push_async_callback(target.still_serves)
        await run(name, calls.case, few=few, percent=28)


class _Calls:
    def __init__(self, target: Target, channels: list[grpc.aio.Channel], faults: Faults) -> None:
        self._target = target
        self._channels = channels
        self._faults = faults
        self._paths = {method: path for path, method in methods().items()}
        self._serving: dict[str, list[grpc.aio.Channel]] = {}
        """The address that serves a method, by the method's path."""

    async def find_servers(self) -> None:
        for method, path in self._paths.items():
            found = [one for one in self._channels if await self._call(one, method, [b"\xff"]) != "UNIMPLEMENTED"]
            self._serving[path] = found or self._channels

    async def case(self, random: Random) -> str:
        """Make one call. Returns its status."""
        method = random.choice(list(self._paths))
        if method.name in _SLOW and random.random() < 0.8:
            method = random.choice(list(self._paths))
        # gRPC itself does not answer a call without its one message until the deadline, so there is no such case.
        many = random.choice((0, 1, 1, 1, 1, 2, 3)) if method.client_streaming else 1
        payloads = [self._payload(random, method) for _ in range(many)]
        path = self._paths[method]
        channel = random.choice(self._serving[path] if random.random() < 0.98 else self._channels)
        try:
            status = await self._call(channel, method, payloads)
            if self._faults.found:
                raise Unclear(f"a fault was logged: {self._faults.found[-1]}")
        except Unclear as error:
            raise Unclear(f"{path} with {[one[:300] for one in payloads]}: {error}") from None
        finally:
            self._faults.found.clear()
        return status

    def _payload(self, random: Random, method: MethodDescriptor) -> bytes:
        how = random.random()
        if how < 0.1:
            return random.randbytes(random.randrange(200))
        words = () if method.name in _OWN else self._target.words
        message: Any = odd_message(random, GetMessageClass(method.input_type)(), words, random.choice((0.3, 0.7, 1.0)))
        with_spec = isinstance(message, control_pb2.SubmitTopologyRequest | control_pb2.ValidateTopologyRequest)
        if with_spec and random.random() < 0.5:  # a spec with few odd values passes more checks
            message.spec.CopyFrom(self._target.spec)
            odd_message(random, message.spec, self._target.words, 0.1)
        whole = message.SerializeToString()
        return damaged(random, whole) if how < 0.3 else whole

    async def _call(self, channel: grpc.aio.Channel, method: MethodDescriptor, payloads: list[bytes]) -> str:
        open_call: Any = channel
        path, streams = self._paths[method], method.client_streaming
        if streams:
            call = open_call.stream_stream(path)(timeout=_HANGS)
        else:
            call = open_call.unary_stream(path)(payloads[0], timeout=_HANGS)
        try:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # an early answer: see _UNHEARD
                for payload in payloads if streams else ():
                    await call.write(payload)
                if streams:
                    await call.done_writing()
            if method.name in _STAYS:
                return await self._listen(call)
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            if streams and error.details() == _UNHEARD:
                return "ENDED MIDWAY"
            return _judged(error)
        return "OK"

    async def _listen(self, call: Any) -> str:
        try:
            async with asyncio.timeout(_OPEN):
                async for _ in call:
                    return "OK"
        except TimeoutError:
            return "OPEN"
        finally:
            call.cancel()
        return "OK"


def _judged(error: grpc.aio.AioRpcError) -> str:
    """The status, if it is clear: its kind says what to do, and it has a reason for programs."""
    status = error.code().name
    shown = from_rpc_error(error)
    if status == "DATA_LOSS":
        raise Unclear(f"nothing is damaged, and yet: {shown}")
    if status == "UNIMPLEMENTED" and "not found" in (error.details() or "").lower():
        return status  # the service of another role: gRPC itself answers
    if status not in _CLEAR or not shown.message or "grpc-status-details-bin" not in (error.trailing_metadata() or {}):
        raise Unclear(f"{status}: {error.details()}")
    return status
