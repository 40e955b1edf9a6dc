"""An error of a call with many records says which of them it is about (4.2)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millwheel.client.injector import Injector, InjectorSettings
from millwheel.model.limits import MAX_KEY_BYTES, MAX_VALUE_BYTES
from millwheel.sdk.errors import KeyExtractionError, MillwheelError, TooLargeError, UsageError, ValueEncodeError
from millwheel.server.dev_server import DevServer
from tests.injectors.conftest import Submit
from tests.injectors.test_with_server import everything
from tests.patience import patience

COUNT, AT = 1_300, 1_203
LONE = "id-\ud800"
"""Half of a surrogate pair: UTF-8 has no such text."""


def values(wrong: Any = None) -> list[Any]:
    good = [{"user": "u", "number": number} for number in range(COUNT)]
    return good if wrong is None else [*good[:AT], wrong, *good[AT + 1 :]]


def keys(wrong: Any) -> list[Any]:
    return ["k"] * AT + [wrong] + ["k"] * (COUNT - AT - 1)


@pytest.mark.paper(section="4.2")
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"user": "u", "number": "seven"}, ValueEncodeError),
        ({"user": "u", "number": object()}, ValueEncodeError),
        ({"user": "u", "number": 1, "note": "x" * (MAX_VALUE_BYTES + 1)}, TooLargeError),
    ],
    ids=["type", "form", "size"],
)
async def test_a_wrong_record_is_named_by_its_index(
    server: DevServer, submit: Submit, wrong: Any, error: type[MillwheelError]
) -> None:
    await submit("shop")
    async with Injector("orders", address=server.address) as injector:
        with pytest.raises(error, match=rf"^record {AT}: .*orders"):
            await injector.send_many(values(wrong), range(1, COUNT + 1))
        assert injector.accepted == AT, "each record before it"
        with pytest.raises(error, match=r"^(?!record )"):
            await injector.send(wrong, timestamp=COUNT)
        await asyncio.wait_for(injector.finish(), patience(20))
    assert len(await everything(server.address, "echo")) == AT


@pytest.mark.paper(section="4.2")
async def test_a_record_without_a_key_is_named_by_its_index(server: DevServer, submit: Submit) -> None:
    await submit("fussy")
    async with Injector("orders", address=server.address) as injector:
        odd = [{"user": "u", "number": 1} for _ in range(COUNT)]
        odd[AT] = {"user": "u", "number": 2}
        with pytest.raises(KeyExtractionError, match=rf"^record {AT}: topology 'fussy'"):
            await injector.send_many(odd, range(1, COUNT + 1))
        assert injector.accepted == AT


@pytest.mark.paper(section="4.2")
async def test_a_given_key_that_is_none_is_named(server: DevServer, submit: Submit) -> None:
    await submit("shop")
    async with Injector("orders", address=server.address) as injector:
        for wrong, text in ((LONE, r"a key .* is no text that UTF-8 has: 'id-\\ud800'"), (7, "keys .* not 7")):
            with pytest.raises(UsageError, match=rf"^record {AT}: {text}"):
                await injector.send_many(values()[: AT + 1], range(1, AT + 2), keys=keys(wrong)[: AT + 1])
        assert injector.accepted == 2 * AT
        with pytest.raises(TooLargeError, match=rf"^record {AT}: a key for computation"):
            await injector.send_many(values(), range(1, COUNT + 1), keys=keys("k" * (MAX_KEY_BYTES + 1)))
        assert injector.accepted == 3 * AT


@pytest.mark.paper(section="6.1.1")
@pytest.mark.parametrize(
    ("wrong", "text"),
    [(LONE, r"no text that UTF-8 has: 'id-\\ud800' \(surrogates not allowed at character 3\)"), ("", "is empty")],
    ids=["surrogate", "empty"],
)
async def test_a_wrong_id_is_named_and_those_before_it_are_sent(
    server: DevServer, submit: Submit, wrong: str, text: str
) -> None:
    await submit("shop")
    ids: list[Any] = [*range(AT), wrong, *range(AT + 1, COUNT)]
    async with Injector("orders", address=server.address) as injector:
        with pytest.raises(UsageError, match=rf"^a record's id .*{text}"):
            await injector.send(values()[0], timestamp=1, id=wrong)
        with pytest.raises(UsageError, match=rf"^record {AT}: a record's id .*{text}"):
            await injector.send_together(values(), range(1, COUNT + 1), ids=ids)
        assert injector.accepted == 0
        with pytest.raises(UsageError, match=rf"^record {AT}: a record's id .*{text}"):
            await injector.send_many(values(), range(1, COUNT + 1), ids=ids)
        assert injector.accepted == AT
        await injector.send_many(values()[AT + 1 :], range(AT + 2, COUNT + 1), ids=ids[AT + 1 :])
        assert injector.accepted == COUNT - 1, "who goes on behind the named record has sent all others"
        await injector.send_many(values()[:2], [1, 2], ids=[b"\xff\x00", b"\xfe"])
        await asyncio.wait_for(injector.finish(), patience(20))


@pytest.mark.paper(section="4.5")
async def test_a_wrong_time_is_of_the_call_and_none_is_sent(server: DevServer, submit: Submit) -> None:
    """So its error does not begin with the record, as if those before it were sent."""
    await submit("shop")
    second = 1_700_000_000
    times = [*(second * 1_000_000 + at for at in range(COUNT - 1)), second]
    async with Injector("orders", address=server.address, settings=InjectorSettings(any_timestamp=False)) as injector:
        with pytest.raises(
            UsageError, match=rf"^a record's timestamp .*\(record {COUNT - 1} of the call, of which no "
        ):
            await injector.send_many(values(), times)
        assert injector.accepted == 0
