"""The cluster on which a scenario runs: a simulated cluster without randomness, and the actions of scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any, Final, TypeVar

import msgspec

from millwheel.client.control import ControlClient
from millwheel.client.injector import BatchOf, Injector
from millwheel.client.subscription import Subscription
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import interval_pb2
from simulation.clients import ADDRESS
from simulation.process import Process
from simulation.scenarios.players import Fruit, Node, assemble, package, stamp
from simulation.scenarios.telling import Event, Telling, person
from simulation.scenarios.wire import Wire
from simulation.world import Main, World

__all__ = ["Even", "ScenarioReader", "Stage"]

_REPEATED: Final = frozenset({"deliver", "untaken", "refused"})
"""Events that are shown once. They repeat until they succeed."""
_PATIENCE: Final = 90.0
"""The virtual seconds that a script waits for an event."""

Result = TypeVar("Result")


class Even(Random):
    """A random generator without randomness: it returns middle values, and keeps every order."""

    def random(self) -> float:
        """The middle of the range."""
        return 0.5

    def shuffle(self, x: Any) -> None:
        """Keep the order."""

    def choice(self, seq: Any) -> Any:
        """The first element."""
        return seq[0]


class Stage:
    """One run of a scenario.

    ``lines``: the lines to show, as (virtual seconds, process, text). The process is empty for the script's own lines.
    """

    def __init__(self, world: World, nodes: Sequence[Node], shows: Mapping[str, str]) -> None:
        """Prepare an empty stage.

        ``shows``: by subject (an interval, a stream, or "" for any), the kinds of events to show.
        """
        self.world = world
        self.lines: list[tuple[float, str, str]] = []
        self.telling = Telling(world, self._hear)
        self._text = msgspec.json.encode(nodes).decode()
        self._shows = {subject: frozenset(kinds.split()) for subject, kinds in shows.items()}
        self._began: float | None = None
        self._events: list[Event] = []
        self._passed = 0
        self._news = asyncio.Event()
        self._tried: set[tuple[str, str]] = set()
        self._received: dict[str, list[str]] = {}
        self._control: ControlClient | None = None
        world.network.tap = Wire(self.telling)

    # Before the script starts.

    async def prepare(self, places: Mapping[str, str], cuts: Mapping[str, str]) -> None:
        """Start the topology, and move its intervals to the workers in ``places``.

        ``cuts``: the keys at which computations are split. Both halves stay at the same worker.
        """
        self.world.start("operator", _idle)
        await self.run_as("operator", self._submit())
        for name, worker in places.items():
            if self.telling.owner(name) != worker:
                await self.move(name, worker)
                await self.until("fence", name)
        for name, at in cuts.items():
            interval, key = self._interval(name, b""), at.encode()
            await self.ask(lambda control, interval=interval, key=key: control.split_interval(interval, key))  # type: ignore[misc]
        await asyncio.sleep(3.0)
        self.telling.begin_anew()
        self._began, self._passed = self.world.loop.time(), len(self._events)

    async def _submit(self) -> None:
        code = package(self._text)
        self._control = ControlClient(ADDRESS, deadline=3.0, patience=20.0)
        await self._control.__aenter__()
        await asyncio.sleep(3.0)  # until all workers have registered
        await self._control.upload_package(code.digest, code.data)
        await self._control.submit(assemble(self._text).to_spec(code.reference()), request_id="scenario")

    def topology(self) -> Any:
        """The topology, as a client has it."""
        return assemble(self._text)

    # The lines to show.

    def _hear(self, event: Event) -> None:
        self._events.append(event)
        self._news.set()
        kinds = self._shows.get(event.subject.partition("[")[0], frozenset()) | self._shows.get("", frozenset())
        if self._began is None or event.kind not in kinds:
            return
        if event.kind in _REPEATED:
            # The number of failed attempts depends on their duration, so only the first one is shown.
            before = (event.who, event.text) in self._tried
            self._tried.add((event.who, event.text))
            if before:
                return
        self.lines.append((event.at - self._began, event.who, event.text))

    def act(self, text: str) -> None:
        """Show what the script does."""
        assert self._began is not None
        self.world.history.note(f"* {text}")
        self.lines.append((self.world.loop.time() - self._began, "", text))

    async def until(self, kind: str, subject: str = "", containing: str = "", who: str = "") -> Event:
        """Wait for an event after the last event that the script waited for."""
        deadline = self.world.loop.time() + _PATIENCE
        while True:
            while self._passed < len(self._events):
                event = self._events[self._passed]
                self._passed += 1
                meant = event.kind == kind and subject in ("", event.subject) and who in ("", event.who)
                if meant and containing in event.text:
                    return event
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), deadline - self.world.loop.time())
            except TimeoutError as error:
                raise AssertionError(f"no {kind} of {subject or 'anything'} with {containing!r} comes") from error

    # Faults.

    def pause(self, name: str) -> None:
        """Pause a process, as SIGSTOP does."""
        self.act(f"{person(name)} is stopped (SIGSTOP)")
        self.world.pause(name)

    def resume(self, name: str) -> None:
        """Resume a process, as SIGCONT does."""
        self.act(f"{person(name)} goes on (SIGCONT), and knows of nothing")
        self.world.resume(name)

    def kill(self, name: str) -> None:
        """Kill a process, as SIGKILL does."""
        self.act(f"{person(name)} is killed (SIGKILL)")
        self.world.kill(name)

    def start(self, name: str) -> None:
        """Start a process again."""
        self.act(f"{person(name)} is started again")
        self.world.start(name)

    def set_clock(self, name: str, hours: float) -> None:
        """Change a machine's clock by some hours."""
        self.act(f"the clock of {person(name)} is set {hours:+g} h")
        self.world.processes[name].clock.offset += hours * 3600.0

    def hold(self, service: str, name: str) -> None:
        """Hold back the requests of a process to the store or the coordinator."""
        self.act(f"from now on what {person(name)} asks of the {service} is held up on its way")
        self._remote(service).hold(name)

    def release(self, service: str, name: str) -> None:
        """Let the held requests arrive."""
        self.act(f"what {person(name)} had asked of the {service} arrives there now")
        self._remote(service).release(name)

    def _remote(self, service: str) -> Any:
        return (self.world.store if service == "store" else self.world.coordinator).remote

    def cut(self, sender: str, receiver: str) -> None:
        """Block messages in one direction."""
        self.act(f"nothing gets from {person(sender)} to {person(receiver)} any more")
        self.world.network.cut(sender, receiver)

    def heal(self) -> None:
        """End all partitions."""
        self.act("the network is whole again")
        self.world.network.heal()

    # Clients.

    async def run_as(self, name: str, work: Coroutine[Any, Any, Result]) -> Result:
        """Run work in a client's process, and return its result."""
        result: Result = await self.world.processes[name].spawn(work)
        return result

    def _interval(self, computation: str, key: bytes) -> interval_pb2.IntervalName:
        return interval_pb2.IntervalName(journal=self.telling.journal(computation, key))

    async def ask(self, call: Callable[[ControlClient], Awaitable[Result]]) -> Result:
        """Send a request of the operator to the master."""
        assert self._control is not None
        control = self._control

        async def asked() -> Result:
            return await call(control)

        return await self.run_as("operator", asked())

    async def move(self, computation: str, worker: str, key: bytes = b"", request: str = "") -> None:
        """Move an interval, as the operator."""
        if self._began is not None:
            self.act(f"the operator asks for {computation} to be moved to {person(worker)}")
        name = self._interval(computation, key)
        await self.ask(lambda control: control.move_interval(name, f"{worker}.0", request))

    async def split(self, computation: str, at: str, worker: str) -> None:
        """Split an interval, as the operator; ``worker`` gets the upper half."""
        self.act(f"the operator asks for {computation} to be split at {at!r}, the upper half for {person(worker)}")
        name = self._interval(computation, at.encode())
        await self.ask(lambda control: control.split_interval(name, at.encode(), f"{worker}.0"))

    async def merge(self, computation: str, worker: str) -> None:
        """Merge a computation's first interval with the next one, as the operator."""
        self.act(f"the operator asks for the two intervals of {computation} to be merged, for {person(worker)}")
        name = self._interval(computation, b"")
        await self.ask(lambda control: control.merge_intervals(name, f"{worker}.0"))

    async def reader(self, name: str, stream: str) -> ScenarioReader:
        """Start and open an injector process."""
        self.world.start(name, _idle)
        reader = ScenarioReader(self, name, stream)
        await reader.open()
        return reader

    def subscriber(self, name: str, stream: str, seconds: float = 0.0) -> None:
        """Start a subscriber that reads a stream under a durable cursor, and ACKs each batch after some seconds."""
        self.world.start(name, _subscriber(self, stream, seconds))

    def received(self, stream: str, text: str, offset: int) -> None:
        """Record that a subscriber has read a record."""
        self._received.setdefault(stream, []).append(text)
        self.telling.tell("out", stream, f"reads {text} of {stream}, at offset {offset}")

    def close(self) -> None:
        """Show the records that were read, at the end."""
        for stream, texts in self._received.items():
            self.lines.append((0.0, "", f"in the end, what was read of {stream}: {', '.join(texts)}"))


