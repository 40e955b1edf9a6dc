"""From topic to topic of Kafka, exactly once, for long: `make kafka-endurance RECORDS=1000000 SECONDS=600 EVERY=10`.

A cluster counts records by key and window. Meanwhile a worker, the broker and the leading master are killed by turns.
A reader of what is committed must find each record counted once, and one result for each window. The sum of the
records' numbers says which ones were counted: one that is lost, and another that counts twice, leave the count right.
The last line of the output is the outcome as JSON. Data and logs are in build/kafka-endurance, and stay there if
something is wrong.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from itertools import count, cycle
from typing import Final

import msgspec
import pytest
import uvloop

from bench.kafka_count import program
from bench.kafka_count.checking import compare, longest_pause
from bench.kafka_count.hits import Hits, Window
from bench.kafka_count.topics import OutputReader, make_topic, result_of, sum_of
from deploy.local.child import ChildProcess
from deploy.local.kafka import KafkaBroker
from examples.demo.showing import say
from tests.connectors.kafka.given import each_committed
from tests.faults.cluster import PATIENCE, Cluster, cluster
from tests.faults.running import BUILD
from tests.house.tree import ROOT
from tests.patience import until
from tests.submitting import submit_copy

RECORDS = int(os.environ.get("MILLWHEEL_RECORDS", "1000000"))
SECONDS = float(os.environ.get("MILLWHEEL_SECONDS", "600"))
"""Over which the records are spread."""
EVERY = float(os.environ.get("MILLWHEEL_EVERY", "10"))
"""Seconds from one kill to the next."""
WORKERS = int(os.environ.get("MILLWHEEL_WORKERS", "2"))
PLACE: Final = BUILD / "kafka-endurance"
KILLED: Final = ("worker", "broker", "leading master")
"""What is killed, by turns."""
PARTITIONS: Final = 4
HITS = Hits(
    RECORDS,
    keys=200,
    per_second=RECORDS / SECONDS,
    window_ms=1_000,
    partitions=PARTITIONS,
    first_ms=int(time.time()) * 1_000,  # of today, so that a broker that is killed knows its producer
)
_CATCH_UP: Final = 300.0 + SECONDS
"""Seconds after the last record in which all results must have come."""
_SETTLE: Final = 10.0
"""Seconds for which results that are there twice may still come, and in which no process is killed any more."""
_LINE_EVERY: Final = 10.0


class Outcome(msgspec.Struct):
    """What is printed. ``records_per_s`` and ``seconds``: from the begin of the feed to the last result.

    ``max_pause_s``: the longest time without a result, from the begin of the feed on.
    """

    records: int
    kills: dict[str, int]
    seconds: float
    records_per_s: float
    max_pause_s: float
    lost: int
    twice: int
    results: int
    results_twice: int


@pytest.mark.long
@pytest.mark.timeout(SECONDS + _CATCH_UP + 600)
def test_each_record_counts_once_from_topic_to_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    with KafkaBroker(PLACE / "kafka", heap_mebibytes=512) as broker:
        for topic in ("hits", "results"):
            make_topic(broker.address, topic, PARTITIONS)
        names = {"BROKER": broker.address, "FROM": "hits", "TO": "results"}
        sizes = {"WINDOW_MS": HITS.window_ms, "OUT_OF_ORDER_MS": HITS.out_of_order_ms}
        for name, value in (names | sizes).items():
            monkeypatch.setenv(f"KAFKA_COUNT_{name}", str(value))
        reader = OutputReader(broker.address, "results", PARTITIONS, HITS.end_ms)
        try:
            began, kills = uvloop.run(endure(broker, reader))
        finally:
            reader.close()
        outcome, wrong = judged(broker, reader, began, kills)
    print(msgspec.json.encode(outcome).decode(), flush=True)
    assert not wrong, f"{'; '.join(wrong)}; logs and data are in {PLACE}"
    shutil.rmtree(PLACE)


async def endure(broker: KafkaBroker, reader: OutputReader) -> tuple[float, Counter[str]]:
    """Count all records, with kills, and return when no more results come: the begin, and the kills by kind."""
    kills: Counter[str] = Counter()
    async with cluster(PLACE, nodes=1, workers=WORKERS, with_links=False) as found:
        await submit_copy(found.daemons.address, program.__file__, "summed", PLACE, PATIENCE)
        await until(found.all_there, PATIENCE, every=0.2)
        with feeding(broker) as feeder:
            began = time.monotonic()
            async with going_on(read(reader)), going_on(show(feeder, reader)):
                async with going_on(kill_by_turns(found, broker, kills)):
                    await until(lambda: not feeder.is_running, SECONDS + _CATCH_UP, every=0.2)
                assert feeder.exit_code == 0, f"the topic could not be filled: {feeder.last_lines(5)}"
                say("all records are fed, and nothing is killed any more")
                await all_windows(reader)
                await asyncio.sleep(_SETTLE)
    return began, kills


@contextmanager
def feeding(broker: KafkaBroker) -> Iterator[ChildProcess]:
    """The process that writes the records, spread over the time."""
    arguments = [broker.address, "hits", msgspec.json.encode(HITS).decode(), str(SECONDS)]
    command = [sys.executable, "-m", "bench.kafka_count.feed", *arguments]
    feeder = ChildProcess(command, PLACE / "logs" / "feed.log", {"PYTHONPATH": str(ROOT)})
    feeder.start()
    try:
        yield feeder
    finally:
        feeder.kill()


@asynccontextmanager
async def going_on(work: AsyncIterator[None]) -> AsyncIterator[None]:
    """Take one step of the work after the other, until the end of the block. An error of it ends the block.

    No step is cut off: a broker that is killed is started again, and a consumer that reads is not closed.
    """
    over = asyncio.Event()

    async def steps() -> None:
        async for _ in work:
            if over.is_set():
                return

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(steps())
        try:
            yield
        finally:
            over.set()


async def read(reader: OutputReader) -> AsyncIterator[None]:
    while True:
        await asyncio.to_thread(reader.poll, 0.2)
        yield


async def show(feeder: ChildProcess, reader: OutputReader) -> AsyncIterator[None]:
    for second in count(1):
        await asyncio.sleep(1)
        if second % _LINE_EVERY == 0:
            say(f"{feeder.last_lines(1) or 'nothing is fed yet'}; {reader.windows:,} results")
        yield


async def kill_by_turns(found: Cluster, broker: KafkaBroker, kills: Counter[str]) -> AsyncIterator[None]:
    due = time.monotonic() + EVERY
    for turn, kind in enumerate(cycle(KILLED)):
        while time.monotonic() < due:
            await asyncio.sleep(0.5)
            yield
        await kill(kind, turn // len(KILLED) % WORKERS + 1, found, broker)
        kills[kind] += 1
        due = max(due + EVERY, time.monotonic())
        yield


async def kill(kind: str, number: int, found: Cluster, broker: KafkaBroker) -> None:
    """SIGKILL a process. The cluster's service manager starts a daemon again. The broker is started here."""
    if kind == "broker":
        say("killing the broker")
        broker.kill()
        await asyncio.to_thread(broker.start)
        return
    name = f"worker {number}" if kind == "worker" else (await found.victim(kind)).name
    # One that is down already would not be killed, and be counted.
    await until(lambda: found.daemons.services.processes[name].is_running, PATIENCE, every=0.2)
    say(f"killing {name}" + ("" if kind == "worker" else ", which leads"))
    found.daemons.kill(name)


