"""The network between simulated processes: connections that are reliable and ordered until they break.

As with TCP, a message that was sent before a partition arrives after it, unless the connection breaks meanwhile. When a
connection breaks, each side is notified at its own time. Messages in flight are lost, whether or not the other side has
acted on earlier ones. Records are duplicated and reordered as in reality: a sender resends them over another
connection.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from simulation.loop import SimulatedLoop
from simulation.process import PROCESS, Process

__all__ = ["Connection", "End", "Network", "NetworkListener"]

KEEPALIVE: Final = 30.0
"""Seconds after which a connection whose other side does not answer is closed (see millwheel.rpc.channel)."""
CONNECT: Final = 5.0
"""The longest time in seconds that an attempt to connect may take."""


class End(Protocol):
    """One side of a connection, as the network notifies it."""

    def received(self, message: tuple[Any, ...]) -> None:
        """Receive a message of the other side."""

    def broken(self) -> None:
        """The connection is broken."""


class NetworkListener(Protocol):
    """A server that accepts connections."""

    process: Process

    def accept(self, connection: Connection) -> End:
        """Accept a new connection, and return the server's end of it."""


class Connection:
    """Two directions between ``client`` and ``server``.

    In ``ends`` and the arguments ``side``, 0 is the client and 1 the server.
    """

    def __init__(self, network: Network, client: Process, server: Process) -> None:
        self.sides = (client, server)
        self.ends: list[End | None] = [None, None]
        self.alive = True
        self._network = network
        self._last = [0.0, 0.0]
        self._waiting: list[list[tuple[Any, ...]]] = [[], []]

    def send(self, side: int, message: tuple[Any, ...]) -> None:
        """Send a message from side ``side`` to the other side."""
        if self.alive:
            self._network.tap(self, side, message)
            self._pass(side, message)

    def _pass(self, side: int, message: tuple[Any, ...]) -> None:
        sender, receiver = self.sides[side], self.sides[1 - side]
        if self._waiting[side] or self._network.is_cut(sender.name, receiver.name):
            self._waiting[side].append(message)
            return
        loop = self._network.loop
        at = max(self._last[side], loop.now + self._network.delay(sender.name, receiver.name))
        self._last[side] = at
        loop.call_at(at, self._arrive, side, message, context=self._network.context)

    def _arrive(self, side: int, message: tuple[Any, ...]) -> None:
        end = self.ends[1 - side]
        if self.alive and end is not None:
            self.sides[1 - side].enter(end.received, message)

    def healed(self) -> None:
        """Send the messages that a partition held back."""
        for side in (0, 1):
            sender, receiver = self.sides[side], self.sides[1 - side]
            if self._waiting[side] and not self._network.is_cut(sender.name, receiver.name):
                messages, self._waiting[side] = self._waiting[side], []
                for message in messages if self.alive else ():
                    self._pass(side, message)

    def breaks(self) -> None:
        """Break the connection now. Both sides are notified soon. Messages in flight are lost."""
        if not self.alive:
            return
        self.alive = False
        self._network.connections.pop(self, None)
        for end, process in zip(self.ends, self.sides, strict=True):
            if end is not None:
                delay = self._network.delay(self.sides[0].name, self.sides[1].name)
                loop = self._network.loop
                loop.call_later(delay, process.enter, end.broken, context=self._network.context)


class Network:
    """All links. It is created in the world's own context."""

    def __init__(self, loop: SimulatedLoop, chance: Random) -> None:
        self.loop = loop
        self.chance = chance
        self.connections: dict[Connection, None] = {}
        self.listeners: dict[str, NetworkListener] = {}
        """Servers by address."""
        self.tap: Callable[[Connection, int, tuple[Any, ...]], object] = lambda connection, side, message: None
        """Called with each message when it is sent: its connection, the sender's side, and the message."""
        self.slow: dict[str, float] = {}
        """By host: seconds that are added to each message that it sends or receives."""
        self.healing: list[Callable[[], object]] = []
        """Called when all partitions have ended."""
        self._cuts: set[tuple[str, str]] = set()
        """Cut directions as (sender, receiver)."""
        process = Process(loop, "world", 0, clock=None)  # type: ignore[arg-type]
        self.context = process.context
        self.context.run(PROCESS.set, None)

    def delay(self, sender: str, receiver: str) -> float:
        """The seconds that a message takes: mostly a fraction of a millisecond, sometimes up to 50 ms."""
        chance = self.chance.random()
        usual = 0.0001 + 0.0005 * chance
        if chance > 0.97:
            usual += 0.05 * self.chance.random()
        return usual + self.slow.get(sender, 0.0) + self.slow.get(receiver, 0.0) if self.slow else usual

    def is_cut(self, sender: str, receiver: str) -> bool:
        """Whether messages from ``sender`` to ``receiver`` are blocked now."""
        return bool(self._cuts) and (sender, receiver) in self._cuts

    def cut(self, sender: str, receiver: str) -> None:
        """Block messages in that direction."""
        self._cuts.add((sender, receiver))
        for connection in list(self.connections):
            if {side.name for side in connection.sides} == {sender, receiver}:
                self.loop.call_later(KEEPALIVE, self._give_up, connection, context=self.context)

    def heal(self) -> None:
        """End all partitions."""
        self._cuts.clear()
        for connection in list(self.connections):
            connection.healed()
        for hear in self.healing:
            hear()

    def paused(self, process: Process) -> None:
        """A process was paused. If it stays paused, its peers close their connections to it."""
        for connection in list(self.connections):
            if process in connection.sides:
                self.loop.call_later(KEEPALIVE, self._give_up, connection, context=self.context)

    def _give_up(self, connection: Connection) -> None:
        one, other = connection.sides
        silent = one.paused or other.paused or self.is_cut(one.name, other.name) or self.is_cut(other.name, one.name)
        if silent:
            connection.breaks()

    def died(self, process: Process) -> None:
        """A process ended: its operating system resets its connections and refuses new ones."""
        for address, listener in list(self.listeners.items()):
            if listener.process is process:
                del self.listeners[address]
        for connection in list(self.connections):
            if process in connection.sides:
                connection.breaks()

    def reset(self) -> bool:
        """Break one random connection; False if there is none."""
        if not self.connections:
            return False
        self.chance.choice(list(self.connections)).breaks()
        return True

    def connect(self, client: Process, address: str, end: Callable[[Connection | None], End | None]) -> None:
        """Try to connect.

        ``end`` is called with the connection, or None after a failure, and returns the client's end.
        """
        host = address.rpartition(":")[0]
        done = False

        def answer(connection: Connection | None) -> None:
            nonlocal done
            if done:
                return
            done = True
            if connection is None or not connection.alive:
                end(None)
                return
            connection.ends[0] = end(connection)

        def arrive() -> None:
            listener = self.listeners.get(address)
            if listener is None:
                self._answer(host, client, answer, None)
            else:
                listener.process.enter(accept, listener)

        def accept(listener: NetworkListener) -> None:
            if done or not client.alive:
                return
            connection = Connection(self, client, listener.process)
            self.connections[connection] = None
            connection.ends[1] = listener.accept(connection)
            self._answer(host, client, answer, connection)

        client.later(CONNECT, answer, None)
        if not self.is_cut(client.name, host):
            self.loop.call_later(self.delay(client.name, host), arrive, context=self.context)

    def _answer(
        self, host: str, client: Process, answer: Callable[[Connection | None], None], connection: Connection | None
    ) -> None:
        if not self.is_cut(host, client.name):
            delay = self.delay(host, client.name)
            self.loop.call_later(delay, client.enter, answer, connection, context=self.context)
