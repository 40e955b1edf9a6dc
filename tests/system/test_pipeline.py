"""The program of docs/pipeline.md runs, while its server and its broker are killed (G1, G15).

Kafka to a hook and windows, and these to PostgreSQL and Parquet. Both have each result once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from deploy.local.kafka import KafkaBroker
from millwheel.client.subscription import From, Subscription
from tests.connectors.files.given import contents_of, files_in
from tests.connectors.kafka.given import administer, wait_until_led
from tests.connectors.postgres_tables import Database
from tests.documents.blocks import blocks_of
from tests.house.tree import ROOT
from tests.patience import patience, until
from tests.system.server import Server, run_cli

NOON: Final = 1_767_268_800_000_000
STEP: Final = 500_000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
DISORDER: Final = 8
"""So many seconds a sale may be older than one before. The page allows ten."""
ITEMS: Final = ("tea", "pot", "cup", "jam", "mug")
PARTITIONS: Final = 3
DISTURBANCES: Final = ("server", "broker", "server", "server")
LATE: Final = {"item": ITEMS[0], "cents": 77, "at": NOON}
MORE: Final = 3
"""So many files and rows come between two disturbances, at least."""
BLOCKS: Final = blocks_of(ROOT / "docs" / "pipeline.md")


@pytest.fixture
def database() -> Iterator[Database]:
    made = Database()
    (table,) = (block.code for block in BLOCKS if "CREATE TABLE" in block.code)
    made.run(table[table.index("CREATE TABLE") :])
    yield made
    made.remove()


class Topic:
    """The topic of sales. The sales of an item are in one partition, up to eight seconds out of order."""

    def __init__(self, broker: str) -> None:
        self.written: list[dict[str, Any]] = []
        administer(lambda admin: admin.create_topics([NewTopic("sales", PARTITIONS, 1)]), broker)
        wait_until_led("sales", PARTITIONS, broker)
        settings = {"bootstrap.servers": broker, "enable.idempotence": True, "linger.ms": 5}
        self.producer = Producer(settings)

    async def fill(self, stop: asyncio.Event) -> None:
        """Write sales until it is stopped, and then one of a later time into each partition, which ends all minutes."""
        while not stop.is_set():
            for number in range(len(self.written), len(self.written) + 10):
                place = number % len(ITEMS)
                at = NOON + number * STEP - number * 7 % (DISORDER + 1) * SECOND
                sale = {"item": ITEMS[place], "cents": number, "at": at}
                self.producer.produce("sales", msgspec.json.encode(sale), partition=place % PARTITIONS)
                self.written.append(sale)
            await asyncio.sleep(0.02)
        last = {"item": "end", "cents": 0, "at": NOON + len(self.written) * STEP + 2 * MINUTE}
        for partition in range(PARTITIONS):
            self.producer.produce("sales", msgspec.json.encode(last), partition=partition)
        await self.flush()

    async def flush(self) -> None:
        left = await asyncio.to_thread(self.producer.flush, patience(30))
        assert left == 0

    async def be_late(self) -> None:
        """Write a sale of the first minute, when that is in the table."""
        self.producer.produce("sales", msgspec.json.encode(LATE), partition=0)
        await self.flush()

    def minutes(self) -> list[tuple[str, int, int, int]]:
        """What the table has of them: item, beginning, sales and cents of each minute."""
        sales, cents = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        for one in self.written:
            minute = one["item"], one["at"] // MINUTE * 60  # in seconds
            sales[minute] += 1
            cents[minute] += one["cents"]
        return sorted((item, start, sales[item, start], cents[item, start]) for item, start in sales)

    def numbered(self) -> dict[str, list[tuple[int, int]]]:
        """What the files have of them: the number and cents of each sale, by item."""
        found = defaultdict[str, list[tuple[int, int]]](list)
        for one in [*self.written, LATE]:
            found[one["item"]].append((len(found[one["item"]]) + 1, one["cents"]))
        return found


def program(place: Path, broker: str, conninfo: str) -> Path:
    """The program of the page, with the addresses of this test."""
    (block,) = (block for block in BLOCKS if block.file == "shop.py")
    code = block.code
    own = {"127.0.0.1:9092": broker, "service=shop": conninfo, "/data/numbered": str(place / "numbered")}
    for text, replacement in own.items():
        assert text in code
        code = code.replace(text, replacement)
    (place / "program").mkdir()
    path = place / "program" / "shop.py"
    path.write_text(code)
    return path


def rows(database: Database) -> list[tuple[Any, ...]]:
    found = database.run("SELECT item, extract(epoch FROM minute)::bigint, sales, cents::bigint FROM minutes")
    return sorted(found)


def numbered(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """The rows of the files by item, in the order of the batches: all are in one shard."""
    found = defaultdict[str, list[tuple[int, int]]](list)
    for name, content in sorted(files_in(folder).items(), key=lambda one: one[0].rpartition("/")[2]):
        for row in contents_of(name, content):
            found[row["item"]].append((row["number"], row["cents"]))
    return found


async def late_sales(address: str) -> list[dict[str, Any]]:
    async with (
        asyncio.timeout(patience(30)),
        Subscription("shop/late-sales", start=From.OLDEST, address=address) as log,
    ):
        return list(map(msgspec.msgpack.decode, (await anext(log)).values))


async def disturb(what: str, server: Server, broker: KafkaBroker) -> None:
    if what == "server":
        await server.kill()
        await server.start()
    else:
        broker.kill()
        await asyncio.to_thread(broker.start)


@pytest.mark.timeout(300)
@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.guarantee("G15")
async def test_each_result_is_in_the_table_and_the_files_once(database: Database, tmp_path: Path) -> None:
    folder, stop = tmp_path / "numbered", asyncio.Event()
    with KafkaBroker(tmp_path / "kafka") as broker:
        topic = Topic(broker.address)
        shop = program(tmp_path, broker.address, database.conninfo)

        def progress() -> int:
            return min(len(files_in(folder)), len(rows(database)))

        async with Server(tmp_path / "db", tmp_path / "server.log") as server, asyncio.TaskGroup() as tasks:
            done = await run_cli(server.address, "topology", "submit", f"{shop}:shop")
            assert done.code == 0, done.err
            tasks.create_task(topic.fill(stop))
            for one in DISTURBANCES:
                await until(progress, patience(60), every=0.1, holds=(progress() + MORE).__le__)
                await disturb(one, server, broker)
            await until(progress, patience(60), every=0.1, holds=(progress() + MORE).__le__)
            stop.set()
            await until(lambda: len(rows(database)), patience(60), every=0.2, holds=len(topic.minutes()).__le__)
            await topic.be_late()
            all_of_them = len(topic.written) + PARTITIONS + 1
            await until(
                lambda: sum(map(len, numbered(folder).values())), patience(60), every=0.2, holds=all_of_them.__le__
            )
            await asyncio.sleep(1)  # in which a second one of a result would come
            shown = await run_cli(server.address, "connectors", "show")
            late = await late_sales(server.address)
    assert rows(database) == topic.minutes()
    assert late == [LATE]
    found = numbered(folder)
    assert sorted(found.pop("end")) == [(number, 0) for number in range(1, PARTITIONS + 1)]
    assert found == topic.numbered()
    assert all(name in shown.out for name in ("shop/sales", "shop/minutes-table", "shop/numbered-files")), shown.out
