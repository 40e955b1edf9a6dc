"""The inside of an open injector: its core with connections, clock and waits around it (section 5.2).

The session decides nothing. It passes events to the core, and performs the core's effects.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final, assert_never

from millwheel.client.control import ControlClient
from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.errors import InjectorClosedError, InjectorError, InjectorSupersededError
from millwheel.client.injector.looks import SharedLooks
from millwheel.client.injector.messages import (
    Columns,
    Connect,
    ConnectionLost,
    ConnectionOpened,
    DeliveryAnswered,
    Disconnect,
    EndDeclared,
    IdleDeclared,
    IdleEnded,
    InjectorEffect,
    InjectorEvent,
    KeysFound,
    Limits,
    ProcessSuperseded,
    PublicationStarted,
    PublishWatermark,
    RoutingArrived,
    SendBatch,
    SessionFailed,
    Tick,
    WatermarkDeclared,
    WatermarkReached,
    WatermarksBroadcast,
)
from millwheel.client.injector.routing import StreamRouting, routing_from_wire
from millwheel.client.injector.unkeyed import UnkeyedHead
from millwheel.client.injector.watermark_reporter import WatermarkReporter
from millwheel.client.injector.wire import SenderIdentity
from millwheel.model.wording import counted
from millwheel.rpc.channel import RETRYABLE
from millwheel.rpc.deliveries import answered_tokens
from millwheel.rpc.delivery_connection import DeliveryConnection
from millwheel.rpc.failures import RequestError
from millwheel.rpc.hook_failures import blocks
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.waiting import FIRST_NOTICE_SECONDS, wait_notices
from millwheel.rpc.watermarks import AcceptRefusedError, injector_computation

__all__ = ["InjectorSession"]

log = logging.getLogger("millwheel.client")

_LONG_ACK_SECONDS: Final = 5.0
"""A longer wait for ACKs gets a notice in the log."""
_ROUTING_PAUSE_SECONDS: Final = 1.0
"""Seconds before the next attempt to follow the routing, after masters did not answer within ``patience``."""
_LOOK_SECONDS: Final = 2.0
"""Time limit of one look at the routing. After that, the known routing stays in use."""
_POLL_SECONDS: Final = 0.5
"""Seconds between two requests for the authority's address while the authority does not answer."""


