"""Fetches of the routing before a record is refused: calls that share them or wait behind them (4.2, 5.2)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.client.injector.admission import SendTurns
from millwheel.client.injector.routing_follower import SharedFetches, routing_from_wire
from millwheel.sdk.errors import ValueEncodeError
from millwheel.server.dev_server import DevServer
from tests.injectors.conftest import Submit
from tests.injectors.inside import admission_of, ask_instead, routing_task_of, session_of
from tests.injectors.test_checking import WRONG, update
from tests.patience import patience


class Source:
    """The fetched objects. The test ends each fetch."""

    def __init__(self) -> None:
        self.began = asyncio.Queue[asyncio.Future[None]]()

    async def fetch(self) -> None:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.began.put_nowait(end)
        await end

    async def next(self) -> asyncio.Future[None]:
        return await asyncio.wait_for(self.began.get(), patience(10))


async def test_a_look_serves_all_who_asked_before_it_began() -> None:
    source = Source()
    fetches = SharedFetches(source.fetch)
    first = [asyncio.create_task(fetches.after(fetches.begun)) for _ in range(3)]
    end = await source.next()
    late = [asyncio.create_task(fetches.after(fetches.begun)) for _ in range(3)]
    end.set_result(None)
    await asyncio.gather(*first)
    assert not any(task.done() for task in late), "that fetch may have seen less than they know"
    (await source.next()).set_result(None)
    await asyncio.gather(*late)
    assert fetches.begun == 2
    await fetches.after(1)
    assert fetches.begun == 2, "a fetch began after that"


async def test_a_cancelled_caller_leaves_the_lookup_to_the_others() -> None:
    source = Source()
    fetches = SharedFetches(source.fetch)
    gone, stays = (asyncio.create_task(fetches.after(0)) for _ in range(2))
    end = await source.next()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    end.set_result(None)
    await stays
    assert fetches.begun == 1


async def test_all_callers_get_the_error_of_a_fetch() -> None:
    source = Source()
    fetches = SharedFetches(source.fetch)
    callers = [asyncio.create_task(fetches.after(0)) for _ in range(2)]
    (await source.next()).set_exception(OSError("no"))
    assert [str(error) for error in await asyncio.gather(*callers, return_exceptions=True)] == ["no", "no"]


async def test_what_is_closed_is_waited_for_no_more() -> None:
    source = Source()
    fetches = SharedFetches(source.fetch)
    caller = asyncio.create_task(fetches.after(0))
    await source.next()
    await fetches.close()
    await caller
    await fetches.after(7)


async def test_turns_are_busy_between_one_call_and_the_next() -> None:
    turns = SendTurns()
    seen: list[bool] = []

    async def call() -> None:
        async with turns:
            await asyncio.sleep(0)
        seen.append(bool(turns.calls))

    assert not bool(turns.calls)
    cut = asyncio.create_task(call())
    others = [asyncio.create_task(call()) for _ in range(2)]
    await asyncio.sleep(0)
    cut.cancel()
    await asyncio.gather(cut, *others, return_exceptions=True)
    assert seen == [True, False]
    async with turns:
        waits = asyncio.create_task(call())
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
    assert not bool(turns.calls)


def alone(injector: Injector) -> None:
    """Its watch of the routing brings no more news."""
    router = routing_task_of(injector)
    router.cancel()


@pytest.mark.paper(section="5.2")
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("many", [False, True])
async def test_nothing_overtakes_a_record_that_waits_for_a_fetch(
    server: DevServer, submit: Submit, tmp_path: Path, positions: bool, many: bool
) -> None:
    await submit("shop")
    accepted: list[int] = []

    async def send(injector: Injector, at: int, *numbers: Any) -> None:
        values = [{"user": "u", "number": number} for number in numbers]
        places = range(at, at + len(values))
        if many:
            await injector.send_many(values, [1] * len(values), positions=places if positions else None)
        else:
            await injector.send(values[0], timestamp=1, position=at if positions else None)
        accepted.append(at)
        if at == 0:
            await send(injector, 40, 4)  # other calls wait already

    async with Injector("orders", address=server.address) as injector:
        alone(injector)
        await update(server, tmp_path, "number: int", "number: int | str")
        first = (0, "first", 0, "more") if many else ("first",)
        await asyncio.gather(send(injector, 0, *first), send(injector, 20, 2), send(injector, 30, 3))
        assert accepted == [0, 20, 30, 40]
        assert session_of(injector).follower.fetches.begun == 1
        await asyncio.wait_for(injector.finish(), patience(20))


@pytest.mark.paper(section="5.2")
async def test_workers_are_asked_in_turn_also_by_calls_already_begun(server: DevServer, submit: Submit) -> None:
    """The keys become code while the call is under way."""
    await submit("shop")
    async with Injector("orders", address=server.address) as injector, ControlClient(server.address) as control:
        session = session_of(injector)
        alone(injector)
        await submit("late_shop")
        response = await control.routing("orders")
        turns = []

        async def ask(*arguments: Any) -> Any:
            turns.append(bool(admission_of(injector).turns.calls))
            return await real(*arguments)

        real = ask_instead(injector, ask)
        values = [{"user": "u", "number": number} for number in range(1_500)]
        sending = asyncio.create_task(injector.send_many(values, [1] * len(values)))
        await asyncio.sleep(0)
        assert 0 < injector.accepted < len(values)
        session.take_routing(routing_from_wire(response), response)
        await sending
        assert turns
        assert all(turns)
        await asyncio.wait_for(injector.finish(), patience(20))


async def test_wrong_records_of_many_tasks_share_their_fetches(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with Injector("orders", address=server.address) as injector:
        calls = (injector.send(WRONG[0], timestamp=1) for _ in range(200))
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, ValueEncodeError) for error in found)
        assert session_of(injector).follower.fetches.begun <= 2
        begun = session_of(injector).follower.fetches.begun
        with pytest.raises(ValueEncodeError):
            await injector.send(WRONG[0], timestamp=1)
        assert session_of(injector).follower.fetches.begun == begun + 1


@pytest.mark.paper(section="4.1")
async def test_an_update_counts_once_it_returns_for_all_callers(
    server: DevServer, submit: Submit, tmp_path: Path
) -> None:
    await submit("shop")
    async with Injector("orders", address=server.address) as injector:
        alone(injector)

        async def wrong_records() -> None:
            while True:
                with suppress(ValueEncodeError):
                    await injector.send({"user": "u"}, timestamp=1)
                await asyncio.sleep(0)

        others = asyncio.create_task(wrong_records())
        for types in ("int | str", "int | str | list", "int | str | list | bool"):
            await update(server, tmp_path, "number: int", f"number: {types}")
            right: Any = {"int | str": "text", "int | str | list": []}.get(types, True)
            await injector.send({"user": "u", "number": right}, timestamp=1)
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)


@pytest.mark.paper(section="4.1")
async def test_a_record_is_refused_by_the_type_that_was_read_last(
    server: DevServer, submit: Submit, tmp_path: Path
) -> None:
    await submit("shop")
    async with Injector("orders", address=server.address) as injector:
        alone(injector)
        await update(server, tmp_path, "number: int", "number: int | bool")
        with pytest.raises(ValueEncodeError, match=r"Expected `bool \| int`, got `str`"):
            await injector.send(WRONG[0], timestamp=1)
