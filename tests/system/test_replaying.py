"""The log of a stream as a source: where it begins, and what it says of records that are gone (section 4.3)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millwheel as mw
from deploy.local.child import free_ports
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.connectors import BadRecord, LogError, LogPosition, Source, SplitReader, read_log
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.failures import RequestError
from millwheel.sdk.errors import UnsupportedTypeError
from millwheel.server.dev_server import DevServer, DevSettings, running
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import replayed
from tests.system.replayed import BEGIN, HOURS, PER_HOUR, Sale
from tests.system.server import Server

SMALL = """
import msgspec
import millwheel as mw

class Blob(msgspec.Struct):
    number: int
    ballast: bytes

shop = mw.Topology("shop")
shop.source("sales", Blob, retention=mw.Retention(bytes=1))
"""


class Blob(msgspec.Struct):
    number: int
    ballast: bytes


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[DevServer]:
    async with running(DevSettings(tmp_path / "db", port=0)) as started:
        yield started


async def sell(server: DevServer | Server, numbers: range, *, step: int = int(mw.hours(1))) -> None:
    async with Injector("shop/sales", address=server.address, process="till", topology=replayed.shop) as till:
        for number in numbers:
            await till.send(Sale("tea", number), timestamp=BEGIN + number * step, position=number)
            if (number + 1) % PER_HOUR == 0:
                await till.flush()  # injected records keep no order, and a reader begins with the first of its time
        await till.advance(BEGIN + numbers.stop * step)
        await till.flush()


class Reading:
    """Reads a log, and keeps what it has read."""

    def __init__(self, reader: SplitReader[Any, LogPosition]) -> None:
        self.reader = reader
        self.values: list[Any] = []
        self.position: LogPosition | None = None
        self.watermark = int(MIN_TIMESTAMP)

    async def until(self, holds: Callable[[Reading], object]) -> Reading:
        async def read() -> Reading:
            got = await self.reader.read()
            self.values += [value for value, _ in got.records]
            self.position, self.watermark = got.position, max(self.watermark, got.watermark or MIN_TIMESTAMP)
            return self

        await until(read, patience(30), holds=holds)
        return self


@asynccontextmanager
async def reading(source: Source[Any, LogPosition], position: LogPosition | None = None) -> AsyncIterator[Reading]:
    reader = await source.open_reader("shop/sales", position)
    try:
        yield Reading(reader)
    finally:
        await reader.close()


def of(server: DevServer, kind: Any = Sale, **options: Any) -> Source[Any, LogPosition]:
    return read_log("shop/sales", kind, address=server.address, **options)


@pytest.mark.guarantee("G1", section="4.3")
async def test_a_log_is_read_from_where_it_is_said(server: DevServer, tmp_path: Path) -> None:
    await submit_copy(server.address, replayed.__file__, "shop", tmp_path)
    await sell(server, range(10))
    for start, first in (("earliest", 0), (datetime(2026, 1, 5, 7, tzinfo=UTC), 7), ({"shop/sales": 4}, 4)):
        async with reading(of(server, start=start)) as begun:
            begins = await begun.reader.read()
            assert list(begins.records) == []  # what is committed before anything is read
            await begun.until(lambda one: len(one.values) == 10 - first)  # noqa: B023
            assert [sale.number for sale in begun.values] == list(range(first, 10))
            await begun.until(lambda one: one.watermark == BEGIN + mw.hours(10))
        async with reading(of(server, start="latest"), begins.position) as again:
            await again.until(lambda one: len(one.values) == 10 - first)  # noqa: B023
    async with reading(of(server, start="latest")) as latest:
        begins = await latest.reader.read()
        await sell(server, range(10, 12))
        await latest.until(lambda one: len(one.values) == 2)
        assert [sale.number for sale in latest.values] == [10, 11]
    async with reading(of(server, int), begins.position) as wrong:
        await wrong.until(lambda one: len(one.values) == 2)
        assert isinstance(wrong.values[0], BadRecord)
        assert (wrong.values[0].split, wrong.values[0].place) == ("shop/sales", "offset 10")
    with pytest.raises(LogError, match=r"has no offset 13.*start= says a later one"):
        await of(server, start={"shop/sales": 13}).open_reader("shop/sales", None)


@pytest.mark.guarantee("G7", section="4.3")
async def test_a_log_is_read_with_its_low_watermark(server: DevServer, tmp_path: Path) -> None:
    await submit_copy(server.address, replayed.__file__, "shop", tmp_path)
    async with reading(of(server)) as live:
        for number in range(3):
            await sell(server, range(number, number + 1))
            await live.until(lambda one: one.watermark == BEGIN + mw.hours(number + 1))  # noqa: B023
    async with reading(of(server)) as replay:
        await replay.until(lambda one: one.watermark == BEGIN + mw.hours(3))
        assert [sale.number for sale in replay.values] == [0, 1, 2]


@pytest.mark.guarantee("G7", section="4.3")
async def test_a_part_of_a_batch_has_no_low_watermark(server: DevServer, tmp_path: Path) -> None:
    """That of the batch is behind its last record. So the others of it would be late."""
    await submit_copy(server.address, replayed.__file__, "shop", tmp_path)
    await sell(server, range(10))
    for position, count in ((None, 10), (LogPosition("", 4), 6)):
        async with reading(of(server), position) as few:
            few.reader.most_records = 3
            while len(few.values) < count:
                before = len(few.values)
                await few.until(lambda one: True)
                assert len(few.values) - before <= 3
                assert few.watermark <= BEGIN + mw.hours(few.values[-1].number + 1 if few.values else 0)
            assert [sale.number for sale in few.values] == list(range(10 - count, 10))
            await few.until(lambda one: one.watermark == BEGIN + mw.hours(10))


@pytest.mark.guarantee("G1", section="4.3")
async def test_what_a_log_does_not_keep_is_an_error(server: DevServer, tmp_path: Path) -> None:
    (tmp_path / "small_program.py").write_text(SMALL)
    (tmp_path / "copy").mkdir()
    await submit_copy(server.address, tmp_path / "small_program.py", "shop", tmp_path / "copy")
    async with Injector("shop/sales", address=server.address, process="one") as injector:
        for number in range(6):
            await injector.send({"number": number, "ballast": bytes(700_000)}, timestamp=BEGIN + number)
            await injector.flush()
    async with reading(of(server, Blob)) as kept:
        await kept.until(lambda one: one.values and one.values[-1].number == 5)
        left = [blob.number for blob in kept.values]
    assert left
    assert left[0] > 0, "the retention has dropped a segment"
    incarnation = kept.position.log if kept.position else ""
    for start, position in (
        (mw.Timestamp(BEGIN), None),
        ({"shop/sales": 0}, None),
        ("earliest", LogPosition(incarnation, 0)),
    ):
        with pytest.raises(LogError, match=f"keeps its records from offset {left[0]} on.*skip_removed=True"):
            async with reading(of(server, Blob, start=start), position) as gone:
                await gone.until(lambda one: one.values)
        async with reading(of(server, Blob, start=start, skip_removed=True), position) as skipped:
            await skipped.until(lambda one: len(one.values) == len(left))
            assert [blob.number for blob in skipped.values] == left
    async with reading(of(server, Blob, start=mw.Timestamp(BEGIN + left[0] + 1))) as later:
        await later.until(lambda one: len(one.values) == len(left) - 1)  # an older record is there


COUNTED = """
import msgspec
import millwheel as mw
from millwheel import agg

