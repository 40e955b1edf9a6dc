"""The driver over loopback gRPC, with workers that refuse, move, split and die (5.2, 6.1.1)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import msgspec
import pytest

from millwheel.client.injector import Injector, InjectorError, InjectorSettings, InjectorSupersededError, Limits
from millwheel.client.injector.ids import IdHasher
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.sdk.errors import UsageError
from tests.injectors.inside import session_of
from tests.injectors.loopback import Cluster, cluster
from tests.injectors.receivers import Consumer
from tests.patience import patience, until

QUICK = Limits(batch_records=50, window_records=2_000, retry_first=2_000, retry_last=50_000, resend_after=2_000_000)
SETTINGS = InjectorSettings(patience=patience(10), limits=QUICK)
RECORDS = 3_000


def values(start: int, end: int) -> list[dict[str, Any]]:
    return [{"k": "abcdefgh"[number % 8], "n": number} for number in range(start, end)]


@asynccontextmanager
async def trouble(of: Cluster, chance: Random) -> AsyncIterator[None]:
    """Cause splits, moves and deaths during the block. Then end all faults."""
    ended = asyncio.Event()
    task = asyncio.create_task(_make_trouble(of, chance, ended))
    try:
        yield
    finally:
        ended.set()
        await task
        for worker in of.workers:
            worker.calm = True
        of.changed()


async def _make_trouble(of: Cluster, chance: Random, ended: asyncio.Event) -> None:
    while not ended.is_set():
        await asyncio.sleep(chance.uniform(0.005, 0.03))
        consumer = of.consumers[chance.choice("xy")]
        journal = chance.choice(list(consumer.receivers))
        what = chance.randrange(4)
        if what == 0:
            consumer.move(journal, chance.choice(of.workers).address)
        elif what == 1 and len(consumer.receivers) < 5:
            consumer.halve(journal, chance.choice([b"b", b"d", b"f"]), chance.choice(of.workers).address)
        elif what == 2:
            worker = chance.choice(of.workers)
            await worker.die()
            await asyncio.sleep(0.01)
            await worker.start()
        if chance.random() < 0.7:
            of.changed()


def check_once(of: Cluster, count: int) -> None:
    for consumer in of.consumers.values():
        took = Counter(row[2] for row in consumer.committed())
        assert (len(took), max(took.values())) == (count, 1), "G1: a record took effect never, or twice"


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("kind", ["drawn", "positions", "ids"])
async def test_every_record_takes_effect_once_through_worker_failures(kind: str) -> None:
    chance = Random(kind)
    async with cluster(7) as made, Injector("s", address=made.address, settings=SETTINGS) as injector:
        async with trouble(made, chance):
            at = 0
            while at < RECORDS:
                end = min(RECORDS, at + chance.choice([1, 3, 40, 200]))
                named: dict[str, Any] = {}
                if kind == "positions":
                    named = {"positions": range(at, end), "partition": "0"}
                elif kind == "ids":
                    named = {"ids": range(at, end)}
                await injector.send_many(values(at, end), list(range(1_000 + at, 1_000 + end)), **named)
                at = end
                await injector.advance(1_000 + at)
                assert injector.unacked <= QUICK.window_records
                await asyncio.sleep(0.002)
        await asyncio.wait_for(injector.finish(), patience(20))
        assert injector.watermark == MAX_TIMESTAMP
        check_once(made, RECORDS)


@pytest.mark.guarantee("G1", section="5.2")
async def test_a_source_restarted_where_it_was_acked_repeats_nothing() -> None:
    chance = Random(3)
    async with cluster(8) as made:
        checkpoint, sent = 0, 0
        async with trouble(made, chance):
            for _ in range(6):
                injector = Injector("s", address=made.address, settings=SETTINGS)
                await injector.open()
                sent = max(sent, min(RECORDS, checkpoint + 600))
                positions = range(checkpoint, sent)
                await injector.send_many(values(checkpoint, sent), [5] * len(positions), positions=positions)
                await asyncio.sleep(chance.uniform(0, 0.05))
                known = injector.acknowledged()
                assert known is not None
                checkpoint = known
                await injector.close()
        async with Injector("s", address=made.address, settings=SETTINGS) as last:
            await last.send_many(values(checkpoint, sent), [5] * (sent - checkpoint), positions=range(checkpoint, sent))
        check_once(made, sent)


@pytest.mark.guarantee("G1", section="6.1.1")
async def test_ids_are_hashed_within_the_name_of_the_routing() -> None:
    """The stream of a fork. If one with other hashes comes under its name, nothing is sent to that one's consumers."""
    async with cluster(4, workers=1) as made:
        made.workers[0].calm, made.id_stream = True, "original"
        async with Injector("s", address=made.address, source="a", settings=SETTINGS) as injector:
            await injector.send(values(0, 1)[0], timestamp=5, id="first")
            await injector.flush()
            made.id_stream = ""
            made.changed()
            core = session_of(injector).core
            await until(lambda: core.failed or (core.routing and core.routing.revision == made.revision), patience(10))
            with pytest.raises(InjectorError, match="records have other ids: open a new injector"):
                await injector.send(values(1, 2)[0], timestamp=5, id="second")
            with suppress(InjectorError):
                await injector.close()
        for consumer in made.consumers.values():
            assert [row[0] for row in consumer.committed()] == IdHasher("original", "a").hash_all(["first"])


