"""An injector process's part in the injector's low watermark: announced, confirmed, woken (sections 4.5, 5.2)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, aclosing, suppress
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
    SessionFailed,
    WatermarkReached,
)
from millwheel.client.injector.routing import StreamRouting
from millwheel.client.injector.unacked import pending_work
from millwheel.client.shards import ShardedWatermarks
from millwheel.client.watermark_streams import ReportStream
from millwheel.model.backoff import Backoff
from millwheel.model.incarnation import injector_group
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.watermarks import AcceptRefusedError, ReportNotReceivedError, WatermarkReport

__all__ = ["MemberSession", "Membership"]

_POLL_SECONDS: Final = 0.5
"""Seconds between two requests for the authority's address while the authority does not answer."""
_CONFIRM_BACKOFF: Final = Backoff(0.005, 0.25)


class MemberSession(Protocol):
    """The session of a member. ``last_report``: the number of the report with the published watermark."""

    last_report: int

    def step(self, event: InjectorEvent) -> None:
        """Pass an event to the core, and perform its effects."""

    def broadcast(self, watermarks: Mapping[str, int]) -> None:
        """Take broadcast low watermarks, by group, in microseconds."""

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
        self.authority: ShardedWatermarks | None = None
        """The client of the authority. None before :meth:`announce`."""
        self.reports: ReportStream | None = None
        """Carries the reports of the published watermark. None before :meth:`announce`."""
        self.waking = False
        """Whether :meth:`wake` is in progress."""
        self._core = core
        self._control = control
        self._patience = patience
        self._session = session
        self._group = injector_group(core.stream)
        self._sequencer = 0
        self._shards: RoutedShards | None = None
        self._followed: frozenset[str] = frozenset()
        self._follower: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def announce(self) -> tuple[int, int]:
        """Announce the process to a master and to the authority (G4).

        Returns:
            Its new sequencer, and the watermark to start from, in microseconds. That is the largest of this process's
            last value, the low watermark of all processes, and the value that the master knows.

        Raises:
            RequestError: The cluster refuses, or does not answer in time.
            InjectorError: The stream has no low watermark authority yet, or a newer process has this name.
        """
        stream, process = self._core.stream, self._core.process
        opened = await self._control.open_injector(stream, process)
        if not opened.authority.address:
            raise InjectorError(f"no low watermark authority serves stream {stream!r} yet: try again")
        self._sequencer = opened.sequencer
        self._shards = RoutedShards(self._group, opened.authority.address)
        self.authority = ShardedWatermarks(
            self._shards,
            on_refused=self._refused,
            pending_of=lambda _: {process: pending_work(self._core)},
            refresh=1.0,
        )
        self.reports = self.authority.client_for(self._group).reports
        looking = asyncio.create_task(self._look_for_authority(self._shards), name=f"authority of {stream}")
        try:
            reached = await self._join(self.authority)
        except AcceptRefusedError as error:
            raise InjectorSupersededError(stream, process, error.message) from error
        except TimeoutError as error:
            raise InjectorError(
                f"the low watermark of stream {stream!r} was not received in time: try again"
            ) from error
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        return opened.sequencer, max(reached, opened.watermark_us)

    async def _join(self, authority: ShardedWatermarks) -> int:
        """Announce the process to the authority. Returns the larger of its last value and of all processes' minimum."""
        own = await self._accept(authority)
        async with asyncio.timeout(self._patience), aclosing(authority.watch([self._group])) as updates:
            broadcast = await anext(updates)
        return max(own, broadcast[self._group].watermark)

    async def _accept(self, authority: ShardedWatermarks, report_number: int = 0) -> int:
        """See :meth:`WatermarkClient.accept`."""
        return await authority.accept(
            self._group, self._core.process, self._sequencer, self._patience, report_number=report_number
        )

    def _refused(self, report: WatermarkReport) -> None:
        why = f"the low watermark authority refused sequencer {report.sequencer}"
        self._session.step(ProcessSuperseded(why))

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
        if self.authority is None or not routing.allowed_skew:
            return
        wanted = frozenset(name for name, consumer in routing.consumers.items() if not consumer.log)
        if wanted == self._followed:
            return
        self._followed = wanted
        if self._follower is not None:
            self._follower.cancel()
        # Consumers join and leave as long as the stream exists, so the client drops those that left.
        self.authority.keep((*wanted, self._group))
        self._follower = asyncio.create_task(self._follow(self.authority), name="watermarks") if wanted else None

    async def _follow(self, authority: ShardedWatermarks) -> None:
        groups = sorted(self._followed)
        try:
            async for news in authority.watch(groups):
                self._session.broadcast({name: update.watermark for name, update in news.items()})
        except RequestError as error:
            why = f"the watermarks of {', '.join(groups)} are not to be had: {error}"
            self._session.step(SessionFailed(InjectorError(why)))

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
        if self.authority is None:
            return core.publication.value
        if core.failed is not None:
            raise core.failed
        try:
            with self._session.notices(lambda: "the low watermark authority to confirm its watermark"):
                return await self._confirmed(self.authority, self._session.last_report)
        except AcceptRefusedError as error:
            raise InjectorSupersededError(core.stream, core.process, error.message) from error
        except (TimeoutError, RequestError) as error:
            if (stopped := self._session.stopped()) is not None:
                raise stopped from error
            raise InjectorError(
                f"the low watermark authority did not confirm the watermark of process {core.process!r} of "
                f"stream {core.stream!r} within {self._patience:g} s"
            ) from error

    async def _confirmed(self, authority: ShardedWatermarks, number: int) -> int:
        """Wait until report ``number`` is journaled. Returns the process's watermark in the journal, in microseconds.

        While the process is not idle, no broadcast low watermark passes this value. TimeoutError after ``patience``.
        """
        polls = 0
        async with asyncio.timeout(self._patience):
            while True:
                # A repeated announcement is idempotent and answered from the journal. It also checks that the report
                # has arrived: the shard may have moved since to an authority that never received the report.
                with suppress(ReportNotReceivedError):
                    return await self._accept(authority, number)
                polls += 1
                await asyncio.sleep(_CONFIRM_BACKOFF.delay(polls, random.random()))

    async def close(self) -> None:
        """Stop reports and updates."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        if self.authority is not None:
            await self.authority.close()
