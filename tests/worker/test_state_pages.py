"""Pages of states: each key once, only committed, only from the interval's present owner (sections 4.4 and 6.2)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_STATE_BYTES
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import common_pb2 as common
from millwheel.rpc.v1 import state_pb2 as wire
from millwheel.store.contract import StateRow
from millwheel.worker.process.state_service import StateService
from tests.worker.test_state_service import JOURNAL, SEQUENCER, owner

Pair = tuple[str, str]


class Timed(mw.Computation[Pair, int]):
    """Counts the records of each key. The second part of a record is a timer to set, "only" that, or "done"."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Pair]) -> None:
        tag = record.value[1]
        if not tag.startswith("only"):
            ctx.state += 1
        if tag == "done":
            ctx.state = 0
        elif tag:
            ctx.set_timer(mw.Timestamp(1_000), tag, hold=mw.Timestamp(900))

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        """Do nothing: no timer fires here."""


async def page(service: StateService, size: int = 0, token: str = "", start: str = "") -> wire.ListStatesResponse:
    bounds = common.KeyInterval(start=start.encode())
    return await service.page(wire.ListStatesRequest(journal=JOURNAL, keys=bounds, page_size=size, page_token=token))


async def pages(service: StateService, size: int = 0) -> list[list[wire.ListedState]]:
    """All pages."""
    found, token = [], ""
    while True:
        answer = await page(service, size, token)
        found.append(list(answer.states))
        token = answer.next_page_token
        if not token:
            return found


def shown(found: list[wire.ListedState]) -> list[tuple[str, int | None]]:
    return [(one.key.decode(), msgspec.msgpack.decode(one.state.state) if one.state.state else None) for one in found]


@pytest.mark.paper(section="4.4")
async def test_pages_have_each_key_once_with_its_timers() -> None:
    driver, _, service = await owner(Timed())
    driver.deliver(("a", "", 1), ("b", "t", 1), ("b", "", 1), ("c", "done", 1), ("d", "", 1))
    driver.commit_all()
    assert [shown(one) for one in await pages(service, 2)] == [[("a", 1), ("b", 2)], [("d", 1)]]
    (_, timed), *_ = await pages(service, 2)
    (timer,) = timed.timers
    assert (timer.tag, timer.timestamp_us, timer.hold_us, timer.wall_time) == ("t", 1_000, 900, False)
    assert shown(list((await page(service, start="b")).states)) == [("b", 2), ("d", 1)]


@pytest.mark.guarantee("G2", section="4.4")
async def test_a_page_waits_for_the_commit_in_flight() -> None:
    driver, _, service = await owner(Timed())
    driver.deliver(("k", "t", 1))
    listing = asyncio.create_task(page(service))
    await asyncio.sleep(0.01)
    assert not listing.done(), "the state is in memory and not in the journal"
    driver.commit()
    assert shown(list((await listing).states)) == [("k", 1)]


@pytest.mark.guarantee("G2", section="4.4")
async def test_a_page_waits_for_the_commit_of_a_timer() -> None:
    driver, _, service = await owner(Timed())
    driver.deliver(("k", "only", 1))
    listing = asyncio.create_task(page(service))
    await asyncio.sleep(0.01)
    assert not listing.done(), "the timer is in memory and not in the journal"
    driver.commit()
    (listed,) = (await listing).states
    assert ([timer.tag for timer in listed.timers], listed.state.state) == (["only"], b"")


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_deposed_owner_lists_no_states() -> None:
    driver, store, service = await owner()
    driver.deliver(("k", "", 1))
    driver.commit()
    await store.fence(JOURNAL, SEQUENCER + 1)  # this process does not know of the successor
    with pytest.raises(RequestError, match="does not own"):
        await page(service)


@pytest.mark.guarantee("G13", section="8.3")
async def test_pages_of_large_states_are_bounded() -> None:
    driver, store, service = await owner()
    driver.state.cells.evicted = True
    large = msgspec.msgpack.encode("x" * (MAX_STATE_BYTES - 8))
    rows = [StateRow(f"k{number:02}".encode(), 3, large) for number in range(20)]
    await store.write_states(IncarnationId("test.1"), JOURNAL, SEQUENCER, rows)
    found = await pages(service)
    assert [one.key for some in found for one in some] == [row.key for row in rows]
    assert all(0 < sum(len(one.state.state) for one in some) <= 2 * MAX_STATE_BYTES for some in found)


class Large(mw.Computation[Pair, str]):
    """Keeps a mebibyte for each key."""

    def process_record(self, ctx: mw.Context[str], record: mw.Record[Pair]) -> None:
        ctx.state = "x" * (1 << 20)


@pytest.mark.guarantee("G13", section="8.3")
async def test_a_page_copies_no_more_than_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _, service = await owner(Large())
    for number in range(20):
        driver.deliver((f"k{number:02}", "", 1))
        driver.commit_all()
    made, copied = wire.KeyState, list[int]()

    def counted(state: bytes = b"", error: str = "") -> wire.KeyState:
        copied.append(len(state))
        return made(state=state, error=error)

    monkeypatch.setattr(wire, "KeyState", counted)
    answer = await page(service)
    assert 4 <= len(answer.states) <= len(copied) <= 6, "the other states in memory are not copied"
    assert [one.key for some in await pages(service) for one in some] == [f"k{n:02}".encode() for n in range(20)]


async def test_a_damaged_state_is_listed_with_its_damage() -> None:
    driver, store, service = await owner()
    driver.state.cells.evicted = True
    rows = [StateRow(key, 3, msgspec.msgpack.encode(41)) for key in (b"damaged", b"k")]
    await store.write_states(IncarnationId("test.1"), JOURNAL, SEQUENCER, rows)
    damaged, intact = (await page(service)).states
    assert "checksum" in damaged.state.error
    assert shown([intact]) == [("k", 41)]


async def test_a_bad_request_for_a_page_is_refused() -> None:
    _, _, service = await owner()
    with pytest.raises(RequestError, match="the page token is not one"):
        await page(service, token="x")
    with pytest.raises(RequestError, match="empty key interval"):
        await service.page(wire.ListStatesRequest(journal=JOURNAL, keys=common.KeyInterval(start=b"b", end=b"a")))
