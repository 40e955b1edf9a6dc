"""The clients of the cluster: an operator that submits the topology, injectors, and a subscriber for each sink."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import msgspec

import millwheel as mw
from millwheel.client.control import ControlClient
from millwheel.client.injector import BatchOf, Injector
from millwheel.client.injector.errors import InjectorError
from millwheel.client.subscription import Subscription
from millwheel.model.time import seconds
from millwheel.rpc.failures import RequestError
from simulation.blocks import Item, assemble
from simulation.cluster import MASTERS
from simulation.plan import LETTERS, PlannedRecord, SourceReader, package_of
from simulation.process import Process
from simulation.world import Main, World

_BATCH: Final = 4
"""Records in a batch."""

__all__ = ["ADDRESS", "ClientProgress", "operator", "query_of", "reader", "settled", "subscriber"]

ADDRESS: Final = ",".join(f"{name}:1" for name in MASTERS)
"""The masters' addresses, as clients get them."""


class ClientProgress:
    """What the clients know. It survives their processes, like a file on the users' own disks."""

    def __init__(self) -> None:
        self.submitted = asyncio.Event()
        self.read: dict[tuple[str, str], int] = {}
        """By injector process: its records below this number are known to be ACKed."""
        self.sent: dict[tuple[str, str], int] = {}
        """By injector process: its records from this number on were never sent."""
        self.idled: set[tuple[str, str]] = set()
        """The injector processes that have been idle."""
        self.finished: set[tuple[str, str]] = set()
        self.cancelled = False
        """Whether a topology that comes back is known to be cancelled."""
        self.returned: float | None = None
        """The virtual time since which it is back and the clients of its first incarnation are gone."""
        self.stayed: Counter[int] = Counter()
        """How often a second topology that stays had each record by then."""
        self.committed_batches: dict[tuple[str, str], int] = {}
        """By injector process that is a Spark query: the last batch that its checkpoint has as committed."""
        self.written: set[tuple[str, str]] = set()
        """The injector processes whose files are complete."""
        self.runs: Counter[tuple[str, str]] = Counter()
        """How often each file injector has reached the end of a run."""
        self.sunk: dict[str, dict[int, tuple[int, Item]]] = {}
        """By sink: the record and its timestamp, by offset."""
        self.promised: dict[str, list[tuple[int, int]]] = {}
        """By sink: an offset, and a watermark that bounds all records from this offset on."""
        self.flushed: dict[str, int] = {}
        """By sink: the cursor's ACKs below this offset were reported as durable."""
        self.guests: dict[str, dict[int, tuple[int, Item]]] = {}
        """Like ``sunk``: what guests have read."""
        self.percentile: dict[str, int] = {}
        """By computation: the last reported percentile."""
        self.counts: dict[str, int] = {}
        """By key: the number in the state that was last looked up."""
        self.ended: set[str] = set()
        """The sinks whose end was seen."""
        self.rested: set[str] = set()
        """The sinks whose subscribers have paused for a while."""
        self.pauses = 0
        """Requested pauses that are not known to have ended."""
        self.versions = 0
        """How many new versions were requested."""
        self.updating = 0
        """Requested versions that are not known to exist yet."""
        self.added: bool | None = None
        """Whether the computation that the plan adds exists (None: it never did).

        After its removal it does not come back.
        """
        self.joined: float | None = None
        """The virtual time since which every worker knows of the computation that was added."""
        self.neighbour_steps = 0
        """How many submissions and cancellations of the second topology were made, in turn."""
        self.neighbour_incarnation: dict[str, str] = {}
        """The incarnations of the second topology's computations, from its last submission."""
        self.neighbour_joined: float | None = None
        """The virtual time since which every worker knows of these incarnations."""
        self.first_sent: dict[int, float] = {}
        """The virtual time at which each injected record was sent for the first time."""
        self.news = 0.0
        """The virtual time at which the last record was read from a sink."""
        self.readable = asyncio.Event()
        """Set when a topology that comes back is known to exist.

        Records read from its first incarnation are dropped by then.
        """
        self.replays = 0
        """How many replays and discardings of dead letters were begun."""
        self.replayed = frozenset[int]()
        """The dead letters, by offset, whose records have taken effect by a replay."""
        self.replays_over = asyncio.Event()
        """Set when no replay will follow, and ``replayed`` is known. Until then no injector finishes."""
        self.back = asyncio.Event()
        """Set when ``returned`` is."""
        self.over: float | None = None
        """The virtual time at which the topology was seen to be drained or cancelled."""

    async def there(self) -> None:
        """Wait until the topology exists. If it is cancelled at the moment, wait until it comes back."""
        await self.submitted.wait()
        if self.cancelled:
            await self.back.wait()


