"""Damaged values are reported, and neither served nor overwritten. All other work continues (docs/decisions/0018)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from millwheel.model import catalog_keys as keys
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1.interval_pb2 import IntervalName
from millwheel.server.dev_server import DevServer, DevSettings, running
from millwheel.store import layout
from millwheel.store.directory import DatabaseDirectory
from millwheel.store.rocks import Rocks, RowBatch
from millwheel.worker.process.metrics import WorkerCollector
from tests.patience import patience
from tests.system import words as program
from tests.system.server import run_cli
from tests.system.speaking import SOURCE
from tests.system.words import Seen, Word

WORDS = SOURCE.replace("dead_letter(after=1)", "retry()")
TWIN = (
    WORDS.replace('"spoken"', '"twin-spoken"').replace('"seen"', '"twin-seen"').replace("seen=", '"twin-seen"=')
    .replace('"words"', '"twin"').replace("words = ", "twin = ").replace("words.", "twin.")
)  # fmt: skip

twin = mw.Topology("twin")
twin.source("twin-spoken", Word)
twin.add(program.Count, inputs={"twin-spoken": mw.key("text")}, outputs={"twin-seen": Seen})
TOPOLOGIES = {"words": program.words, "twin": twin}


class Stored:
    """The rows of a database that no process has open."""

    def __init__(self, path: Path) -> None:
        self._directory = DatabaseDirectory(path)
        self.rocks = Rocks(self._directory)

    def __enter__(self) -> Stored:
        return self

    def __exit__(self, *_: object) -> None:
        self.rocks.close()
        self._directory.release()

    def last(self, start: bytes, *, state: bool = False) -> bytes:
        """The last key that begins with ``start``."""
        return self.rocks.scan(start, layout.past(start), state=state)[-1][0]

    def get(self, key: bytes, *, state: bool = False) -> bytes:
        (value,) = self.rocks.get([key], state=state)
        assert value is not None
        return value

    def put(self, key: bytes, value: bytes, *, state: bool = False) -> None:
        batch = RowBatch(self.rocks)
        if state:
            batch.put(key, value, self.rocks.state_family)
        else:
            batch.put(key, value)
        self.rocks.write(batch)

    def flip(self, key: bytes, *, state: bool = False) -> bytes:
        """Damage a value. Returns the former one."""
        value = self.get(key, state=state)
        self.put(key, value[:-1] + bytes((value[-1] ^ 4,)), state=state)
        return value


async def speak(server: DevServer, name: str, first: int, *spoken: str, wait: float = patience(20)) -> bool:
    """Send words to a topology. Returns whether all were ACKed within ``wait`` seconds."""
    stream = "spoken" if name == "words" else "twin-spoken"
    injector = Injector(stream, address=server.address, process="p", topology=TOPOLOGIES[name])
    try:
        async with asyncio.timeout(wait), injector:
            for number, text in enumerate(spoken, first):
                await injector.send(Word(text), timestamp=number + 1, position=number)
            await injector.flush()
    except TimeoutError:
        return False
    return True


async def speak_slowly(server: DevServer, name: str) -> None:
    """Make enough commits for a truncation of the journal."""
    stream = "spoken" if name == "words" else "twin-spoken"
    async with Injector(stream, address=server.address, process="slow", topology=TOPOLOGIES[name]) as injector:
        for number in range(70):
            await injector.send(Word("c"), timestamp=number + 1, position=number)
            await injector.flush()


async def read(server: DevServer, name: str, count: int) -> list[Seen]:
    """The first ``count`` records that a topology has produced of "a" and "b", in an order of their own."""
    found: list[Seen] = []
    stream = "seen" if name == "words" else "twin-seen"
    async with (
        asyncio.timeout(patience(20)),
        Subscription(stream, cursor="c", record_type=Seen, address=server.address) as subscription,
    ):
        async for batch in subscription:
            found += [seen for seen in batch.values if seen.text != "c"]
            if len(found) >= count:
                break
    return sorted(found, key=lambda seen: (seen.text, seen.times))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topologies of the same kind, which have counted one "a" and one "b" each, their journals cut short."""
    place = tmp_path_factory.mktemp("quarantine")

    async def make() -> None:
        async with running(DevSettings(place / "db", port=0)) as server:
            for name, source in (("words", WORDS), ("twin", TWIN)):
                code = place / f"quarantined_{name}.py"
                code.write_text(source)
                submitted = await run_cli(server.address, "topology", "submit", f"{code}:{name}")
                assert submitted.code == 0, submitted.err
                assert await speak(server, name, 0, "a", "b")
                await read(server, name, 2)
                await speak_slowly(server, name)
            for hosted in list(server.worker.hosts.hosted.values()):
                if not hosted.built.log_of:
                    await hosted.host.prepare_release()

    asyncio.run(make())
    return place / "db"


