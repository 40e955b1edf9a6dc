"""An opened injector's inside: its core, with the connections, the clock and the waiting around it (section 5.2).

It decides nothing: events go to the core, and the core's instructions to links, authority and timer.
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
from millwheel.client.injector.link import Link
from millwheel.client.injector.messages import Columns, Connect, Disconnect, Instruction, Limits, Send
from millwheel.client.injector.routing import Routing, routing_from_wire
from millwheel.client.injector.seeding import WatermarkSeed
from millwheel.client.injector.unkeyed import UnkeyedHead
from millwheel.client.injector.wire import SenderIdentity
from millwheel.core.wording import counted
from millwheel.rpc.channel import RETRYABLE
from millwheel.rpc.deliveries import answered_tokens
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.waiting import FIRST_NOTICE_SECONDS, wait_notices
from millwheel.rpc.watermarks import AcceptRefusedError, injector_computation

__all__ = ["Session"]

log = logging.getLogger("millwheel.client")

_LONG_ACK_SECONDS: Final = 5.0
"""A wait for ACKs that is longer than this gets a notice in the log."""
_ROUTING_PAUSE: Final = 1.0
"""Seconds before masters that were asked for as long as patience lasts are asked again."""
_LOOKS: Final = 0.5
"""Seconds between two looks where the authority is, while it does not answer whoever opens."""


class Session:
    """One life of one injector process. ``sequencer`` 0 draws one; another sends on behalf of who drew it."""

    def __init__(
        self, address: str, stream: str, process: str, sequencer: int, limits: Limits, patience: float
    ) -> None:
        self.core = InjectorCore(stream, process, limits=limits, chance=random.random)
        self.delegate = sequencer != 0
        self.is_open = False
        self.before_routing: Callable[[], None] = lambda: None
        """Called before another routing counts."""
        self._identity = SenderIdentity(stream, process, sequencer, watched=not self.delegate)
        self._patience = patience
        self._control = ControlClient(address, patience=patience)
        self._links: dict[str, Link] = {}
        self._connected: set[str] = set()
        """The addresses of the links that are connected."""
        self._closing: set[asyncio.Task[None]] = set()
        self._seed: WatermarkSeed | None = None
        self._places: _Places | None = None
        self._router: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self._change: asyncio.Future[None] | None = None
        self._waking = asyncio.Lock()

    @property
    def sequencer(self) -> int:
        """The sequencer that it sends under."""
        return self._identity.sequencer

    @property
    def routing(self) -> Routing:
        """The routing at hand; there is one once the session is open."""
        assert self.core.routing is not None
        return self.core.routing

    # Its life.

    async def open(self) -> None:
        """Announce the process, and learn the routing. RequestError or InjectorError says what stands against it."""
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
        self._places = _Places(injector_computation(stream), opened.authority.address)
        self._seed = WatermarkSeed(
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
            raise InjectorError(f"the low watermark of stream {stream!r} was not told in time: try again") from error
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        self.core.publication.start(max(reached, opened.watermark_us))
        self.publish()

    async def _look_for_authority(self) -> None:
        """Learn where the authority is now: it may move before it answers, and the routing is followed only then."""
        assert self._places is not None
        while True:
            await asyncio.sleep(_LOOKS)
            with suppress(RequestError):
                self._places.learn(await self._control.routing(self.core.stream))

    async def close(self) -> None:
        """Hang up."""
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        if self._router is not None:
            self._router.cancel()
            await asyncio.gather(self._router, return_exceptions=True)
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links), *self._closing, return_exceptions=True)
        if self._seed is not None:
            await self._seed.close()
        await self._control.close()
        self._changed()

    def check(self) -> None:
        """Raise what keeps the session from taking records: InjectorError."""
        if self.core.failed is not None:
            raise self.core.failed
        if not self.is_open:
            raise InjectorClosedError(f"the injector of stream {self.core.stream!r} is not open: use `async with`")
        self.core.check_open()

    # What the injector asks for.

    def add(self, columns: Columns) -> None:
        """Have the core accept records."""
        self._perform(self.core.add(columns, self._now()))

    def keyed(self, head: UnkeyedHead, keys: Sequence[bytes], why: str) -> None:
        """Have records that waited for their keys go on."""
        self._perform(self.core.keyed(head, keys, why, self._now()))

    @property
    def asleep(self) -> bool:
        """Whether :meth:`wake` must end before a record is accepted."""
        return self.core.publication.idling or self._waking.locked()

    async def admission(self, newest: int) -> None:
        """Wait for the end of idleness, for room, and for the throttle."""
        core = self.core
        # Whoever waits for room is overtaken by others, who may have the process idle meanwhile.
        while self.asleep or not core.room() or core.throttled(newest):
            if self.asleep:
                await self.wake()
                continue
            await self.until(lambda: core.room() > 0 and not core.throttled(newest), newest=newest)

    def _notices(self, awaited: Callable[[], str], first: float = FIRST_NOTICE_SECONDS) -> AbstractContextManager[None]:
        """Around a wait for ``awaited()``: the log names it after ``first`` seconds, and then now and then."""
        who = f"injector {self.core.process!r} of stream {self.core.stream!r}"
        return wait_notices(
            lambda seconds: f"{who} has waited {seconds:.0f} s for {awaited()}", log.warning, first=first
        )

    def _awaited(self, newest: int | None) -> str:
        """What a wait for an event is for, in words."""
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
        """Take part in the minimum again, from where the other processes are by now.

        Nothing may be sent before the authority knows: else the minimum could pass what is sent.
        """
        async with self._waking:
            if not self.core.publication.idling:
                return
            self.core.publication.wake()
            try:
                reached = await self.settle()
            except BaseException:
                # Failed or cancelled: for all that is known here the minimum still leaves this process out.
                self.core.publication.idle()
                self.publish()
                raise
            self.core.publication.raise_to(reached)

    async def hook_failures(self, topology: str, computation: str) -> list[str]:
        """What the hooks of a consumer raise that keeps records from being ACKed, in sentences."""
        found = await self._control.hook_failures(topology, computation, self.core.stream)
        return [one.text for one in found if one.blocks]

    def unreachable(self) -> str:
        """That the cluster cannot be reached, why, and since when; empty if it can."""
        return self._control.unreachable()

    def publish(self) -> None:
        """Report the watermark as it is now, if it is news."""
        if self._seed is not None:
            self._seed.report(self.core.published())

    async def settle(self) -> int:
        """Have the authority know for good what is published now, and return what the process stands at there.

        InjectorError if it does not answer. One that sends on another's behalf publishes nothing.
        """
        core = self.core
        if self._seed is None:
            return core.publication.value
        if core.failed is not None:
            raise core.failed
        try:
            with self._notices(lambda: "the low watermark authority to confirm its watermark"):
                return await self._seed.settle(core.published(), self._patience)
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
        """Wait until ``done()``, looking again after every event; InjectorError if the session ends before.

        A long wait is in the log. ``newest``: the timestamp of the record that waits to be accepted.
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
        """A link is open."""
        self._connected.add(address)
        self._perform(self.core.connected(address, self._now()))

    def disconnected(self, address: str) -> None:
        """A link broke."""
        self._connected.discard(address)
        self.core.disconnected(address)

    def broke(self, address: str, error: Exception) -> None:
        """A link met with what it cannot mend by connecting again: nothing more goes to ``address``."""
        self._fail(InjectorError(f"deliveries to {address} have stopped by an internal error: {error!r}"))

    def answered(self, response: wire.DeliverResponse) -> None:
        """A worker answered."""
        instructions: list[Instruction] = []
        for token in answered_tokens(response):
            instructions += self.core.answered(token, response.outcome, response.indexes, response.message, self._now())
        self._perform(instructions)

    def _superseded(self, why: str) -> None:
        self.core.superseded(why)
        self._changed()

    def _observed(self, watermarks: Mapping[str, int]) -> None:
        self.core.observed(watermarks)
        self._changed()

    async def _route(self) -> None:
        """Follow the stream's routing, however long no master answers; a master's refusal ends the session."""
        while await self._follow_routing():
            log.warning("stream %r: no master tells the routing; the one that is known is kept", self.core.stream)
            await asyncio.sleep(_ROUTING_PAUSE)

    async def _follow_routing(self) -> bool:
        """Follow the routing until nobody tells it; whether it is worth another try."""
        stream = self.core.stream
        try:
            async for response in self._control.watch_routing(stream):
                try:
                    routing = routing_from_wire(response)
                except ValueError as error:
                    log.error("routing of stream %r: %s; the one before is kept", stream, error)
                    continue
                if self._places is not None:
                    self._places.learn(response)
                self.before_routing()
                self._perform(self.core.routed(routing, self._now()))
                if self._seed is not None and routing.allowed_skew:
                    self._seed.follow(name for name, consumer in routing.consumers.items() if not consumer.log)
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

    def _fail(self, error: InjectorError) -> None:
        self.core.failed = self.core.failed or error
        self._changed()

    def _perform(self, instructions: Sequence[Instruction]) -> None:
        if not self.is_open:
            return  # a link came about, or was answered, while it was closed
        for instruction in instructions:
            match instruction:
                case Connect(address):
                    self._links[address] = Link(address, self._identity.request, self)
                case Disconnect(address):
                    task = asyncio.create_task(self._links.pop(address).close())
                    self._closing.add(task)
                    task.add_done_callback(self._closing.discard)
                case Send():
                    self._links[instruction.address].send(instruction)
                case _:
                    assert_never(instruction)
        self.publish()
        self._arm()
        self._changed()

    # Time and waiting.

    def _arm(self) -> None:
        at = self.core.next_alarm()
        if at == self._timer_at or not self.is_open:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if at is None else self._loop.call_at(at / 1e6, self._tick)

    def _tick(self) -> None:
        self._timer_at = None
        self._perform(self.core.tick(self._now()))

    def _now(self) -> int:
        # Rounded up, so that a timer that fires has its time behind it.
        return int(self._loop.time() * 1e6) + 1

    def _changed(self) -> None:
        if self._change is not None:
            if not self._change.done():
                self._change.set_result(None)
            self._change = None


class _Places:
    """Where the authority's shards are, as the master's routing tells; what is not told has not moved."""

    def __init__(self, injector: str, address: str) -> None:
        self._injector = injector
        self._addresses = {injector: address}

    def learn(self, routing: control.WatchRoutingResponse) -> None:
        """Take in what a routing tells."""
        told = {self._injector: routing.authority.address}
        told.update((consumer.incarnation, consumer.authority.address) for consumer in routing.consumers)
        self._addresses.update((name, address) for name, address in told.items() if address)

    def shard_of(self, computation: str) -> Hashable:
        """Which computations share a shard is the cluster's business: here each has a client of its own."""
        return computation

    async def address_of(self, shard: Hashable) -> str:
        """Where the computation's watermark is kept."""
        return self._addresses.get(str(shard)) or self._addresses[self._injector]