class InjectorSession:
    """One incarnation of one injector process.

    ``sequencer`` 0 allocates a new sequencer. Any other value is the sequencer of another injector, on whose behalf
    this session sends.
    """

    def __init__(
        self,
        address: str,
        stream: str,
        process: str,
        sequencer: int,
        limits: Limits,
        patience: float,
        before_routing: Callable[[], None],
    ) -> None:
        """``before_routing`` is called before a new routing takes effect."""
        self.core = InjectorCore(stream, process, limits=limits, chance=random.random)
        self.delegate = sequencer != 0
        self.is_open = False
        self._before_routing = before_routing
        self._identity = SenderIdentity(stream, process, sequencer, watched=not self.delegate)
        self._patience = patience
        self._control = ControlClient(address, patience=patience)
        self._links: dict[str, DeliveryConnection[SendBatch]] = {}
        self._connected: set[str] = set()
        """The addresses of the open connections."""
        self._closing: set[asyncio.Task[None]] = set()
        self._seed: WatermarkReporter | None = None
        self._places: _RoutedShards | None = None
        self._router: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self._change: asyncio.Future[None] | None = None
        self._waking = asyncio.Lock()
        self.looks = SharedLooks(self._look_at_routing)
        """Requests for a master's current routing. A change that the caller knows of may not have arrived yet."""

    @property
    def sequencer(self) -> int:
        """The sequencer in every delivery."""
        return self._identity.sequencer

    @property
    def routing(self) -> StreamRouting:
        """The current routing. It exists once the session is open."""
        assert self.core.routing is not None
        return self.core.routing

    # Life cycle.

    async def full_name(self) -> str:
        """The full name of the stream, for a session that is not open yet. RequestError if a master refuses it."""
        try:
            with self._notices(self._control.awaited):
                return await self._control.full_stream_name(self.core.stream)
        except BaseException:
            await self.close()
            raise

    async def open(self) -> None:
        """Announce the process and fetch the routing. Raises RequestError or InjectorError if that fails."""
        self._loop = asyncio.get_running_loop()
        self.is_open = True
        try:
            if not self.delegate:
                with self._notices(self._control.awaited):
                    await self._announce()
            self._router = asyncio.create_task(self._route(), name=f"routing of {self.core.stream}")
            await self.until(lambda: self.core.routing is not None, self._patience, "the routing")
        except BaseException:
            await self.close()
            raise

    async def _announce(self) -> None:
        stream, process = self.core.stream, self.core.process
        opened = await self._control.open_injector(stream, process)
        self._identity = SenderIdentity(stream, process, opened.sequencer)
        if not opened.authority.address:
            raise InjectorError(f"no low watermark authority serves stream {stream!r} yet: try again")
        self._places = _RoutedShards(injector_computation(stream), opened.authority.address)
        self._seed = WatermarkReporter(
            self._places,
            stream,
            process,
            opened.sequencer,
            on_superseded=self._superseded,
            on_lost=lambda why: self._fail(InjectorError(why)),
            on_watermarks=self._observed,
            pending_work=self.core.pending_work,
        )
        looking = asyncio.create_task(self._look_for_authority(), name=f"authority of {stream}")
        try:
            reached = await self._seed.open(self._patience)
        except AcceptRefusedError as error:
            raise InjectorSupersededError(stream, process, error.message) from error
        except TimeoutError as error:
            raise InjectorError(
                f"the low watermark of stream {stream!r} was not received in time: try again"
            ) from error
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        self._step(PublicationStarted(max(reached, opened.watermark_us)))

    async def _look_for_authority(self) -> None:
        """Update the authority's address until cancelled.

        The authority may move before it answers the announcement, and the routing is followed only after the answer.
        """
        assert self._places is not None
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            with suppress(RequestError):
                self._places.learn(await self._control.routing(self.core.stream))

    async def close(self) -> None:
        """Close all connections and stop all tasks."""
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        if self._router is not None:
            self._router.cancel()
            await asyncio.gather(self._router, return_exceptions=True)
        await self.looks.close()
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links), *self._closing, return_exceptions=True)
        if self._seed is not None:
            await self._seed.close()
        await self._control.close()
        self._changed()

    def check(self) -> None:
        """Raise an InjectorError if the session cannot accept records."""
        if self.core.failed is not None:
            raise self.core.failed
        if not self.is_open:
            raise InjectorClosedError(f"the injector of stream {self.core.stream!r} is not open: use `async with`")
        self.core.check_open()

    # Calls from the injector.

    def add(self, columns: Columns) -> None:
        """Pass records to the core."""
        self._step(columns)

    def keyed(self, head: UnkeyedHead, keys: Sequence[bytes], why: str) -> None:
        """Pass the keys of waiting records to the core."""
        self._step(KeysFound(head, keys, why))

    def declare(self, watermark: int) -> None:
        """Pass the user's promise to the core."""
        self._step(WatermarkDeclared(watermark))

    def idle(self) -> None:
        """Tell the core that there is nothing to send for now."""
        self._step(IdleDeclared())

    def finish(self) -> None:
        """Tell the core that no record follows."""
        self._step(EndDeclared())

    @property
    def asleep(self) -> bool:
        """Whether :meth:`wake` must finish before a record is accepted."""
        return self.core.publication.idling or self._waking.locked()

    async def admission(self, newest: int) -> None:
        """Wait until the process may accept a record of timestamp ``newest``: not idle, has room, not throttled."""
        core = self.core
        # During a wait for room, another task may have declared the process idle. So all conditions are checked again.
        while self.asleep or not core.room() or core.throttled(newest):
            if self.asleep:
                await self.wake()
                continue
            await self.until(lambda: core.room() > 0 and not core.throttled(newest), newest=newest)

    def _notices(self, awaited: Callable[[], str], first: float = FIRST_NOTICE_SECONDS) -> AbstractContextManager[None]:
        """Context of a wait for ``awaited()``. The log names it after ``first`` seconds, and repeatedly after that."""
        who = f"injector {self.core.process!r} of stream {self.core.stream!r}"
        return wait_notices(
            lambda seconds: f"{who} has waited {seconds:.0f} s for {awaited()}", log.warning, first=first
        )

    def _awaited(self, newest: int | None) -> str:
        """Describe what a wait is for."""
        core = self.core
        if core.routing is None:
            return self._control.awaited()
        if newest is not None and core.throttled(newest):
            skew = self.routing.allowed_skew / 1e6
            return f"the low watermark: the record is ahead of it by more than the allowed skew of {skew:g} s"
        away = sorted(self._links.keys() - self._connected)
        why = f" (no connection to {', '.join(away)})" if away else ""
        return f"the ACKs of {counted(core.unacked_records(), 'record')}{why}"

    async def wake(self) -> None:
        """End idleness: take part in the injector's low watermark again, from its current value.

        Invariant: nothing is sent before the authority confirms. Otherwise the low watermark could pass a sent record.
        """
        async with self._waking:
            if not self.core.publication.idling:
                return
            self._step(IdleEnded())
            try:
                reached = await self.settle()
            except BaseException:
                # Failed or cancelled. The authority may not count this process, so it must stay idle.
                self._step(IdleDeclared())
                raise
            self._step(WatermarkReached(reached))

    async def hook_failures(self, topology: str, computation: str) -> list[str]:
        """Failures of a consumer's hooks that keep delivered records from being ACKed, as sentences."""
        found = await self._control.hook_failures(topology, computation, self.core.stream)
        return [one.text for one in found if blocks(one.failures, one.stopped)]

    def unreachable(self) -> str:
        """Why the cluster cannot be reached, and since when. Empty if it can be reached."""
        return self._control.unreachable()

    async def settle(self) -> int:
        """Wait until the authority has journaled the published watermark. Returns the value in the authority's journal.

        A session that sends on another's behalf publishes nothing, so it does not wait.

        Raises:
            InjectorError: The authority does not confirm, or the session has failed or is closed.
        """
        core = self.core
        if self._seed is None:
            return core.publication.value
        if core.failed is not None:
            raise core.failed
        try:
            with self._notices(lambda: "the low watermark authority to confirm its watermark"):
                return await self._seed.settle(core.published, self._patience)
        except AcceptRefusedError as error:
            raise InjectorSupersededError(core.stream, core.process, error.message) from error
        except (TimeoutError, RequestError) as error:
            if core.failed is not None:
                raise core.failed from error
            if not self.is_open:
                raise InjectorClosedError(f"the injector of stream {core.stream!r} was closed") from error
            raise InjectorError(
                f"the low watermark authority did not confirm the watermark of process {core.process!r} of "
                f"stream {core.stream!r} within {self._patience:g} s"
            ) from error

    async def until(
        self, done: Callable[[], bool], patience: float | None = None, what: str = "", newest: int | None = None
    ) -> None:
        """Wait until ``done()`` is true. It is checked after every event. A long wait is logged.

        Args:
            done: The condition.
            patience: Seconds to wait at most. None waits without limit.
            what: What the wait is for, for the error text.
            newest: The timestamp of the record that waits for admission, for the log.

        Raises:
            InjectorError: The time is over, or the session has failed or is closed.
        """
        if done() and self.core.failed is None:
            return
        try:
            async with asyncio.timeout(patience):
                with self._notices(lambda: self._awaited(newest), _LONG_ACK_SECONDS):
                    await self._until(done)
        except TimeoutError as error:
            raise InjectorError(f"{what} of stream {self.core.stream!r} did not come within {patience:g} s") from error
        if self.core.failed is not None:
            raise self.core.failed

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            if self.core.failed is not None:
                raise self.core.failed
            if not self.is_open:
                raise InjectorClosedError(f"the injector of stream {self.core.stream!r} was closed")
            if self._change is None:
                self._change = self._loop.create_future()
            await asyncio.shield(self._change)

    # Events.

    def connected(self, address: str) -> None:
        """A connection is open."""
        self._connected.add(address)
        self._step(ConnectionOpened(address))

    def disconnected(self, address: str) -> None:
        """A connection broke."""
        self._connected.discard(address)
        self._step(ConnectionLost(address))

    def broke(self, address: str, error: Exception) -> bool:
        """A connection failed in a way that a reconnect does not repair. The session fails."""
        self._fail(InjectorError(f"deliveries to {address} have stopped by an internal error: {error!r}"))
        return False

    def answered(self, response: wire.DeliverResponse) -> None:
        """A worker answered one or more deliveries."""
        self._step(DeliveryAnswered(answered_tokens(response), response.outcome, response.indexes, response.message))

    def _superseded(self, why: str) -> None:
        self._step(ProcessSuperseded(why))

    def _observed(self, watermarks: Mapping[str, int]) -> None:
        self._step(WatermarksBroadcast(watermarks))

    async def _route(self) -> None:
        """Follow the stream's routing, even if masters do not answer for long. A master's refusal ends the session."""
        while await self._follow_routing():
            log.warning("stream %r: no master sends the routing; the last one is kept", self.core.stream)
            await asyncio.sleep(_ROUTING_PAUSE_SECONDS)

    async def _follow_routing(self) -> bool:
        """Follow the routing until that fails. Returns whether to try again."""
        stream = self.core.stream
        try:
            async for response in self._control.watch_routing(stream):
                try:
                    routing = routing_from_wire(response)
                except ValueError as error:
                    log.error("routing of stream %r: %s; the one before is kept", stream, error)
                    continue
                self._take_routing(routing, response)
            self._fail(InjectorError(f"the master ended the routing of stream {stream!r}"))
        except RequestError as error:
            if error.code in RETRYABLE and self.core.routing is not None:
                return True
            self._fail(
                InjectorError(
                    f"the routing of stream {stream!r} is lost: {error}; what is not ACKed is unsure: send it again "
                    "from a new injector, under the ids that it has"
                )
            )
        except Exception as error:
            log.exception("routing of stream %r", stream)
            self._fail(InjectorError(f"the routing of stream {stream!r} was not understood: {error!r}"))
        return False

    async def _look_at_routing(self) -> None:
        """Request a master's current routing and use it. If no master answers in time, the known routing stays."""
        with suppress(RequestError, ValueError, TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                response = await self._control.routing(self.core.stream)
            routing = routing_from_wire(response)
            if self.is_open and routing.revision >= self.routing.revision:
                self._take_routing(routing, response)

    def _take_routing(self, routing: StreamRouting, response: control.WatchRoutingResponse) -> None:
        if self._places is not None:
            self._places.learn(response)
        self._before_routing()
        self._step(RoutingArrived(routing))
        if self._seed is not None and routing.allowed_skew:
            self._seed.follow(name for name, consumer in routing.consumers.items() if not consumer.log)

    def _fail(self, error: InjectorError) -> None:
        self._step(SessionFailed(error))

    def _step(self, event: InjectorEvent) -> None:
        """Pass an event to the core, and perform its effects."""
        self._perform(self.core.step(event, self._now()))

    def _perform(self, effects: Sequence[InjectorEffect]) -> None:
        if not self.is_open:
            # A connection opened or received an answer while the session was closing.
            self._changed()
            return
        for effect in effects:
            match effect:
                case SendBatch():
                    self._links[effect.address].send(effect)
                case PublishWatermark():
                    if self._seed is not None:
                        self._seed.report(effect.published)
                case Connect(address):
                    self._links[address] = DeliveryConnection(address, self._identity.request, self)
                case Disconnect(address):
                    self._connected.discard(address)
                    task = asyncio.create_task(self._links.pop(address).close())
                    self._closing.add(task)
                    task.add_done_callback(self._closing.discard)
                case _:
                    assert_never(effect)
        self._arm()
        self._changed()

    # Time and waits.

    def _arm(self) -> None:
        at = self.core.next_deadline()
        if at == self._timer_at or not self.is_open:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if at is None else self._loop.call_at(at / 1e6, self._tick)

    def _tick(self) -> None:
        self._timer_at = None
        self._step(Tick())

    def _now(self) -> int:
        # One more microsecond than the truncated value, so that a timer that fires sees its time as past.
        return int(self._loop.time() * 1e6) + 1

    def _changed(self) -> None:
        if self._change is not None:
            if not self._change.done():
                self._change.set_result(None)
            self._change = None


class _RoutedShards:
    """The addresses of the authority's shards, from the master's routing. Without a new address the old one stays."""

    def __init__(self, injector: str, address: str) -> None:
        self._injector = injector
        self._addresses = {injector: address}

    def learn(self, routing: control.WatchRoutingResponse) -> None:
        """Take the addresses in a routing."""
        addresses = {self._injector: routing.authority.address}
        addresses.update((consumer.incarnation, consumer.authority.address) for consumer in routing.consumers)
        self._addresses.update((name, address) for name, address in addresses.items() if address)

    def shard_of(self, computation: str) -> Hashable:
        """Each computation counts as a shard here. The cluster may map several computations to one shard."""
        return computation

    async def address_of(self, shard: Hashable) -> str:
        """The address of the authority that keeps the computation's watermark."""
        return self._addresses.get(str(shard)) or self._addresses[self._injector]