@pytest.fixture
def path(database: Path, tmp_path: Path) -> Path:
    """A copy of the database."""
    return Path(shutil.copytree(database, tmp_path / "db"))


async def problems(server: DevServer, part: str) -> str:
    """The cluster's problems, once one of them contains ``part``."""
    async with asyncio.timeout(patience(15)), ControlClient(server.address) as client:
        while True:
            shown = "\n".join((await client.cluster_health()).problems)
            if part in shown:
                return shown
            await asyncio.sleep(0.1)


async def twin_goes_on(server: DevServer) -> None:
    assert await speak(server, "twin", 2, "a")
    assert await read(server, "twin", 3) == [Seen("a", 1), Seen("a", 2), Seen("b", 1)]


def words_of(stored: Stored) -> str:
    """The incarnation of the words' computation: the older one."""
    return min(
        (layout.journal_of(key) for key, _ in stored.rocks.scan(layout.HEAD, layout.past(layout.HEAD))),
        key=lambda journal: int(journal.split(".")[1]) if journal.startswith("count.") else 1 << 30,
    ).rpartition(".j")[0]


@pytest.mark.guarantee("G1", section="6.1")
async def test_a_damaged_row_holds_its_key_alone_until_it_is_restored(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: a damaged row stopped its whole interval, and only the log named it."""
    with Stored(path) as stored:
        row = layout.state_prefix(IncarnationId(words_of(stored))) + b"a"
        whole = stored.flip(row, state=True)
    async with running(DevSettings(path, port=0)) as server:
        assert await speak(server, "words", 2, "b"), "the other key goes on"
        waiting = asyncio.create_task(speak(server, "words", 3, "a"))
        shown = await problems(server, "damaged rows")
        assert "state of key 'a' of incarnation count." in shown
        assert "restore" in shown
        assert "key 'a', record of stream 'words/spoken'" in caplog.text
        async with ControlClient(server.address) as client:
            intervals = await client.list_intervals("words")
            assert [one.load.damaged_rows for one in intervals] == [1]
        metrics = dict(figures(server))
        assert metrics["millwheel_damaged_rows"] == 1
        await twin_goes_on(server)
        assert not waiting.done(), "the key's record has no ACK"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    with Stored(path) as stored:
        assert stored.get(row, state=True) != whole, "nothing was written over it"
        stored.put(row, whole, state=True)
    async with running(DevSettings(path, port=0)) as server:
        assert await speak(server, "words", 3, "a")
        assert await read(server, "words", 4) == [Seen("a", 1), Seen("a", 2), Seen("b", 1), Seen("b", 2)]


def figures(server: DevServer) -> list[tuple[str, float]]:
    collector = WorkerCollector(server.worker.tallies, server.worker.ownership.quarantined_places)
    return [
        (metric.name, sample.value)
        for metric in collector.collect()
        for sample in metric.samples
        if sample.labels.get("topology") == "words"
    ]


@pytest.mark.guarantee("G3", section="6.2")
@pytest.mark.parametrize("what", ["part", "entry"])
async def test_a_damaged_journal_stops_its_interval_until_restored(
    path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    if what == "entry":
        async with running(DevSettings(path, port=0)) as server:
            assert await speak(server, "words", 2, "b"), "an entry above the truncation point"
    more = what == "entry"
    with Stored(path) as stored:
        journal = f"{words_of(stored)}.j"
        prefix = layout.part_prefix("")[:1] if what == "part" else layout.entry_key("", 0)[:1]
        place = stored.last(prefix + journal.encode())
        whole = stored.flip(place)
    async with running(DevSettings(path, port=0)) as server:
        shown = await problems(server, "is quarantined")
        assert f"{what} " in shown
        assert journal in shown
        assert "restore it from a snapshot" in shown
        assert "is quarantined: restore what is damaged" in caplog.text
        assert not await speak(server, "words", 4, "b", wait=1.0)
        async with ControlClient(server.address) as client:
            (interval,) = await client.list_intervals("words")
            assert interval.load.quarantined
            with pytest.raises(RequestError) as refused:
                await client.split_interval(
                    IntervalName(topology="words", computation="count"), b"m", "", "split it all the same"
                )
            assert refused.value.reason == "INTERVAL_QUARANTINED"
        assert dict(figures(server))["millwheel_quarantined_intervals"] == 1
        await twin_goes_on(server)
    with Stored(path) as stored:
        assert stored.get(place) != whole, "nothing was written over it"
        stored.put(place, whole)
    async with running(DevSettings(path, port=0)) as server:
        assert await speak(server, "words", 4, "b")
        seen = await read(server, "words", 3 + more)
        assert seen == [Seen("a", 1), *(Seen("b", times) for times in range(1, 3 + more))]


@pytest.mark.guarantee("G11", section="7.1")
async def test_a_damaged_interval_map_keeps_its_computation_as_it_is(path: Path) -> None:
    """Regression: one damaged value prevented opening the whole database."""
    with Stored(path) as stored:
        incarnation = IncarnationId(words_of(stored))
        place = b"ck" + keys.chunk_key(incarnation, 0).encode()
        whole = stored.flip(place)
    async with running(DevSettings(path, port=0)) as server:
        shown = await problems(server, keys.chunk_key(incarnation, 0))
        assert "nothing is done with it" in shown
        assert not await speak(server, "words", 2, "b", wait=1.0)
        await twin_goes_on(server)
    with Stored(path) as stored:
        stored.put(place, whole)
    async with running(DevSettings(path, port=0)) as server:
        assert await speak(server, "words", 2, "b")


@pytest.mark.guarantee("G1", section="7.1")
async def test_a_damaged_topology_is_named_and_nothing_is_dropped(path: Path) -> None:
    with Stored(path) as stored:
        place = b"ck" + keys.topology_key("words").encode()
        whole = stored.flip(place)
    async with running(DevSettings(path, port=0)) as server:
        assert "topologies/words" in await problems(server, "topologies/words")
        async with ControlClient(server.address) as client:
            with pytest.raises(RequestError, match="topologies/words is damaged") as refused:
                await client.get_topology("words")
            assert refused.value.code is FailureCode.DATA_LOSS
        assert server.worker.hosts.hosted == {}, "who reads what is not known: nothing is begun"
    with Stored(path) as stored:
        stored.put(place, whole)
    async with running(DevSettings(path, port=0)) as server:
        assert await speak(server, "words", 2, "b")
        assert await read(server, "words", 3) == [Seen("a", 1), Seen("b", 1), Seen("b", 2)]
        await twin_goes_on(server)


async def test_a_damaged_package_is_named_and_replaced_by_an_upload(path: Path, database: Path) -> None:
    with Stored(path) as stored:
        stored.flip(stored.last(layout.state_prefix(IncarnationId("packages")), state=True), state=True)
    shutil.rmtree(path / "packages", ignore_errors=True)
    async with running(DevSettings(path, port=0)) as server:
        for name in ("words", "twin"):
            code = database.parent / f"quarantined_{name}.py"
            submitted = await run_cli(server.address, "topology", "submit", f"{code}:{name}")
            assert submitted.code == 6, "it runs already, as far as anybody knows; its code was uploaded first"
        for name in ("words", "twin"):
            assert await speak(server, name, 2, "b", wait=patience(40))