def operator(progress: ClientProgress) -> Main:
    """Submit the topology."""

    async def main(world: World, process: Process) -> None:
        package = package_of(world.plan)
        spec = assemble(world.plan.text()).to_spec(package.reference())
        if world.plan.form is not None:
            world.forms[package.digest] = world.plan.form
        async with ControlClient(ADDRESS, patience=20.0) as client:
            while not progress.submitted.is_set():
                try:
                    await client.upload_package(package.digest, package.data)
                    await client.submit(spec, request_id="the only one")
                    progress.submitted.set()
                except RequestError as error:
                    world.history.note(f"not submitted yet: {error}")
                    await asyncio.sleep(1.0)

    return main


def reader(progress: ClientProgress, which: SourceReader) -> Main:
    """Inject a source's records, starting after those that the previous incarnation knew to be ACKed."""
    name = (which.stream, which.process)

    async def main(world: World, process: Process) -> None:
        await progress.there()
        topology = assemble(world.plan.text())
        while name not in progress.finished and progress.over is None:
            try:
                injector = Injector(which.stream, address=ADDRESS, process=which.process, topology=topology)
                async with injector:
                    inject = _inject_batches if which.batched else _inject
                    await inject(world, progress, which, injector)
                    if world.plan.replays:
                        await progress.replays_over.wait()
                    await injector.finish()
                    progress.finished.add(name)
            except RequestError as error:
                world.history.note(f"starts again: {error}")
                if error.reason == "INJECTOR_FINISHED" and progress.read.get(name, 0) == len(which.inputs):
                    progress.finished.add(name)
            except (InjectorError, TimeoutError) as error:
                world.history.note(f"starts again: {type(error).__name__} {error}")
            await asyncio.sleep(3.0 if world.plan.ending else 0.5)

    return main


async def _inject(world: World, progress: ClientProgress, which: SourceReader, injector: Injector) -> None:
    name = (which.stream, which.process)
    pace = max(0.3 * world.plan.span, world.plan.span - which.begins) / len(which.inputs)
    # A record's own id is forgotten when it is a slack behind the watermark. So records that may be repeated must not
    # be behind the watermark.
    slack = next(source["id_slack"] for source in world.plan.sources if source["name"] == which.stream)
    careful = slack < seconds(3600) and not which.by_position
    for number in range(progress.read.get(name, 0), len(which.inputs)):
        # The previous incarnation may have sent records after it was idle. They may be repeated, so the watermark must
        # not pass them.
        if number == which.idle_at and not (careful and name in progress.idled):
            progress.idled.add(name)
            world.history.note("is idle")
            await injector.idle()
            progress.read[name] = number
            await asyncio.sleep(world.chance.uniform(0.0, 3.0))
        progress.sent[name] = max(number + 1, progress.sent.get(name, 0))
        progress.first_sent.setdefault(which.inputs[number].number, world.loop.time())
        await _send(injector, which, which.inputs[number], number)
        if (number + 1) % which.burst:
            continue
        if not careful:
            await injector.advance(which.promises[number])
        if world.chance.random() < 0.3:
            await injector.flush()
            progress.read[name] = number + 1
            if careful and number + 1 == progress.sent[name]:
                await injector.advance(which.promises[number])
        await asyncio.sleep(pace * which.burst * world.chance.uniform(0.0, 2.0))
    await injector.flush()
    progress.read[name] = len(which.inputs)


def query_of(which: SourceReader) -> str:
    """The query whose batches a process sends."""
    return f"{which.stream}-{which.process}"