async def _idle(world: World, process: Process) -> None:
    await asyncio.Event().wait()


def _subscriber(stage: Stage, stream: str, seconds: float) -> Main:
    async def main(world: World, process: Process) -> None:
        while True:
            try:
                async with Subscription(stream, cursor="reader", record_type=Fruit, address=ADDRESS) as subscription:
                    async for batch in subscription:
                        for offset, _, fruit in batch:
                            stage.received(stream, str(fruit), offset)
                        await asyncio.sleep(seconds)
                        await subscription.ack(batch.next_offset)
                        await subscription.flush()
                        stage.telling.tell("read", stream, f"has ACKed {stream} up to offset {batch.next_offset - 1}")
            except (RequestError, TimeoutError):
                await asyncio.sleep(0.5)

    return main


class ScenarioReader:
    """An injector process of a scenario."""

    def __init__(self, stage: Stage, name: str, stream: str) -> None:
        self._stage = stage
        self._name = name
        self._stream = stream
        self._injector: Injector | None = None

    async def open(self) -> None:
        """Open the injector, for the first time or after the process was killed."""
        stage, injector = (
            self._stage,
            Injector(self._stream, address=ADDRESS, process=self._name, topology=self._stage.topology()),
        )
        self._injector = injector
        await stage.run_as(self._name, injector.open())

    async def do(self, call: Callable[[Injector], Awaitable[Result]]) -> Result:
        """Call the injector from its process."""
        assert self._injector is not None
        injector = self._injector

        async def called() -> Result:
            return await call(injector)

        return await self._stage.run_as(self._name, called())

    async def send(self, name: str, t: float, what: str = "", *, position: int | None = None) -> None:
        """Inject a fruit."""

        async def sent(injector: Injector) -> None:
            where = "" if position is None else f", position {position} of its source"
            self._stage.telling.tell("inject", self._stream, f"injects {what or name} (t={t:g}{where})")
            await injector.send(Fruit(name, what), timestamp=stamp(t), position=position)

        await self.do(sent)

    async def batch(self, query: str, batch: int, fruits: Sequence[tuple[str, float]]) -> None:
        """Inject fruits as a batch of a query, under their names as ids, and wait for the ACKs."""

        async def sent(injector: Injector) -> None:
            names = [what for what, _ in fruits]
            text = f"sends batch {batch} of {query}: {', '.join(names)}"
            self._stage.telling.tell("inject", self._stream, text)
            values = [Fruit(what.rpartition(" ")[2], what) for what in names]
            stamps = [stamp(t) for _, t in fruits]
            await injector.send_many(values, stamps, ids=names, batch=BatchOf(query, batch))
            await injector.flush()
            self._stage.telling.tell("flushed", self._stream, "has an ACK for everything")

        await self.do(sent)

    async def idle(self) -> None:
        """Declare the injector idle."""
        self._stage.telling.tell("promise", self._stream, "has nothing to send for now: it is idle", self._name)
        await self.do(lambda injector: injector.idle())

    async def promise(self, t: float) -> None:
        """Advance the injector's watermark: it sends no older records, except late ones."""
        self._stage.telling.tell("promise", self._stream, f"promises: nothing before t={t:g} any more", self._name)
        await self.do(lambda injector: injector.advance(stamp(t)))

    async def flush(self) -> None:
        """Wait until all records are ACKed."""
        await self.do(lambda injector: injector.flush())
        self._stage.telling.tell("flushed", self._stream, "has an ACK for everything", self._name)
