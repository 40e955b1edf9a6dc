"""A sender of letters says why they are not ACKed: the cause, and not that its time is over."""

from __future__ import annotations

import asyncio
from typing import Any

from millwheel.client.dead_letters.letters import Letter
from millwheel.client.dead_letters.replaying import Replay
from millwheel.client.dead_letters.sending import LetterSender
from millwheel.client.dead_letters.targets import LetterTarget
from millwheel.client.injector.routing import ConsumerRouting, Route
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.model.letters import LetterState
from millwheel.sdk.dead_letters import DeadLetter

BOOK = IncarnationId("shop.1")
CONTENT = DeadLetter("shop/bill", "k", "orders", 1, b"v", "", 1, "ValueError", "")
TARGET = LetterTarget(IncarnationId("bill.1"), "shop/orders")


class Unowned:
    """The targets of a paused topology: no worker owns an interval."""

    def __init__(self) -> None:
        self.asked = 0

    async def consumer(self, target: LetterTarget) -> ConsumerRouting:
        self.asked += 1
        await asyncio.sleep(0)
        return ConsumerRouting(target.incarnation, (Route(ALL_KEYS, "bill.1.j1", ""),))


def letter(offset: int) -> Letter:
    return Letter("shop", offset, CONTENT, LetterState.IN_REPLAY)


async def test_the_end_of_a_replays_time_does_not_hide_the_cause() -> None:
    """Regression: the last attempt met the limit, and its text replaced the cause."""
    targets: Any = Unowned()
    sender = LetterSender(targets, BOOK, 60.0, asyncio.get_running_loop().time() + 0.3)
    assert await sender.send(TARGET, [letter(0)], 1) == []
    assert targets.asked > 1
    assert sender.why.startswith("no worker owns some of the keys")
    await sender.send(TARGET, [], 1)
    assert sender.why == "", "it is of the last letters"


async def test_a_replay_names_the_cause_of_any_target() -> None:
    """The next target takes all of its letters, and has no cause."""

    class Sender:
        why = ""

        async def send(self, target: LetterTarget, letters: Any, batch: int) -> list[int]:
            self.why = "" if letters[0].offset else "it is paused"
            return [one.offset for one in letters if one.offset]

    class Book:
        batch = 1

        async def states(self) -> Any:
            return self

        async def change(self, action: Any, offsets: Any) -> None:
            pass

        async def check(self, letter: Letter) -> LetterTarget:
            return LetterTarget(IncarnationId(f"bill.{letter.offset}"), "shop/orders")

        def state(self, offset: int) -> LetterState:
            return LetterState.IN_REPLAY

    async def letters() -> Any:
        for offset in range(2):
            yield letter(offset)

    book: Any = Book()
    report = await Replay(book, book, Sender(), lambda report: None).run(letters())
    assert report.why_unconfirmed == "it is paused"