class Sale(msgspec.Struct):
    item: str
    number: int

shop = mw.Topology("shop")
shop.source("sales", Sale).key_by("item").aggregate("sold", count=agg.count())
"""


@pytest.mark.guarantee("G1", section="4.3")
async def test_a_beginning_without_a_log_is_an_error(
    server: DevServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a tail makes the log, and the source begins now."""
    (tmp_path / "counted_program.py").write_text(COUNTED)
    (tmp_path / "copy").mkdir()
    await submit_copy(server.address, tmp_path / "counted_program.py", "shop", tmp_path / "copy")
    await sell(server, range(2))
    since = of(server, start=mw.Timestamp(BEGIN))
    for source in (since, of(server, start={"shop/sales": 0}), of(server, start={"shop/sales": 1}), since):
        with pytest.raises(LogError, match="has no log, so nothing of what start= names is kept"):
            await source.open_reader("shop/sales", None)
    async with ControlClient(server.address) as client:
        assert not any(consumer.log for consumer in (await client.routing("shop/sales")).consumers)
    async with reading(of(server, start="latest")) as made:
        await made.reader.read()
    await sell(server, range(2, 4))
    async with reading(since) as begun:  # by now another reader has made one
        await begun.until(lambda one: len(one.values) == 2)
    assert "it has nothing that was produced before it was made" in caplog.text


