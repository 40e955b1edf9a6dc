"""The log of a stream keeps the contract of sources, with a real server (G1, G7, G13)."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.local.child import ChildProcess, free_ports
from millwheel.client.injector import Injector
from millwheel.connectors import LogPosition, Source, read_log
from millwheel.testing.connectors import SourceContract
from tests.connectors.given import NOON
from tests.patience import patience
from tests.submitting import submit_copy
from tests.system.server import MAIN

_STREAMS = 40
_numbers = itertools.count()

PROGRAM = f"""
import msgspec
import millwheel as mw

class Written(msgspec.Struct):
    number: int | str

shop = mw.Topology("shop")
for number in range({_STREAMS}):
    shop.source(f"sales{{number}}", Written)
"""


class Sale(msgspec.Struct):
    number: int


class Shop:
    """A server with a topology of many streams that nothing reads. Each of them has a log."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        words = [sys.executable, "-c", MAIN, "server", "start-dev", "--port", str(port), "--db", str(folder / "db")]
        self.process = ChildProcess(words, folder / "server.log")

    async def add(self, stream: str, numbers: Sequence[int | str], *, last: bool = False) -> None:
        async with Injector(stream, process="till", address=self.address) as till:
            for number in numbers:
                await till.send({"number": number}, timestamp=NOON)
            await till.flush()
            if last:
                await till.finish()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    shop = Shop(folder)
    shop.process.start()
    try:
        program = folder / "many_streams.py"
        program.write_text(PROGRAM)
        (folder / "copy").mkdir()
        asyncio.run(submit_copy(shop.address, program, "shop", folder / "copy", patience(60)))
        yield shop
    finally:
        shop.process.stop()


@pytest.mark.guarantee("G1", "G7", "G13", section="4.3")
class TestLog(SourceContract[Sale, LogPosition]):
    """All records of a test are in one log, so they are in one split.

    There is no away(): a reader waits for half a minute for a server. ``test_two_versions_read_one_log`` kills one.
    """

    record_type = Sale
    splits_come = False
    most_records = 1_500  # an answer of the log has 1,000 at most

    @pytest.fixture(autouse=True)
    def _stream(self, shop: Shop) -> None:
        self.shop = shop
        self.stream = f"shop/sales{next(_numbers)}"

    def make_source(self) -> Source[Sale, LogPosition]:
        return read_log(self.stream, Sale, address=self.shop.address)

    def write(self, split: int, numbers: Sequence[int]) -> None:
        asyncio.run(self.shop.add(self.stream, numbers))

    def write_bad(self, split: int) -> None:
        asyncio.run(self.shop.add(self.stream, ["many"]))

    def end(self) -> None:
        asyncio.run(self.shop.add(self.stream, [], last=True))

    def number_of(self, value: Sale) -> int:
        return value.number

    def test_an_idle_split_follows_the_clock(self) -> None:
        """No split of a log is idle, because an owner that was deposed does not know what comes."""
        self.write(0, range(3))

        async def behind() -> list[int | None]:
            reader: Any = await self.make_source().open_reader(self.stream, None)
            found: list[int | None] = []
            count = 0
            while count < 3 or len(found) < 6:
                read = await reader.read()
                count += len(read.records)
                found.append(read.behind)
            await reader.close()
            return found

        assert all(asyncio.run(behind()))