async def test_a_lone_record_goes_out_at_once_and_a_crowd_in_company() -> None:
    hour = InjectorSettings(limits=Limits(linger=3_600_000_000))
    async with cluster(1, workers=1) as made, Injector("s", address=made.address, settings=hour) as injector:
        worker = made.workers[0]
        worker.calm = True
        for number in range(30):
            await injector.send(values(number, number + 1)[0], timestamp=5)
            await asyncio.wait_for(injector.flush(), patience(10))
    async with cluster(1, workers=1) as made, Injector("s", address=made.address) as injector:
        worker = made.workers[0]
        worker.calm = True
        await injector.send_many(values(100, 5_100), [5] * 5_000)
        await injector.flush()
        assert len(worker.batches) < 20


@pytest.mark.guarantee("G13")
async def test_sending_waits_while_no_worker_takes_records() -> None:
    async with cluster(1) as made:
        for consumer in made.consumers.values():
            consumer.move(f"{consumer.name}.j1", "")
        async with Injector("s", address=made.address, settings=SETTINGS) as injector:
            waiting = asyncio.create_task(injector.send_many(values(0, 5_000), [5] * 5_000))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            assert 0 < injector.unacked <= QUICK.window_records
            for consumer in made.consumers.values():
                consumer.move(f"{consumer.name}.j1", made.workers[0].address)
            made.changed()
            await asyncio.wait_for(waiting, patience(10))


@pytest.mark.guarantee("G3", section="fig. 12")
async def test_a_receiver_that_knows_a_successor_ends_the_sender() -> None:
    async with cluster(1) as made:
        for worker in made.workers:
            worker.calm = True
        first = Injector("s", address=made.address, settings=SETTINGS)
        await first.open()
        async with Injector("s", address=made.address, settings=SETTINGS) as second:
            await second.send(values(0, 1)[0], timestamp=5)
            await second.flush()
            with pytest.raises(InjectorSupersededError):
                await send_and_flush(first)
        await first.close()


async def send_and_flush(injector: Injector) -> None:
    await injector.send(values(1, 2)[0], timestamp=5)
    await injector.flush()


async def test_leaving_the_block_flushes_unless_there_was_an_error() -> None:
    async with cluster(1) as made:
        async with Injector("s", address=made.address, process="a") as injector:
            await injector.send_many(values(0, 100), [5] * 100)
        check_once(made, 100)
        for consumer in made.consumers.values():
            consumer.move(f"{consumer.name}.j1", "")
        made.changed()
        with pytest.raises(ZeroDivisionError):
            await fail_within(made)


async def fail_within(made: Cluster) -> None:
    async with Injector("s", address=made.address, process="b") as injector:
        await injector.send_many(values(0, 100), [5] * 100)
        raise ZeroDivisionError


async def test_a_link_that_connects_during_closing_sends_nothing() -> None:
    """Regression: the link looked for a connection that was closed already, and raised a KeyError."""
    async with cluster(1, workers=1) as made:
        (one,) = made.workers
        await one.die()
        injector = Injector("s", address=made.address, process="a")
        with suppress(ZeroDivisionError):
            async with injector:
                await injector.send_many(values(0, 10), [5] * 10)
                raise ZeroDivisionError
        session_of(injector).connected(one.address)
        await one.start()


async def test_what_is_missing_for_a_start_is_named() -> None:
    settings = InjectorSettings(patience=0.3)
    async with cluster(1) as made:
        made.mute = True
        with pytest.raises(InjectorError, match=r"the routing of stream 't/s' did not come within 0\.3 s"):
            await Injector("t/s", address=made.address, settings=settings).open()
        made.authority = ""
        with pytest.raises(InjectorError, match="no low watermark authority serves stream 't/s'"):
            await Injector("t/s", address=made.address, settings=settings).open()


@pytest.mark.paper(section="6.1.1")
async def test_a_restarted_worker_gets_its_unacked_records_at_once() -> None:
    async with cluster(1, workers=1) as made, Injector("s", address=made.address) as injector:
        worker = made.workers[0]
        worker.calm = True
        for consumer in made.consumers.values():
            consumer.hold = True
        await injector.send_many(values(0, 500), [5] * 500)
        await until(lambda: sum(worker.batches) >= 1_000)
        await worker.die()
        for consumer in made.consumers.values():
            consumer.hold = False
        await worker.start()
        await asyncio.wait_for(injector.flush(), patience(5))
        check_once(made, 500)


