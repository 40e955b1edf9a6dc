"""A fork beside its original: both take each record once, and neither notices the other (G1, 6.1, 6.2)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from millwheel.client.injector import BatchOf, Injector
from millwheel.client.subscription import Subscription
from millwheel.injectors.batches import commit_batch, draw_sequencer, finish_task, last_batch, open_task
from millwheel.rpc.v1 import control_pb2, control_pb2_grpc
from millwheel.snapshots.chunks import read_file
from millwheel.snapshots.location import SnapshotLocation
from millwheel.snapshots.manifest import all_files, read_manifest
from tests.patience import patience, until
from tests.snapshots import shop, words
from tests.snapshots.loading import STEP, accounts, expected, expected_accounts, sell, totals
from tests.snapshots.test_restored import ACKED, snapshot
from tests.snapshots.words import Count, Word
from tests.submitting import submit_copy
from tests.system.server import WAIT, Server, run_cli

ORDERS = 3_000
EACH = 40
"""Words of each way in before the snapshot, and as many after it."""
WORDS = Path(words.__file__).read_text()
TEXTS = ("cat", "dog", "owl")


def numbers(way: int, first: int, end: int) -> list[int]:
    """The numbers of words ``first`` to below ``end`` of a way in. No two ways have a number in common."""
    return [way * 1_000_000 + number for number in range(first, end)]


def word(number: int) -> Word:
    return Word(TEXTS[number % len(TEXTS)], number)


@dataclass(frozen=True)
class Feed:
    """Feeds one topology from the same sources as any other feed: by positions, ids, batches and a file."""

    server: Server
    name: str
    folder: Path
    process: str = "spark"
    patience: float = 30.0

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def stream(self) -> str:
        return f"{self.name}/texts"

    @property
    def query(self) -> str:
        return f"load/{self.stream}"

    async def send(self, first: int, end: int) -> None:
        """Send words ``first`` to below ``end`` of each way in, also those that were sent before."""
        await self._send("p", numbers(1, first, end), by_ids=False)
        await self._send("q", numbers(2, first, end), by_ids=True)
        for batch in range(first // EACH, end // EACH):
            await self._batch(batch)
        await self._file(end)

    async def _send(self, process: str, sent: Sequence[int], *, by_ids: bool) -> None:
        async with Injector(self.stream, address=self.address, process=process, source="s") as injector:
            await injector.send_many(
                [word(one) for one in sent],
                [1 + one for one in sent],
                ids=[f"id-{one}" for one in sent] if by_ids else None,
                positions=None if by_ids else sent,
            )

    async def _batch(self, batch: int) -> None:
        """What a Spark job does for one batch. The batch is repeated though it may be committed."""
        sequencer = await draw_sequencer(self)
        sent = numbers(3, batch * EACH, (batch + 1) * EACH)
        task = await open_task(self, sequencer)
        await task.send_many(
            [word(one) for one in sent],
            [1 + one for one in sent],
            ids=[str(one) for one in range(EACH)],
            batch=BatchOf(self.query, batch),
        )
        await finish_task(task)
        await task.close()
        await commit_batch(self, BatchOf(self.query, batch), None)

    async def _file(self, end: int) -> None:
        path = self.folder / "words.jsonl"
        path.write_bytes(b"".join(msgspec.json.encode(word(one)) + b"\n" for one in numbers(4, 0, end)))
        done = await run_cli(
            self.address, "inject", "file", self.stream, str(path), "--process", "f", timeout=patience(60)
        )
        assert done.code == 0, done.err


async def counts(address: str, name: str, expected: int) -> list[Count]:
    """All results: no more than ``expected`` come."""
    found: list[Count] = []
    subscription = Subscription(f"{name}/counts", cursor="all", record_type=Count, address=address)
    async with asyncio.timeout(patience(60)), subscription as reader:
        async for batch in reader:
            found += batch.values
            if len(found) >= expected:
                break
    return found


def check(found: Iterable[Count], end: int) -> None:
    """Each word of all ways took effect once."""
    taken = [one for way in (1, 2, 3, 4) for one in numbers(way, 0, end)]
    for text in TEXTS:
        own = [one for one in taken if word(one).text == text]
        of_text = [one for one in found if one.text == text]
        assert [one.times for one in of_text] == list(range(1, len(own) + 1))
        assert of_text[-1].sum == sum(own)


async def describe(server: Server, name: str) -> dict[str, Any]:
    done = await run_cli(server.address, "topology", "describe", name, "-o", "json")
    assert done.code == 0, done.err
    described: dict[str, Any] = json.loads(done.out)
    return described


async def stored(place: str, name: str) -> AsyncIterator[bytes]:
    """All that the journals and rows of a snapshot have."""
    folder = SnapshotLocation(place).folder(name)
    manifest = await read_manifest(folder)
    for file in all_files(manifest):
        if not file.path.startswith("package-"):
            yield await read_file(folder, file)


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.timeout(240)
async def test_original_and_fork_take_each_record_once(tmp_path: Path) -> None:
    place = str(tmp_path / "backups")
    async with Server(tmp_path / "db", tmp_path / "log") as server:
        await submit_copy(server.address, words.__file__, "words", tmp_path)
        original, fork = Feed(server, "words", tmp_path), Feed(server, "next", tmp_path)
        await original.send(0, EACH)
        await snapshot(server, "create", "words", "--to", place, "--name", "s")
        await original.send(EACH, 2 * EACH)
        restored = await snapshot(server, "restore", place, "s", "--as", "next")
        assert (restored["name"], restored["state"]) == ("next", "running")
        assert [await last_batch(one, one.query) for one in (original, fork)] == [1, 0], "each has its own cursor"
        for one in (fork, original):
            await one.send(0, 2 * EACH)
        for one in (original, fork):
            check(await counts(server.address, one.name, 8 * EACH), 2 * EACH)
        assert (await describe(server, "next"))["fork"]["topology"] == "words"
        assert (await describe(server, "words"))["fork"] is None
        await snapshot(server, "create", "next", "--to", place, "--name", "again")
        blobs = [blob async for blob in stored(place, "again")]
        assert any(b"next/texts" in blob for blob in blobs)
        assert not any(b"words/" in blob for blob in blobs), "no name in what a fork stores is the original's"
    async with Server(tmp_path / "b", tmp_path / "b.log") as second:
        await snapshot(second, "restore", place, "again", "--as", "third")
        await Feed(second, "third", tmp_path).send(0, 3 * EACH)
        check(await counts(second.address, "third", 12 * EACH), 3 * EACH)
        assert (await describe(second, "third"))["fork"]["topology"] == "next"


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.timeout(240)
async def test_a_fork_has_its_own_life(tmp_path: Path) -> None:
    """Its results are those of the original, which ran on meanwhile. It ends, and the original stays."""
    place, sent = str(tmp_path / "backups"), [0]
    async with Server(tmp_path / "db", tmp_path / "log", intervals=2) as server:
        await submit_copy(server.address, shop.__file__, "shop", tmp_path)
        selling = asyncio.create_task(sell(server.address, 0, ORDERS, lambda count: sent.__setitem__(0, count), 0.02))
        await totals(server.address, "reader", ACKED)
        await until(lambda: sent[0] > ORDERS // 3, patience(60))
        checkpoint = sent[0] // STEP * STEP
        await snapshot(server, "create", "shop", "--to", place, "--name", "s")
        for name, why in (("shop", "is running already"), ("no name", "has 1 problem")):
            done = await run_cli(server.address, "snapshot", "restore", place, "s", "--as", name)
            assert (done.code != 0, why in done.err) == (True, True), done.err
        await snapshot(server, "restore", place, "s", "--as", "next", "--paused")
        assert (await describe(server, "next"))["state"] == "paused"
        done = await run_cli(server.address, "topology", "resume", "next")
        assert done.code == 0, done.err
        await sell(server.address, checkpoint, ORDERS, lambda count: None, name="next")
        await selling
        results = [await totals(server.address, "all", name=name) for name in ("shop", "next")]
        assert Counter(results[1]) == Counter(results[0]) == expected(ORDERS)
        for name in ("shop", "next"):
            assert set(await accounts(server.address, name)) == expected_accounts(ORDERS)
        for name, whole in zip(("shop", "next"), results, strict=True):
            assert await totals(server.address, "reader", name=name) == whole[ACKED:], "each has its own cursor"
        done = await run_cli(server.address, "topology", "cancel", "next", "--yes")
        assert done.code == 0, done.err
        assert (await describe(server, "shop"))["state"] == "running"
        assert await totals(server.address, "another") == results[0]


async def refused_to_old_clients(address: str, stream: str) -> None:
    """A client of a version from before forks, which does not say that it knows them, gets no routing."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = control_pb2_grpc.RoutingServiceStub(channel).WatchRouting(control_pb2.WatchRoutingRequest(stream=stream))
        with pytest.raises(grpc.aio.AioRpcError, match="is a fork, and this client is of a version from before forks"):
            await call.read()


