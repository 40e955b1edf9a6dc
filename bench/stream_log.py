"""The speed of a stream log: records per second through its core, and through a host on the embedded store.

Also the milliseconds from a delivery to the subscriber under light load.

Run: python bench/stream_log.py [records in a delivery …]
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from millwheel.embedded.database import EmbeddedDatabase
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.clock import steady_now
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import JournalHead, StateStore
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.log import AckOffset, Fetch, LogConfig, LogCore, Publish, Start, Subscribe, SubscriberEffect
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    AnswerDelivery,
    Appended,
    AppendEntry,
    DeleteEntries,
    DeleteParts,
    Delivery,
    FlushStates,
    Opened,
    PartsWritten,
    Report,
    SendDelivery,
    Started,
    StatesFlushed,
    WriteParts,
)
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.run_queue import RunQueue

RECORDS = 1_000_000
VALUE = b"x" * 100
SENDER = Sender("injector/s/p", 1, None, "injector/s")
CONFIG = LogConfig("s", IncarnationId("log.s.1"), "log.s.1.j1", 1, frozenset({"injector/s"}))


def delivery(number: int, size: int, channel: Any = None) -> Delivery:
    """Batch ``number`` of a source with positions. All but the last few earlier batches are ACKed."""
    first = number * size
    ids = PositionIds("s/p/0", max(0, first - 8 * size), list(range(first, first + size)))
    values = [VALUE] * size
    return Delivery(
        IncarnationId("log.s.1"), "log.s.1.j1", "s", SENDER, ids, [b""] * size, values, [first] * size, number, channel
    )


# Only the core runs: each effect counts as performed at once.


def through_core(size: int, subscribed: bool, depth: int) -> None:
    """Measure while ``depth`` deliveries arrive during each append."""
    core = LogCore(CONFIG)
    core.step(Started(), 1)
    core.step(Opened(JournalHead(1, 0, 0, ()), {}, []), 1)
    core.step(Accepted(MIN_TIMESTAMP), 1)
    reader = object()
    events: deque[Any] = deque()
    if subscribed:
        events += [Subscribe(reader, "c", Start.OLDEST, 100_000), Fetch(reader, 1 << 60)]
    batches = [delivery(number, size) for number in range(RECORDS // size)]
    read = written = 0
    gc.collect()
    started = time.perf_counter()
    for number, batch in enumerate(batches):
        events.append(batch)
        if number % depth:
            continue
        while events:
            for one in core.step(events.popleft(), 2 + number * 100):
                if isinstance(one, AppendEntry):
                    written += len(one.append.entry)
                    events.append(Appended(one.append.commit))
                elif isinstance(one, Publish):
                    read += len(one.values)
                    events.append(AckOffset(reader, one.next))
                elif isinstance(one, FlushStates):
                    events.append(StatesFlushed(one.number))
                elif isinstance(one, WriteParts):
                    events.append(PartsWritten(one.number))
                elif not isinstance(one, AnswerDelivery | Report | DeleteEntries | DeleteParts):
                    raise TypeError(f"nothing performs the effect {one!r:.200}")
    spent = time.perf_counter() - started
    how = "a cursor that ACKs" if subscribed else "no subscriber"
    rate = RECORDS / spent
    print(f"core, {how:<20} {size:>6} records in a delivery, {depth:>2} a commit {rate:>12,.0f} records/s")
    assert not subscribed or read >= RECORDS - depth * size, "the subscriber has everything"
    assert written > RECORDS * len(VALUE) - depth * size * len(VALUE)


# A host on the embedded store, with a subscriber that ACKs.


class _World:
    def send(self, host: CoreHost, send: SendDelivery) -> None:
        raise AssertionError("a log sends nothing")

    def report(self, report: Report) -> None:
        return

    async def accept(self, request: AcceptSequencer) -> int:
        return MIN_TIMESTAMP

    async def sequence_lives(self, sequence: str) -> bool:
        return True

    def lost(self, host: CoreHost, reason: str) -> None:
        raise SystemExit(reason)


class _Run:
    """One host, the deliveries in flight, and the subscriber."""

    def __init__(self, store: StateStore) -> None:
        self.host = CoreHost(
            CONFIG.journal,
            LogCore(CONFIG),
            store,
            _World(),
            RunQueue(asyncio.get_running_loop()).share("t"),
            subscribers=self.got,
            clock=steady_now,
        )
        self.room = asyncio.Semaphore(16)
        self.read = 0
        self.news = asyncio.Event()
        self.host.start()

    def got(self, publish: SubscriberEffect) -> None:
        """Receive a response as the subscriber, and ACK it."""
        if not isinstance(publish, Publish):
            raise SystemExit(f"the log answers {publish!r:.200}")
        self.read += len(publish.values)
        self.host.post(AckOffset(self, publish.next))
        self.host.post(Fetch(self))
        self.news.set()

    def reply(self, token: int, outcome: DeliveryOutcome.ValueType, indexes: Sequence[int], message: str) -> None:
        """Process the log's answer to a delivery."""
        if outcome != DeliveryOutcome.DELIVERY_OUTCOME_ACKED:
            raise SystemExit(f"refused: {message}")
        self.room.release()


async def _with_store(work: Any) -> None:
    with tempfile.TemporaryDirectory() as path:
        async with await EmbeddedDatabase.open(Path(path) / "db") as database:
            await database.store.create_journal(CONFIG.journal)
            run = _Run(database.store)
            await asyncio.sleep(0.2)
            run.host.post(Subscribe(run, "c", Start.OLDEST, 100_000))
            run.host.post(Fetch(run, 4))
            await asyncio.sleep(0.1)
            await work(run)
            await run.host.close()


async def throughput(run: _Run, size: int) -> None:
    """Measure with at most 16 deliveries that are not ACKed."""
    batches = [delivery(number, size, run) for number in range(RECORDS // size)]
    started = time.perf_counter()
    for batch in batches:
        await run.room.acquire()
        run.host.post(batch)
    while run.read < RECORDS:
        run.news.clear()
        await run.news.wait()
    rate = RECORDS / (time.perf_counter() - started)
    print(f"embedded store, read from a cursor {size:>6} records in a delivery {rate:>12,.0f} records/s")


async def latency(run: _Run) -> None:
    """Measure one record every 5 ms, from its delivery to the subscriber."""
    spent = []
    for number in range(600):
        run.news.clear()
        started = time.perf_counter()
        run.host.post(delivery(number, 1, run))
        while run.read <= number:
            run.news.clear()
            await run.news.wait()
        spent.append((time.perf_counter() - started) * 1e3)
        await asyncio.sleep(0.005)
    spent.sort()
    p50, p95, p99 = (spent[int(len(spent) * part)] for part in (0.5, 0.95, 0.99))
    print(f"embedded store, one record every 5 ms: p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f} ms to the subscriber")


def main(sizes: list[int]) -> None:
    """Run each measurement at each size of delivery."""
    for size in sizes:
        for subscribed in (False, True):
            for depth in (1, 8):
                through_core(size, subscribed, depth)
    for size in sizes:
        asyncio.run(_with_store(lambda run, size=size: throughput(run, size)))
    asyncio.run(_with_store(latency))


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [100, 1_000])