@pytest.mark.guarantee("G7", section="5.2")
async def test_a_process_wakes_before_anything_of_it_is_sent() -> None:
    async with cluster(1, workers=1) as made:
        made.workers[0].calm = True
        async with (
            Injector("s", address=made.address, process="a") as sleeper,
            Injector("s", address=made.address, process="b") as other,
        ):
            await other.advance(1_000)
            await sleeper.idle()
            made.watermarks.accepting.clear()
            waking = [asyncio.create_task(sleeper.send(value, timestamp=2_000)) for value in values(0, 5)]
            waking.append(asyncio.create_task(sleeper.send_many(values(5, 9), [2_000] * 4)))
            waking.append(asyncio.create_task(sleeper.advance(1_500)))
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in waking)
            assert made.workers[0].batches == []
            made.watermarks.accepting.set()
            await asyncio.gather(*waking)
            await sleeper.flush()
            assert sleeper.watermark >= 1_000
        check_once(made, 9)


@pytest.mark.guarantee("G7", section="5.2")
async def test_a_process_begins_where_it_was_or_where_the_others_are() -> None:
    async with cluster(1) as made:
        async with Injector("s", address=made.address, process="a") as first:
            await first.advance(5_000)
        async with Injector("s", address=made.address, process="a") as again:
            assert again.watermark == 5_000
            async with Injector("s", address=made.address, process="b") as newcomer:
                assert newcomer.watermark == 5_000


@pytest.mark.guarantee("G8", section="7.2")
async def test_an_authority_that_moves_before_it_has_answered_is_found() -> None:
    """An opening injector follows the authority to its new address, well before its patience (10 s) ends."""
    async with cluster(1) as made:
        there, made.authority = made.authority, "127.0.0.1:1"
        injector = Injector("s", address=made.address, settings=SETTINGS)
        opening = asyncio.create_task(injector.open())
        await until(lambda: made.sequencer, patience(5))
        await asyncio.sleep(0.1)
        assert not opening.done()
        made.authority = there
        await asyncio.wait_for(opening, patience(5))
        await injector.close()


@pytest.mark.guarantee("G8", section="5.2")
async def test_the_end_is_known_to_the_authority_when_finish_returns() -> None:
    async with cluster(1) as made, Injector("s", address=made.address) as injector:
        made.watermarks.accepting.clear()
        finishing = asyncio.create_task(injector.finish())
        await asyncio.sleep(0.05)
        assert not finishing.done()
        made.watermarks.accepting.set()
        await finishing


@pytest.mark.guarantee("G3", section="fig. 12")
async def test_a_process_without_records_is_notified_of_its_successor() -> None:
    async with cluster(1) as made:
        first = Injector("s", address=made.address)
        await first.open()
        async with Injector("s", address=made.address):
            with pytest.raises(InjectorSupersededError, match="authority refused sequencer 1"):
                await keep_advancing(first)
        await first.close()


async def keep_advancing(injector: Injector) -> None:
    for watermark in range(500):
        await injector.advance(watermark)
        await asyncio.sleep(0.005)


async def test_records_sent_one_by_one_go_in_the_order_of_all_others() -> None:
    async with cluster(1, workers=1) as made, Injector("s", address=made.address) as injector:
        made.workers[0].calm = True
        for start in range(0, 1_200, 6):
            for number in range(start, start + 4):
                await injector.send(values(number, number + 1)[0], timestamp=5, position=number, partition="p")
            await injector.send_many(
                values(start + 4, start + 6), [5, 5], positions=[start + 4, start + 5], partition="p"
            )
            await injector.send({"k": "x", "n": f"drawn {start}"}, timestamp=5)
            await injector.send({"k": "x", "n": f"named {start}"}, timestamp=5, id=start)
        assert injector.acknowledged("p") is not None
        with pytest.raises(UsageError, match="must rise"):
            await injector.send(values(0, 1)[0], timestamp=5, position=1_199, partition="p")
        await injector.send(values(0, 1)[0], timestamp=5, position=5_000, partition="p")
        with pytest.raises(UsageError, match="must rise"):
            await injector.send(values(0, 1)[0], timestamp=5, position=5_000, partition="p")
        with pytest.raises(UsageError, match="infinity"):
            await injector.send(values(0, 1)[0], timestamp=MAX_TIMESTAMP)
        await injector.flush()
        assert injector.acknowledged("p") == 5_001
        rows = made.consumers["x"].committed()
        assert len(rows) == 1_601


async def test_a_consumer_that_joins_finds_no_record_without_its_key() -> None:
    async with cluster(1, workers=1) as made, Injector("s", address=made.address) as injector:
        made.workers[0].calm = True
        for number in range(2_000):
            await injector.send(values(number, number + 1)[0], timestamp=5)
            if number == 700:
                made.consumers["z"] = Consumer("z", made.workers[0].address)
                made.changed()
            if number % 50 == 0:
                await asyncio.sleep(0.002)
        await injector.flush()
        got = sorted(msgspec.msgpack.decode(row[2])["n"] for row in made.consumers.pop("z").committed())
        assert got == list(range(got[0], 2_000))
        check_once(made, 2_000)
