"""The inside of an injector, from its opening to its end: the driver, the routing and the membership (section 5.2)."""

from __future__ import annotations

import random
from collections.abc import Callable

from millwheel.client.control import ControlClient
from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.driver import InjectorDriver, SenderIdentity
from millwheel.client.injector.messages import (
    Limits,
    PublicationStarted,
    RoutingArrived,
)
from millwheel.client.injector.routing import StreamRouting
from millwheel.client.injector.routing_follower import RoutingFollower
from millwheel.rpc.v1 import control_pb2 as control

__all__ = ["InjectorSession"]


class InjectorSession(InjectorDriver):
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
        core = InjectorCore(stream, process, limits=limits, chance=random.random)
        identity = SenderIdentity(stream, process, sequencer, publishes=sequencer == 0)
        super().__init__(core, identity, ControlClient(address, patience=patience), patience)
        self.follower = RoutingFollower(self.control, self.core, self.take_routing, self._fail)
        self._before_routing = before_routing

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
        await self._disconnect()
        await self.membership.close()
        await self.control.close()
        self._notify()

    def take_routing(self, routing: StreamRouting, response: control.WatchRoutingResponse) -> None:
        """A master sent the routing in ``response``."""
        self.membership.learn(response)
        self._before_routing()
        self.step(RoutingArrived(routing))
        self.membership.follow(routing)
