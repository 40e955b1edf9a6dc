"""A replay goes to the computation that failed, under the key that the record had; or it says why it cannot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millwheel.client.dead_letters import DeadLetters, Letter, LetterFilter, LetterState
from millwheel.client.injector import Injector
from millwheel.client.subscription import From, Subscription
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import letter_shop as program
from tests.system.letter_shop import Billed, Order
from tests.system.server import WAIT, Server, run_cli

SOURCE = Path(program.__file__).read_text()
MENDED = SOURCE.replace("BROKEN = True", "BROKEN = False")
ADDS_BILL = next(line for line in SOURCE.splitlines() if line.startswith("shop.add(Bill"))


async def update(server: Server, source: str) -> None:
    path = server.db.parent / "letter_shop.py"
    path.write_text(source)
    done = await run_cli(server.address, "topology", "update", f"{path}:shop", "--yes", *WAIT)
    assert done.code == 0, done.err


async def order(server: Server, *orders: Order) -> None:
    async with (
        asyncio.timeout(patience(30)),
        Injector("orders", address=server.address, process="p", topology=program.shop) as injector,
    ):
        await injector.send_many(orders, [number + 1 for number in range(len(orders))])
        await injector.advance(100)
        await injector.flush()


async def letters(server: Server, count: int) -> Sequence[Letter]:
    """The first so many letters, once they are there."""

    async def look() -> Sequence[Letter]:
        async with DeadLetters("shop", server.address) as found:
            return (await found.page(LetterFilter(states=frozenset(LetterState)))).letters

    letters: Sequence[Letter] = await until(look, patience(30), every=0.2, holds=lambda found: len(found) >= count)
    return letters


async def results(server: Server, stream: str, kind: Any) -> list[Any]:
    found: list[Any] = []
    async with (
        asyncio.timeout(patience(30)),
        Subscription(stream, start=From.OLDEST, record_type=kind, address=server.address) as subscription,
    ):
        async for batch in subscription.below(subscription.end):
            found += batch.values
    return found


async def letters_log(server: Server) -> int:
    """The number of the letters' log."""
    async with DeadLetters("shop", server.address) as found:
        return found.log


async def replay(server: Server, *options: str) -> dict[str, Any]:
    done = await run_cli(server.address, "dead-letter", "replay", "shop", "-o", "json", *options)
    assert done.out, done.err
    report: dict[str, Any] = json.loads(done.out)
    return report


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.timeout(300)
async def test_a_replay_reaches_only_what_has_failed(tmp_path: Path) -> None:
    async with Server(tmp_path / "db", tmp_path / "server.log", intervals=2) as server:
        await submit_copy(server.address, program.__file__, "shop", tmp_path)
        await order(server, Order("ann", "tea"), Order("ann", "bad"), Order("bob", "timed"))
        found = await letters(server, 3)
        log = await letters_log(server)
        by_name = {(one.content.computation, one.is_timer): one for one in found}
        bill, label, timer = (by_name[name] for name in (("bill", False), ("labels", False), ("bill", True)))
        assert (bill.content.key, bill.content.delivery_key) == ("ann", b"ann")
        assert label.content.key == "ann"
        assert label.content.delivery_key != b"ann", "the step has keys of its own"

        await update(server, MENDED)
        report = await replay(server, "--all")
        assert sorted(report["replayed"]) == sorted([bill.offset, label.offset])
        ((refused),) = report["refused"]
        assert refused["id"] == timer.offset
        assert "timer 'closing' of key 'bob' has no record to send again" in refused["reason"]
        assert sorted(await results(server, "bills", Billed), key=str) == [Billed("ann", 1), Billed("ann", 2)]
        assert sorted(await results(server, "audits", Billed), key=str) == [
            Billed("ann", 1), Billed("ann", 2), Billed("bob", 1),
        ]  # fmt: skip
        labels = sorted(await results(server, "labels", str))
        assert labels == ["ann has ordered bad", "ann has ordered tea", "bob has ordered timed"]
        done = await run_cli(server.address, "dead-letter", "discard", "shop", f"{timer.offset}@{log}", "--yes")
        assert done.out == "1 letter discarded\n"


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.timeout(300)
async def test_letters_of_what_is_gone_stay(tmp_path: Path) -> None:
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_copy(server.address, program.__file__, "shop", tmp_path)
        await order(server, Order("ann", "bad"))
        found, log = await letters(server, 2), await letters_log(server)
        (bill,) = (one for one in found if one.content.computation == "bill")

        await update(server, MENDED.replace(ADDS_BILL, ""))
        ((refused),) = (await replay(server, f"{bill.offset}@{log}"))["refused"]
        assert "computation 'bill' of topology 'shop' was removed" in refused["reason"]
        await update(server, MENDED)
        ((refused),) = (await replay(server, f"{bill.offset}@{log}"))["refused"]
        assert "was removed and added again since" in refused["reason"]
        assert await results(server, "bills", Billed) == []
        assert [one.state for one in await letters(server, 2)] == [LetterState.WAITING] * 2
