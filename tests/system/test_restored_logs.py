"""A source goes on in the log of a restored topology up to the snapshot, and in no other log (4.2; G1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from millwheel.client.control import ControlClient
from millwheel.client.subscription import Subscription
from millwheel.connectors import LogError, LogPosition
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.server.dev_server import DevServer, DevSettings, running
from tests.submitting import submit_copy
from tests.system import replayed
from tests.system.test_replaying import of, reading, sell


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[DevServer]:
    async with running(DevSettings(tmp_path / "db", port=0)) as started:
        await submit_copy(started.address, replayed.__file__, "shop", tmp_path)
        yield started


@asynccontextmanager
async def snapshots(server: DevServer, place: Path) -> AsyncIterator[Snapshots]:
    async with ControlClient(server.address) as client:
        yield Snapshots(client, str(place / "backups"))


class Snapshots:
    """Takes and restores snapshots of the shop."""

    def __init__(self, client: ControlClient, place: str) -> None:
        self._client = client
        self._place = place

    async def take(self, name: str) -> None:
        await self._client.create_snapshot("shop", self._place, name)

    async def go_back_to(self, name: str) -> None:
        await self._client.cancel("shop")
        await self._client.restore_snapshot(self._place, name)


async def position_at(server: DevServer, count: int, position: LogPosition | None = None) -> LogPosition:
    """The position behind so many records, which are read from a position on."""
    async with reading(of(server), position) as kept:
        await kept.until(lambda one: len(one.values) == count)
        assert kept.position is not None
        return kept.position


async def numbers(server: DevServer, position: LogPosition, count: int) -> tuple[list[int], LogPosition]:
    async with reading(of(server), position) as kept:
        await kept.until(lambda one: len(one.values) == count)
        assert kept.position is not None
        return [sale.number for sale in kept.values], kept.position


@pytest.mark.guarantee("G1", section="4.2")
async def test_a_reader_goes_on_in_a_restored_log(server: DevServer, tmp_path: Path) -> None:
    """Also after two restores, and by a snapshot of the first log that is older than the position's."""
    async with snapshots(server, tmp_path) as taken:
        await sell(server, range(4))
        early = await position_at(server, 4)
        await taken.take("four")
        await sell(server, range(4, 6))
        await taken.take("six")
        await taken.go_back_to("six")
        found, later = await numbers(server, early, 2)
        assert found == [4, 5]
        assert (later.log != early.log, later.offset, later.made) == (True, 6, early.made)
        await sell(server, range(6, 8))
        await taken.take("eight")
        await taken.go_back_to("eight")
        assert (await numbers(server, early, 4))[0] == [4, 5, 6, 7], "the first log is a former one of the third"
        assert (await numbers(server, later, 2))[0] == [6, 7]
        await taken.go_back_to("four")
        await sell(server, range(20, 22))
        assert (await numbers(server, early, 2))[0] == [20, 21]
        with pytest.raises(LogError, match="no restored one of"):
            await of(server).open_reader("shop/sales", later)


@pytest.mark.guarantee("G1", section="4.2")
async def test_a_reader_behind_the_snapshot_stops_for_ever(server: DevServer, tmp_path: Path) -> None:
    """Regression: it went on when the log had its offset, and the records between were lost."""
    async with snapshots(server, tmp_path) as taken:
        await sell(server, range(4))
        at_end = await position_at(server, 4)
        await taken.take("four")
        await sell(server, range(4, 6))
        behind = await position_at(server, 2, at_end)
        await taken.go_back_to("four")
        for more in (range(10, 12), range(12, 14)):
            with pytest.raises(LogError, match=r"ended at offset 4, .* up to offset 6.*start=\{'shop/sales': 4\}"):
                await of(server).open_reader("shop/sales", behind)
            await sell(server, more)
        async with reading(of(server, start={"shop/sales": 4})) as again:  # as the error says
            await again.until(lambda one: len(one.values) == 4)
            assert [sale.number for sale in again.values] == [10, 11, 12, 13]


@pytest.mark.guarantee("G1", section="4.2")
async def test_a_log_of_this_name_and_another_time_is_another(server: DevServer, tmp_path: Path) -> None:
    """A snapshot of another cluster may have a log whose name one had here. A position of no known time has none."""
    async with snapshots(server, tmp_path) as taken:
        await sell(server, range(4))
        position = await position_at(server, 4)
        await taken.take("s")
        await taken.go_back_to("s")
        assert position.made is not None
        for made in (position.made + 1, None):
            with pytest.raises(LogError, match="no restored one of"):
                await of(server).open_reader("shop/sales", msgspec.structs.replace(position, made=made))


@pytest.mark.parametrize("begun", [True, False])
async def test_a_log_that_is_replaced_meanwhile_says_so(
    server: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Regression: without a position an assertion failed, and after a restore the error had no text."""
    position = None
    if begun:
        async with snapshots(server, tmp_path) as taken:
            await sell(server, range(1))
            position = await position_at(server, 1)
            await taken.take("s")
            await taken.go_back_to("s")

    async def replaced(tail: Subscription) -> Subscription:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION, "the log was replaced", "subscribe again", reason="STREAM_LOG_REPLACED"
        )

    monkeypatch.setattr(Subscription, "__aenter__", replaced)
    with pytest.raises(RequestError, match="the log was replaced: subscribe again"):
        await of(server).open_reader("shop/sales", position)
