"""A channel whose calls begin with the present TLS files of this process.

gRPC reads a client's certificate once for each channel, and keeps it when it connects again. So a process would have to
restart before its certificate ends.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc

from millwheel.rpc.failures import RequestError
from millwheel.rpc.identity import TlsFiles

__all__ = ["LOOK_SECONDS", "RenewedChannel"]

LOOK_SECONDS: Final = 1.0
"""The least seconds between two looks at the files. A look is made at a call."""


@dataclass(eq=False, slots=True)
class _Opened:
    """A channel of gRPC, and how many of its calls have not ended."""

    channel: Any
    calls: int = 0


class RenewedChannel(grpc.aio.Channel):
    """Opens another channel when the files have changed. The next calls use it, and earlier calls go on.

    Invariant: a call begins only on a channel whose certificate and key fit together. Who could break it: files that
    are being copied. Until they fit, calls use the channel of before.
    """

    def __init__(self, files: TlsFiles, connect: Callable[[], grpc.aio.Channel]) -> None:
        """``connect`` opens a channel with the files as they are. RequestError: they cannot be read."""
        self._files = files
        self._connect = connect
        self._stamp: tuple[int, ...] = ()
        with suppress(OSError):  # connect() says which file is missing
            self._stamp = files.stamp()
        self._present = _Opened(connect())
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._retired: set[_Opened] = set()
        """Earlier channels with calls in progress."""
        self._closing: set[asyncio.Task[None]] = set()

    def present(self) -> _Opened:
        """Return the channel for a call that begins now."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._renew()
        return self._present

    def _renew(self) -> None:
        try:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return
            # The stamp is older than what is read. If the files change meanwhile, the next look renews again.
            self._files.require_fitting()
            renewed = _Opened(self._connect())
        except (OSError, RequestError):
            return
        before, self._present, self._stamp = self._present, renewed, stamp
        self._retired.add(before)
        self._close_idle(before)

    def ended(self, opened: _Opened) -> None:
        """A call on a channel has ended."""
        opened.calls -= 1
        self._close_idle(opened)

    def _close_idle(self, opened: _Opened) -> None:
        if opened in self._retired and not opened.calls:
            self._retired.discard(opened)
            task = asyncio.get_running_loop().create_task(opened.channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    # The interface of a channel.

    async def __aenter__(self) -> RenewedChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Close all connections, and cancel all calls."""
        opened, self._retired = [self._present, *self._retired], set()
        self._look_at = math.inf  # a call after this must fail, and open no other channel
        await asyncio.gather(*(one.channel.close(grace) for one in opened), *self._closing)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the present connection."""
        state: grpc.ChannelConnectivity = self.present().channel.get_state(try_to_connect)
        return state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the present connection has another state."""
        await self._present.channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until the present connection is ready."""
        await self.present().channel.channel_ready()

    def unary_unary(self, *arguments: Any, **more: Any) -> Any:
        """Return a function that calls a method with one request and one response."""
        return _Method(self, lambda channel: channel.unary_unary(*arguments, **more))

    def unary_stream(self, *arguments: Any, **more: Any) -> Any:
        """Return a function that calls a method with one request and many responses."""
        return _Method(self, lambda channel: channel.unary_stream(*arguments, **more))

    def stream_unary(self, *arguments: Any, **more: Any) -> Any:
        """Return a function that calls a method with many requests and one response."""
        return _Method(self, lambda channel: channel.stream_unary(*arguments, **more))

    def stream_stream(self, *arguments: Any, **more: Any) -> Any:
        """Return a function that calls a method with many requests and many responses."""
        return _Method(self, lambda channel: channel.stream_stream(*arguments, **more))


class _Method:
    """One method of a stub: each call is made on the channel that is present then."""

    def __init__(self, owner: RenewedChannel, bind: Callable[[Any], Any]) -> None:
        self._owner = owner
        self._bind = bind
        self._opened: _Opened | None = None
        self._call: Any = None

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        opened = self._owner.present()
        if opened is not self._opened:
            self._opened, self._call = opened, self._bind(opened.channel)
        call = self._call(*arguments, **more)
        opened.calls += 1
        call.add_done_callback(lambda _: self._owner.ended(opened))
        return call