async def _inject_batches(world: World, progress: ClientProgress, which: SourceReader, injector: Injector) -> None:
    """Send batches as Spark does: a batch is committed when all of it is ACKed.

    Sometimes an old batch is repeated in another order.
    """
    query, pace = query_of(which), world.plan.span / len(which.inputs)
    batches = [which.inputs[start : start + _BATCH] for start in range(0, len(which.inputs), _BATCH)]
    async with ControlClient(ADDRESS, patience=20.0) as client:
        for batch in range(await client.batch_cursor(query) + 1, len(batches)):
            for one in batches[batch]:
                progress.first_sent.setdefault(one.number, world.loop.time())
            await _send_batch(injector, batches[batch], BatchOf(query, batch))
            await injector.advance(which.promises[min(len(which.promises), (batch + 1) * _BATCH) - 1])
            await injector.flush()
            await client.commit_batch(query, batch)
            progress.read[(which.stream, which.process)] = min(len(which.inputs), (batch + 1) * _BATCH)
            if world.chance.random() < 0.3:
                again = world.chance.randint(0, batch)
                world.history.note(f"sends batch {again} again")
                await _send_batch(
                    injector, world.chance.sample(batches[again], len(batches[again])), BatchOf(query, again)
                )
            await asyncio.sleep(pace * _BATCH * world.chance.uniform(0.0, 2.0))
    progress.read[(which.stream, which.process)] = len(which.inputs)


async def _send_batch(injector: Injector, records: list[PlannedRecord], batch: BatchOf) -> None:
    values = [Item([one.number], one.a, one.b, one.late) for one in records]
    ids = [str(one.number) for one in records]
    await injector.send_many(values, [one.timestamp for one in records], ids=ids, batch=batch)


async def _send(injector: Injector, which: SourceReader, record: PlannedRecord, position: int) -> None:
    item = Item([record.number], record.a, record.b, record.late)
    if which.by_position:
        await injector.send(item, timestamp=record.timestamp, position=position)
    else:
        await injector.send(item, timestamp=record.timestamp, id=str(record.number))


def settled(world: World, progress: ClientProgress, stream: str) -> bool:
    """Whether no more records will be read from a sink."""
    calm = world.plan.wide and len(progress.finished) == len(world.plan.readers)
    return stream in progress.ended or progress.over is not None or calm


def subscriber(progress: ClientProgress, stream: str) -> Main:
    """Read a sink to its end, under a durable cursor."""

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        if progress.cancelled:
            await progress.readable.wait()
        await asyncio.sleep(world.plan.readers_late)
        while stream not in progress.ended:
            try:
                await _read(world, progress, stream)
            except (RequestError, TimeoutError) as error:
                world.history.note(f"subscribes again: {error}")
            await asyncio.sleep(0.5)

    return main


_item: Final = msgspec.msgpack.Decoder(Item).decode
_read_letter: Final = msgspec.msgpack.Decoder(mw.DeadLetter).decode


def _letter(blob: bytes) -> Item:
    """The record of a dead letter."""
    return _item(_read_letter(blob).value)


async def _read(world: World, progress: ClientProgress, stream: str) -> None:
    sunk = progress.sunk.setdefault(stream, {})
    subscription = Subscription(
        stream,
        cursor="reader",
        decode=_letter if stream == LETTERS else _item,
        address=ADDRESS,
        until_end=not world.plan.wide,
        watermarks=True,
        patience=20.0,
    )
    async with subscription:
        async for batch in subscription:
            progress.news = world.loop.time() if len(batch) else progress.news
            for offset, timestamp, item in batch:
                if offset < progress.flushed.get(stream, 0):
                    world.violated(f"stream {stream}: offset {offset} comes again after its ACK was durable (G1)")
                if sunk.setdefault(offset, (timestamp, item)) != (timestamp, item):
                    world.violated(f"stream {stream} has two records at offset {offset}")
            progress.promised.setdefault(stream, []).append((batch.next_offset, batch.watermark))
            world.history.note(f"{stream}: {len(batch)} records up to {batch.next_offset}")
            if len(batch) and stream not in progress.rested:
                progress.rested.add(stream)
                await asyncio.sleep(world.plan.readers_rest)
            await subscription.ack(batch.next_offset)
            if world.chance.random() < 0.2:
                await subscription.flush()
                progress.flushed[stream] = batch.next_offset
    progress.ended.add(stream)