@pytest.mark.guarantee("G1", section="4.3")
async def test_another_log_of_a_stream_is_another_source(server: DevServer, tmp_path: Path) -> None:
    await submit_copy(server.address, replayed.__file__, "shop", tmp_path)
    await sell(server, range(2))
    async with reading(of(server)) as former:
        await former.until(lambda one: len(one.values) == 2)
    async with ControlClient(server.address) as client:
        await client.cancel("shop")

        async def is_submitted() -> bool:
            try:
                await submit_copy(server.address, replayed.__file__, "shop", tmp_path)
            except RequestError:
                return False  # the former one is not gone yet
            return True

        await until(is_submitted, patience(30), every=0.1)
    for _ in range(2):
        with pytest.raises(LogError, match=r"has another log by now.* Give the stream of this topology another name"):
            await of(server).open_reader("shop/sales", former.position)
        await sell(server, range(4))  # the error stays when the log has the offset


@pytest.mark.parametrize(
    ("stream", "options", "why"),
    [
        ("sales", {}, "full name"),
        ("shop/sales", {"start": "first"}, "start= is"),
        ("shop/sales", {"start": {"shop/other": 1}}, "has an offset for the stream"),
        ("shop/sales", {"start": {"shop/sales": -1}}, "has an offset for the stream"),
    ],
)
def test_what_is_no_log_is_refused(stream: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(mw.UsageError, match=why):
        read_log(stream, Sale, **options)


def test_a_type_that_cannot_be_read_is_refused_at_once() -> None:
    """Otherwise each record of the log is one that cannot be read."""
    with pytest.raises(UnsupportedTypeError, match="complex"):
        read_log("shop/sales", complex)


def rows(path: Path, table: str) -> list[tuple[int, int, int]]:
    with closing(sqlite3.connect(path)) as database:
        return sorted(database.execute(f"SELECT at, sales, largest FROM {table}"))


@pytest.mark.timeout(300)
@pytest.mark.guarantee("G1", section="4.3")
async def test_two_versions_read_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one begins at noon. A server is killed while both read, and each row is there once."""
    path, step = tmp_path / "hours.db", int(mw.hours(1)) // PER_HOUR
    with closing(sqlite3.connect(path)) as database:
        for table in ("old", "new"):
            database.execute(f"CREATE TABLE {table} (at INTEGER, sales INTEGER, largest INTEGER)")
    monkeypatch.setenv("REPLAYED_DB", str(path))
    (port,) = free_ports(1)
    monkeypatch.setenv("REPLAYED_ADDRESS", f"127.0.0.1:{port}")
    async with Server(tmp_path / "db", tmp_path / "server.log", port=port) as server:
        await submit_copy(server.address, replayed.__file__, "shop", tmp_path)
        await submit_copy(server.address, replayed.__file__, "first", tmp_path)
        await sell(server, range(HOURS * PER_HOUR), step=step)
        await submit_copy(server.address, replayed.__file__, "second", tmp_path)
        await until(lambda: rows(path, "old"), patience(60), every=0.1)
        await server.kill()
        await server.start()
        await until(lambda: len(rows(path, "new")) == HOURS // 2, patience(120), every=0.2)
        await until(lambda: len(rows(path, "old")) == HOURS, patience(60), every=0.2)
        await asyncio.sleep(0.5)
    expected = [(BEGIN + hour * int(mw.hours(1)), PER_HOUR, (hour + 1) * PER_HOUR - 1) for hour in range(HOURS)]
    assert rows(path, "old") == expected
    assert rows(path, "new") == expected[HOURS // 2 :]