async def all_windows(reader: OutputReader) -> None:
    """Return when each window has a result, or when that takes too long. The comparison then says what is missing."""
    wanted = len(await asyncio.to_thread(expected))
    with suppress(TimeoutError):
        await until(lambda: reader.windows >= wanted, _CATCH_UP, every=0.2)


@cache
def expected() -> Counter[Window]:
    return HITS.counts()


def judged(broker: KafkaBroker, reader: OutputReader, began: float, kills: Counter[str]) -> tuple[Outcome, list[str]]:
    """The outcome by what is committed now, read from the begin. And what is wrong, in words."""
    values = [message.value() for message in each_committed("results", broker=broker.address)]
    results = [one for one in map(result_of, values) if one[0][1] < HITS.end_ms]
    found = compare(expected(), results)
    seconds = reader.arrivals[-1][0] - began if reader.arrivals else 0.0
    outcome = Outcome(
        records=RECORDS,
        kills={kind: kills[kind] for kind in KILLED},
        seconds=round(seconds, 1),
        records_per_s=round(RECORDS / seconds, 1) if seconds else 0.0,
        max_pause_s=round(longest_pause([(began, 0), *reader.arrivals]), 2),
        lost=found.lost,
        twice=found.twice,
        results=len(results),
        results_twice=found.results_twice,
    )
    wrong = [] if found.right else [f"results are wrong: {'; '.join(found.examples)}"]
    wrong += wrong_sums(values) + not_killed(kills)
    if (strange := not_once(broker)) > 0:
        wrong.append(f"{strange:,} records are not once in the topic that was read: Kafka or the producer was wrong")
    return outcome, wrong


def wrong_sums(values: Iterable[bytes | None]) -> list[str]:
    """What is wrong with the sums of the results, in words: other records were counted than those of the window."""
    found = compare(HITS.sums(), [one for one in map(sum_of, values) if one[0][1] < HITS.end_ms])
    return [] if found.right else [f"other records were counted; as sums of their numbers: {'; '.join(found.examples)}"]


def not_killed(kills: Counter[str]) -> list[str]:
    """What was never killed, in words: such a run shows nothing about it."""
    return [f"no {kind} was killed: let the run be longer (SECONDS=)" for kind in KILLED if not kills[kind]]


def not_once(broker: KafkaBroker) -> int:
    """How many records are not exactly once in the topic that was fed."""
    times = Counter(_hit(message.value() or b"").number for message in each_committed("hits", broker=broker.address))
    return HITS.total - sum(1 for seen in times.values() if seen == 1)


_hit = msgspec.json.Decoder(program.Hit).decode