@pytest.mark.paper(section="4.1")
@pytest.mark.timeout(240)
async def test_a_fork_is_updated_under_its_own_name(tmp_path: Path) -> None:
    place, newer = str(tmp_path / "backups"), tmp_path / "newer.py"
    newer.write_text(WORDS.replace("record.value.number)", "-record.value.number)"))
    async with Server(tmp_path / "db", tmp_path / "log") as server:
        await submit_copy(server.address, words.__file__, "words", tmp_path)
        await snapshot(server, "create", "words", "--to", place, "--name", "s")
        await snapshot(server, "restore", place, "s", "--as", "next")
        for command, *options in (("validate", "--update"), ("update", "--yes", *WAIT)):
            done = await run_cli(server.address, "topology", command, f"{newer}:words", "--as", "next", *options)
            assert done.code == 0, done.err
        await refused_to_old_clients(server.address, "next/texts")
        found = []
        for position in range(2):
            for name in ("words", "next"):
                async with Injector(f"{name}/texts", address=server.address, process="p") as injector:
                    await injector.send(Word("cat", 5), timestamp=1, position=position)
                found += (await counts(server.address, name, position + 1))[-1:]
            done = await run_cli(server.address, "topology", "rollback", "next", "--yes", *WAIT)
            assert done.code == 0, done.err
        assert [one.sum for one in found] == [5, -5, 10, 0], "the update is the fork's, and so is its rollback"
        done = await run_cli(server.address, "topology", "describe", "next")
        assert "a fork of words, from snapshot s, taken 20" in done.out
        assert (await describe(server, "words"))["version"] == 1


