"""An injector process's part in the injector's low watermark: announced, confirmed, woken (sections 4.5, 5.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Final, Protocol

from millwheel.client.authorities import RoutedShards
from millwheel.client.control import ControlClient
from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.errors import InjectorError, InjectorSupersededError
from millwheel.client.injector.messages import (
    IdleDeclared,
    IdleEnded,
    InjectorEvent,
    ProcessSuperseded,
    PublicationStarted,
    SessionFailed,
    WatermarkReached,
)
from millwheel.client.injector.routing import StreamRouting
from millwheel.client.injector.unacked import pending_work
from millwheel.client.injector.watermark_reporter import WatermarkReporter
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.watermarks import AcceptRefusedError, injector_computation

__all__ = ["MemberSession", "Membership"]

_POLL_SECONDS: Final = 0.5
"""Seconds between two requests for the authority's address while the authority does not answer."""


class MemberSession(Protocol):
    """The session of a member."""

    def step(self, event: InjectorEvent) -> None:
        """Pass an event to the core, and perform its effects."""

    def broadcast(self, watermarks: Mapping[str, int]) -> None:
        """Take broadcast low watermarks, by computation, in microseconds."""

    def notices(self, awaited: Callable[[], str]) -> AbstractContextManager[None]:
        """Context of a wait for ``awaited()``. The log names it if it lasts long."""

    def stopped(self) -> InjectorError | None:
        """Why the session has failed or was closed. None while it works."""


class Membership:
    """One process among the processes of a stream's injector.

    A session that sends on another's behalf is no member: it never announces itself, and publishes nothing.
    """

    def __init__(self, core: InjectorCore, control: ControlClient, patience: float, session: MemberSession) -> None:
        """``patience``: seconds to wait for the authority."""
        self.reporter: WatermarkReporter | None = None
        """Reports the published watermark. None before :meth:`announce`."""
        self.waking = False
        """Whether :meth:`wake` is in progress."""
        self._core = core
        self._control = control
        self._patience = patience
        self._session = session
        self._shards: RoutedShards | None = None
        self._lock = asyncio.Lock()

    async def announce(self) -> int:
        """Announce the process to a master and to the authority. Returns its new sequencer.

        Raises:
            RequestError: The cluster refuses, or does not answer in time.
            InjectorError: The stream has no low watermark authority yet, or a newer process has this name.
        """
        stream, process = self._core.stream, self._core.process
        opened = await self._control.open_injector(stream, process)
        if not opened.authority.address:
            raise InjectorError(f"no low watermark authority serves stream {stream!r} yet: try again")
        self._shards = RoutedShards(injector_computation(stream), opened.authority.address)
        self.reporter = WatermarkReporter(
            self._shards,
            stream,
            process,
            opened.sequencer,
            on_superseded=lambda why: self._session.step(ProcessSuperseded(why)),
            on_lost=lambda why: self._session.step(SessionFailed(InjectorError(why))),
            on_watermarks=self._session.broadcast,
            pending_work=lambda: pending_work(self._core),
        )
        looking = asyncio.create_task(self._look_for_authority(self._shards), name=f"authority of {stream}")
        try:
            reached = await self.reporter.open(self._patience)
        except AcceptRefusedError as error:
            raise InjectorSupersededError(stream, process, error.message) from error
        except TimeoutError as error:
            raise InjectorError(
                f"the low watermark of stream {stream!r} was not received in time: try again"
            ) from error
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        self._session.step(PublicationStarted(max(reached, opened.watermark_us)))
        return opened.sequencer

    async def _look_for_authority(self, shards: RoutedShards) -> None:
        """Update the authority's address until cancelled.

        The authority may move before it answers the announcement, and the routing is followed only after the answer.
        """
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            with suppress(RequestError):
                shards.learn(await self._control.routing(self._core.stream))

    def learn(self, response: control.WatchRoutingResponse) -> None:
        """Take the addresses of the authority's shards in a routing, before that routing takes effect."""
        if self._shards is not None:
            self._shards.learn(response)

    def follow(self, routing: StreamRouting) -> None:
        """Follow the low watermarks of the consumers, if they throttle this process (8.4)."""
        if self.reporter is not None and routing.allowed_skew:
            self.reporter.follow(name for name, consumer in routing.consumers.items() if not consumer.log)

    async def wake(self) -> None:
        """End idleness: take part in the injector's low watermark again, from its current value.

        Invariant: nothing is sent before the authority confirms. Otherwise the low watermark could pass a sent record.
        """
        async with self._lock:
            if not self._core.publication.idling:
                return
            self.waking = True
            self._session.step(IdleEnded())
            try:
                reached = await self.settle()
            except BaseException:
                # Failed or cancelled. The authority may not count this process, so it must stay idle.
                self._session.step(IdleDeclared())
                raise
            finally:
                self.waking = False
            self._session.step(WatermarkReached(reached))

    async def settle(self) -> int:
        """Wait until the authority has journaled the published watermark. Returns the value in the authority's journal.

        Returns at once if this process is no member.

        Raises:
            InjectorError: The authority does not confirm, or the session has failed or is closed.
        """
        core = self._core
        if self.reporter is None:
            return core.publication.value
        if core.failed is not None:
            raise core.failed
        try:
            with self._session.notices(lambda: "the low watermark authority to confirm its watermark"):
                return await self.reporter.settle(core.published, self._patience)
        except AcceptRefusedError as error:
            raise InjectorSupersededError(core.stream, core.process, error.message) from error
        except (TimeoutError, RequestError) as error:
            if (stopped := self._session.stopped()) is not None:
                raise stopped from error
            raise InjectorError(
                f"the low watermark authority did not confirm the watermark of process {core.process!r} of "
                f"stream {core.stream!r} within {self._patience:g} s"
            ) from error

    async def close(self) -> None:
        """Stop reports and updates."""
        if self.reporter is not None:
            await self.reporter.close()
