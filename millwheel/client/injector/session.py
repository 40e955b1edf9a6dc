"""The inside of an injector, from its opening to its end: routing, membership and connections (section 5.2)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from millwheel.client.control import ControlClient
from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.driver import InjectorDriver, SenderIdentity
from millwheel.client.injector.errors import InjectorClosedError, InjectorError
from millwheel.client.injector.membership import Membership
from millwheel.client.injector.messages import (
    ConnectionLost,
    ConnectionOpened,
    Limits,
    PublicationStarted,
    RoutingArrived,
    WatermarksBroadcast,
)
from millwheel.client.injector.routing import StreamRouting
from millwheel.client.injector.routing_follower import RoutingFollower
from millwheel.client.injector.unacked import unacked_records
from millwheel.model.wording import counted
from millwheel.rpc.delivery_connection import DeliveryConnection
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.waiting import wait_notices

__all__ = ["InjectorSession"]

log = logging.getLogger("millwheel.client")


class InjectorSession(InjectorDriver):
    """One incarnation of one injector process.

    ``sequencer`` 0 allocates a new sequencer. Any other value is the sequencer of another injector, on whose behalf
    this session sends.

    It has many methods: what ``Injector`` offers, and what its parts post back.
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
        core = InjectorCore(stream, process, limits=limits, chance=random.random)
        identity = SenderIdentity(stream, process, sequencer, publishes=sequencer == 0)
        super().__init__(core, identity)
        self.control = ControlClient(address, patience=patience)
        self.membership = Membership(core, self.control, patience, self)
        self._patience = patience
        self._connected: set[str] = set()
        """The addresses of the open connections."""
        self._closing: set[asyncio.Task[None]] = set()
        self.follower = RoutingFollower(self.control, self.core, self.take_routing, self.fail)
        self._before_routing = before_routing

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
            with self.notices(self.control.awaited):
                return await self.control.full_stream_name(self.core.stream)
        except BaseException:
            await self.close()
            raise

    async def open(self) -> None:
        """Announce the process and fetch the routing. Raises RequestError or InjectorError if that fails."""
        self._begin()
        try:
            if self._identity.publishes:
                with self.notices(self.control.awaited):
                    self._identity.sequencer, watermark = await self.membership.announce()
                self.step(PublicationStarted(watermark))
            self.follower.start()
            await self.until(lambda: self.core.routing is not None, self._patience, "the routing")
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections and stop all tasks."""
        self._stop()
        await self.follower.close()
        await self._close_links()
        await self.membership.close()
        await self.control.close()
        self._notify()

    def _begin(self) -> None:
        """Perform effects from now on, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self.is_open = True

    def _stop(self) -> None:
        """Perform no more effects."""
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()

    async def _close_links(self) -> None:
        """Close all connections."""
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links), *self._closing, return_exceptions=True)

    def _not_open(self) -> InjectorClosedError:
        return InjectorClosedError(
            f"the injector of stream {self.core.stream!r} is closed, or was not opened: use `async with`"
        )

    def take_routing(self, routing: StreamRouting, response: control.WatchRoutingResponse) -> None:
        """A master sent the routing in ``response``.

        Invariant: what is sent to a consumer was hashed within the name that the consumer's routing gives (G1). The
        first routing comes before the first record. A topology that comes back under the stream's name may have
        another.
        """
        known = self.core.routing
        if known is not None and routing.id_stream != known.id_stream:
            self.fail(
                InjectorError(
                    f"stream {self.core.stream!r} is another one now, where records have other ids: open a new injector"
                )
            )
            return
        self.membership.learn(response)
        self._before_routing()
        self.step(RoutingArrived(routing))
        self.membership.follow(routing)

    # Connections.

    def _connect(self, address: str) -> None:
        self._links[address] = DeliveryConnection(address, self._identity.request, self)

    def _disconnect(self, address: str) -> None:
        self._connected.discard(address)
        task = asyncio.create_task(self._links.pop(address).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def connected(self, address: str) -> None:
        """A connection is open."""
        self._connected.add(address)
        self.step(ConnectionOpened(address))

    def disconnected(self, address: str) -> None:
        """A connection broke."""
        self._connected.discard(address)
        self.step(ConnectionLost(address))

    def broke(self, address: str, error: Exception) -> bool:
        """A connection failed in a way that a reconnect does not repair. The session fails."""
        self.fail(InjectorError(f"deliveries to {address} have stopped by an internal error: {error!r}"))
        return False

    def broadcast(self, watermarks: Mapping[str, int]) -> None:
        """The authority broadcast low watermarks, by group, in microseconds."""
        self.step(WatermarksBroadcast(watermarks))

    def unreachable(self) -> str:
        """A consumer that no record can reach now, in words: none of its owners is connected. Empty: there is none."""
        core = self.core
        for one in () if core.routing is None else core.routing.consumers.values():
            owners = {route.address for route in one.routes} - {""}
            if owners & self._connected:
                continue
            name = f"the log of stream {core.stream}" if one.log else f"{one.topology}/{one.computation}"
            why = f"no connection to {', '.join(sorted(owners))}" if owners else "no worker has it"
            return f"{name} cannot be reached: {why}"
        return ""

    # Notices.

    def notices(self, awaited: Callable[[], str]) -> AbstractContextManager[None]:
        """Context of a wait for ``awaited()``. The log names it if it lasts long, and repeatedly after that."""
        return wait_notices(lambda seconds: self._notice(seconds, awaited()), log.warning)

    def _notice(self, seconds: float, awaited: str) -> str:
        return f"injector {self.core.process!r} of stream {self.core.stream!r} has waited {seconds:.0f} s for {awaited}"

    def _waits_long(self, seconds: float, newest: int | None) -> None:
        log.warning(self._notice(seconds, self._awaited(newest)))

    def _awaited(self, newest: int | None) -> str:
        """Describe what a wait is for. ``newest``: the timestamp of the record that waits for admission."""
        core = self.core
        if core.routing is None:
            return self.control.awaited()
        if newest is not None and core.throttled(newest):
            skew = self.routing.allowed_skew / 1e6
            return f"the low watermark: the record is ahead of it by more than the allowed skew of {skew:g} s"
        away = sorted(self._links.keys() - self._connected)
        why = f" (no connection to {', '.join(away)})" if away else ""
        return f"the ACKs of {counted(unacked_records(core), 'record')}{why}"