READER = WORDS.replace('Topology("words")', 'Topology("reader")').replace('source("texts"', 'source("own"')
READER_INPUTS = 'inputs={"texts": mw.key("text")'


def reader(*, reads: bool) -> str:
    """A topology that counts the words of its own stream, and perhaps those of ``next``."""
    more = 'words.external("next/texts", Word)\n' if reads else ""
    also = ', "next/texts": mw.key("text")' if reads else ""
    changed = READER.replace(READER_INPUTS, f'inputs={{"own": mw.key("text"){also}')
    assert changed != READER
    return changed.replace("words.add(", f"{more}words.add(", 1)


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.timeout(240)
async def test_a_reader_of_an_earlier_topology_reads_the_fork(tmp_path: Path) -> None:
    """It has the positions of that topology's records. The fork's records have the same ones, and are others."""
    place, server = str(tmp_path / "backups"), Server(tmp_path / "db", tmp_path / "log")
    programs = {
        "both": reader(reads=True),
        "own": reader(reads=False),
        "next": WORDS.replace('Topology("words")', 'Topology("next")'),
    }
    for name, program in programs.items():
        (tmp_path / f"{name}.py").write_text(program)

    async def run(*command: str) -> None:
        done = await run_cli(server.address, "topology", *command, timeout=patience(60))
        assert done.code == 0, done.err

    async def send(stream: str, first: int, count: int) -> None:
        async with Injector(stream, address=server.address, process="p", source="s") as injector:
            sent = range(first, first + count)
            await injector.send_many(
                [Word("cat", one) for one in sent], [1 + one for one in sent], positions=range(count)
            )

    async with server:
        await submit_copy(server.address, words.__file__, "words", tmp_path)
        await send("words/texts", 900, 5)
        await snapshot(server, "create", "words", "--to", place, "--name", "s")
        await run("submit", f"{tmp_path / 'next.py'}:words", *WAIT)
        await run("submit", f"{tmp_path / 'both.py'}:words", *WAIT)
        await send("next/texts", 100, 10)
        await run("update", f"{tmp_path / 'own.py'}:words", "--yes", *WAIT)
        await run("cancel", "next", "--yes")
        await snapshot(server, "restore", place, "s", "--as", "next")
        await run("update", f"{tmp_path / 'both.py'}:words", "--yes", *WAIT)
        await send("next/texts", 900, 10)
        found = await counts(server.address, "reader", 20)
        assert [one.times for one in found] == list(range(1, 21))
        assert found[-1].sum == sum(range(100, 110)) + sum(range(900, 910))
        assert [one.times for one in await counts(server.address, "next", 10)] == list(range(1, 11))
