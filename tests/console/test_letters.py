"""LetterHandlingService by the console's API: dead letters listed, shown, replayed and discarded, from the real log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from aiohttp import ClientSession

from millwheel.client.control import ControlClient
from millwheel.rpc.channel import open_channel
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1.letter_pb2 import DiscardLettersRequest, ReplayLettersRequest
from millwheel.rpc.v1.letter_pb2_grpc import LetterHandlingServiceStub
from millwheel.server.console.serving import serve_console
from millwheel.server.dev_server import DevServer
from tests.console.conftest import Inject, Start
from tests.console.test_api import post
from tests.patience import patience, until


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


class LetterApi:
    """Calls of LetterHandlingService for one topology."""

    def __init__(self, http: ClientSession, console: str, topology: str = "bills") -> None:
        self._http = http
        self._console = console
        self._topology = topology
        self.log = "0"
        """The number of the log whose letters were listed last."""

    async def call(self, name: str, **request: Any) -> tuple[int, Any]:
        url = f"{self._console}api/v1/LetterHandlingService/{name}"
        return await post(self._http, url, {"topology": self._topology, **request})

    async def answer(self, name: str, **request: Any) -> Any:
        status, found = await self.call(name, **request)
        assert status == 200, found
        return found

    async def handle(self, name: str, *ids: str) -> Any:
        """Replay or discard listed letters."""
        return await self.answer(name, ids=ids, log=self.log)

    async def kept(self, count: int, **selection: Any) -> list[Any]:
        """So many letters, once they are there."""

        async def listed() -> Any:
            page = await self.answer("ListLetters", letters=selection)
            self.log = page["log"]
            return page["letters"]

        return list(await until(listed, patience(30), holds=lambda some: len(some) == count))

    async def states(self) -> Any:
        counts = (await self.answer("ListLetters"))["counts"]
        return {name: int(count) for name, count in counts.items() if count != "0"}


@pytest.fixture
def api(http: ClientSession, server: DevServer) -> LetterApi:
    return LetterApi(http, server.console)


async def give_up(start: Start, inject: Inject, *customers: str) -> None:
    await start("bills")
    await inject(*customers, into="bills/orders")


async def test_letters_are_listed_and_shown(api: LetterApi, start: Start, inject: Inject) -> None:
    await give_up(start, inject, "ann", "bob", "cyd")
    letters = await api.kept(3)
    assert {one["key"] for one in letters} == {"ann", "bob", "cyd"}
    ann = next(one for one in letters if one["key"] == "ann")
    assert (ann["state"], ann["computation"], ann["stream"]) == ("waiting", "bills", "bills/orders")
    assert "no price for ann" in ann["error"]
    whole = await api.answer("GetLetter", id=ann["id"])
    assert whole["value_text"] == '{"customer":"ann","cents":5}'
    assert "LookupError" in whole["traceback"]
    assert whole["code_digest"] == whole["present_code_digest"] != ""
    assert whole["refusal"] == ""
    (only,) = await api.kept(1, error="FOR BOB")
    assert only["key"] == "bob"
    assert await api.states() == {"waiting": 3}


async def test_letters_come_by_pages(api: LetterApi, start: Start, inject: Inject) -> None:
    await give_up(start, inject, "ann", "bob", "cyd")
    ids = [one["id"] for one in await api.kept(3)]
    found, token = [], ""
    for _ in range(9):
        page = await api.answer("ListLetters", page_size=1, page_token=token)
        found += [one["id"] for one in page["letters"]]
        if not (token := page["next_page_token"]):
            break
    assert (found, token) == (ids, "")


async def test_a_plan_says_what_a_replay_does(api: LetterApi, start: Start, inject: Inject) -> None:
    await give_up(start, inject, "ann", "bob")
    letters = await api.kept(2)
    plan = await api.answer("PlanLetterHandling", letters={"computation": "bills"})
    assert plan["replay"] == {"topology": "bills", "ids": [one["id"] for one in letters], "log": api.log}
    assert "Sends 2 records again, to bills (2)" in plan["effects"][0]
    assert "All 2 failed with the code that runs now" in plan["effects"][1]
    assert "discard" not in plan
    assert await api.states() == {"waiting": 2}, "a plan changes nothing"


async def test_a_replayed_record_takes_effect_once(
    api: LetterApi, start: Start, inject: Inject, server: DevServer, http: ClientSession
) -> None:
    await give_up(start, inject, "ann", "bob")
    letters = await api.kept(2)
    await inject("ann", "bob", into="bills/prices", process="q")
    ids = [one["id"] for one in letters]
    made = await api.handle("ReplayLetters", *ids)
    assert (made["replayed"], made["refused"], made["unconfirmed"]) == (ids, [], [])
    again = await api.handle("ReplayLetters", *ids)
    assert (again["replayed"], again["elsewhere"]) == ([], ids)
    assert await api.states() == {"replayed": 2}

    async def produced() -> Any:
        return await post(http, f"{server.console}api/v1/StreamService/ReadStream", {"stream": "bills/bills"})

    _, tail = await until(produced, patience(30), holds=lambda one: len(one[1].get("records", [])) >= 2)
    assert len(tail["records"]) == 2
    assert await api.answer("ListLetters", letters={"state": "waiting"}) == await api.answer("ListLetters")


async def test_a_replay_ends_in_time_and_goes_on(
    api: LetterApi, start: Start, inject: Inject, monkeypatch: pytest.MonkeyPatch
) -> None:
    await give_up(start, inject, "ann", "bob", "cyd")
    ids = [one["id"] for one in await api.kept(3)]
    await inject("ann", "bob", "cyd", into="bills/prices", process="q")
    with monkeypatch.context() as patching:
        patching.setattr("millwheel.master.services.letters.REPLAY_SECONDS", 0)
        made = await api.handle("ReplayLetters", *ids)
        assert (made["left"], made["replayed"], made["elsewhere"]) == (ids, [], [])
        assert made["why_unconfirmed"] == "what is left had no answer within 0 s"
        assert await api.states() == {"waiting": 3}
    with monkeypatch.context() as patching:
        patching.setattr("millwheel.master.services.letters.SENDING_SECONDS", 0)
        patching.setattr("millwheel.client.dead_letters.replaying.LETTERS_AT_ONCE", 1)
        made = await api.handle("ReplayLetters", *ids)
        assert (made["unconfirmed"], made["left"], made["elsewhere"]) == (ids[:1], ids[1:], [])
        assert made["why_unconfirmed"] == "the time for this replay is over"
        assert await api.states() == {"waiting": 2, "in_replay": 1}
    made = await api.handle("ReplayLetters", *ids)
    assert (made["replayed"], made["left"]) == (ids, [])


async def test_a_discarded_letter_is_not_replayed(api: LetterApi, start: Start, inject: Inject) -> None:
    await give_up(start, inject, "ann", "bob")
    ann, bob = [one["id"] for one in await api.kept(2)]
    plan = await api.answer("PlanLetterHandling", letters={"ids": [ann]}, discard=True)
    assert plan["discard"] == {"topology": "bills", "ids": [ann], "also_in_replay": False, "log": api.log}
    assert "Gives 1 letter up for good" in plan["effects"][0]
    assert (await api.handle("DiscardLetters", ann))["discarded"] == [ann]
    assert (await api.handle("DiscardLetters", ann))["elsewhere"] == [ann], "a repetition changes nothing"
    assert (await api.handle("ReplayLetters", ann))["elsewhere"] == [ann]
    plan = await api.answer("PlanLetterHandling", letters={"ids": [ann, bob], "state": "all"})
    assert plan["refused"] == [{"reason": "it was replayed or discarded before", "ids": [ann]}]
    assert await api.states() == {"waiting": 1, "discarded": 1}


async def test_letters_that_are_far_apart_are_handled(
    api: LetterApi, start: Start, inject: Inject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.client.dead_letters.letters.FAR", 1)
    await give_up(start, inject, "ann", "bob", "cyd", "dan")
    ann, _, cyd, dan = [one["id"] for one in await api.kept(4)]
    assert (await api.answer("PlanLetterHandling", letters={"ids": [ann, cyd, dan]}))["replay"]["ids"] == [
        ann,
        cyd,
        dan,
    ]
    assert (await api.handle("DiscardLetters", dan, ann))["discarded"] == [ann, dan]
    assert await api.states() == {"waiting": 2, "discarded": 2}


async def test_a_plan_handles_no_letters_of_a_later_log(
    api: LetterApi, server: DevServer, start: Start, inject: Inject
) -> None:
    await give_up(start, inject, "ann", "bob")
    ann, bob = [one["id"] for one in await api.kept(2)]
    plan = await api.answer("PlanLetterHandling", discard=True)
    token = (await api.answer("ListLetters", page_size=1))["next_page_token"]
    former = api.log
    async with ControlClient(server.address) as client:
        await client.cancel("bills")
    await give_up(start, partial(inject, process="later"), "cyd", "dan")
    assert [one["id"] for one in await api.kept(2)] == [ann, bob], "other letters have the same ids"
    for name, request in (
        ("DiscardLetters", {"ids": plan["discard"]["ids"], "log": plan["discard"]["log"]}),
        ("ReplayLetters", {"ids": [ann], "log": former}),
        ("PlanLetterHandling", {"letters": {"ids": [ann], "log": former}}),
        ("ListLetters", {"page_token": token}),
    ):
        status, answer = await api.call(name, **request)
        assert (status, answer.get("error", {}).get("reason")) == (400, "STREAM_LOG_REPLACED"), (name, answer)
    assert await api.states() == {"waiting": 2}


async def test_what_cannot_be_is_refused_with_a_reason(api: LetterApi, start: Start, server: DevServer) -> None:
    status, answer = await api.call("ListLetters")
    assert (status, answer["error"]["code"]) == (404, "NOT_FOUND")
    await start("bills")
    assert (await api.answer("ListLetters"))["letters"] == []
    assert (await api.answer("PlanLetterHandling"))["effects"] == []
    for name, request, reason in (
        ("ListLetters", {"page_token": "x"}, "PAGE_TOKEN_INVALID"),
        ("ListLetters", {"letters": {"state": "lost"}}, "LETTER_STATE_UNKNOWN"),
        ("ReplayLetters", {"ids": list(range(1_001)), "log": 1}, "LETTERS_NOT_NAMED"),
        ("DiscardLetters", {"ids": [0]}, "FIELD_MISSING"),
        ("GetLetter", {"id": 7}, "LETTER_UNKNOWN"),
    ):
        status, answer = await api.call(name, **request)
        assert answer["error"]["reason"] == reason, answer
    async with open_channel(server.address) as channel:
        stub: Any = LetterHandlingServiceStub(channel)
        for change in (
            partial(stub.DiscardLetters, DiscardLettersRequest(topology="bills", ids=[0])),
            partial(stub.ReplayLetters, ReplayLettersRequest(topology="bills", ids=[0])),
        ):
            with pytest.raises(RequestError) as refused:
                async with calling("the master"):
                    await change()
            assert refused.value.reason == "LETTERS_LOG_NOT_NAMED"


async def test_a_topology_that_gives_nothing_up_has_none(http: ClientSession, server: DevServer, start: Start) -> None:
    await start("shop")
    api = LetterApi(http, server.console, "shop")
    listed = await api.answer("ListLetters")
    assert (listed["letters"], listed["next_page_token"]) == ([], "")


async def test_a_read_only_console_plans_and_handles_nothing(
    server: DevServer, http: ClientSession, start: Start, inject: Inject
) -> None:
    await give_up(start, inject, "ann")
    async with AsyncExitStack() as stack:
        api = LetterApi(http, await serve_console(stack, server.address, "127.0.0.1", 0))
        (letter,) = await api.kept(1)
        assert (await api.answer("PlanLetterHandling"))["replay"]["ids"] == [letter["id"]]
        for name in ("ReplayLetters", "DiscardLetters"):
            status, answer = await api.call(name, ids=[letter["id"]])
            assert (status, answer["error"]["reason"]) == (403, "CONSOLE_READ_ONLY")
        assert await api.states() == {"waiting": 1}
