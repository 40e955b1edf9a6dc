"""Copies of a broadcast table on a server that is killed, while their intervals are split and merged (G1, G11, G15)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import millwheel as mw
from millwheel.client.control import ControlClient
from millwheel.client.injector import Injector
from millwheel.client.states import StateReader
from millwheel.client.subscription import Subscription
from tests.patience import patience
from tests.reshaping import reshape
from tests.submitting import submit_copy
from tests.system import rules as program
from tests.system.rules import Checked, Payment, Rule
from tests.system.server import Server

SEED = 7
ROUNDS = 45
START = mw.Timestamp(1_700_000_000_000_000)
CUTS = {name: [str(key) for key in range(1, 8)] for name in ("now", "then")}
"""The keys of both computations are those of the copies, 0 to 7."""
Table = dict[str, int]


def after(table: Table, rule: Rule) -> Table:
    changed = {key: version for key, version in table.items() if key != str(rule.id)}
    return changed if program.off(rule) else {**changed, str(rule.id): rule.version}


def moments() -> Iterator[tuple[int, Rule, list[Payment]]]:
    """Rounds of one change, and payments before and after it. The times of the rounds differ by 10 microseconds."""
    chance = random.Random(SEED)
    for number in range(ROUNDS):
        yield (
            number * 10,
            Rule(chance.randrange(4), number),
            [Payment(number * 10 + place, chance.randrange(40)) for place in range(10)],
        )


@asynccontextmanager
async def injectors(address: str) -> AsyncIterator[tuple[Injector, Injector]]:
    async with (
        Injector("changes", address=address, process="one", topology=program.rules) as changes,
        Injector("payments", address=address, process="one", topology=program.rules) as payments,
    ):
        yield changes, payments


async def read(address: str, stream: str) -> list[Checked]:
    subscription = Subscription(
        stream, cursor="verifier", record_type=Checked, address=address, until_end=True, patience=patience(60)
    )
    async with subscription:
        return [value async for batch in subscription for _, _, value in batch]


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.guarantee("G11", section="7.1")
@pytest.mark.guarantee("G15")
@pytest.mark.timeout(240)
async def test_all_copies_have_one_history_through_kills(tmp_path: Path) -> None:
    chance, done = random.Random(SEED), set[str]()
    history: list[Table] = [{}]
    by_time: dict[int, Table] = {}
    async with Server(tmp_path / "db", tmp_path / "server.log", intervals=2) as server:
        await submit_copy(server.address, program.__file__, "rules", tmp_path)
        async with (
            injectors(server.address) as (changes, payments),
            ControlClient(server.address, patience=patience(30)) as client,
        ):
            for at, rule, paid in moments():
                for place, payment in enumerate(paid):
                    by_time[payment.number] = history[-1] if place < 5 else after(history[-1], rule)
                    await payments.send(payment, timestamp=mw.Timestamp(START + at + place))
                await changes.send(rule, timestamp=mw.Timestamp(START + at + 5))
                history.append(after(history[-1], rule))
                done.add(await reshape(client, "rules", CUTS, (), chance))
                if rule.version % 15 == 14:
                    await server.kill()
                    await server.start()
                await changes.flush()  # the changes take effect in their order
                if rule.version % 3 == 0:
                    await asyncio.gather(*(one.advance(mw.Timestamp(START + at)) for one in (changes, payments)))
            # A change that comes too early is refused. On a busy machine these may be all of one kind.
            async with asyncio.timeout(patience(20)):
                while not {"split", "merge"} <= done:
                    done.add(await reshape(client, "rules", CUTS, (), chance))
                    await asyncio.sleep(0.1)
            await payments.flush()
            async with StateReader("rules/now-table", dict[str, tuple[int, Rule]], address=server.address) as states:
                table = await states.get("")
            assert {key: row.version for key, (_, row) in (table or {}).items()} == history[-1]
            await asyncio.gather(*(one.finish() for one in (changes, payments)))
        now, then = await asyncio.gather(read(server.address, "now"), read(server.address, "then"))
    assert sorted(one.number for one in now) == sorted(by_time)
    assert [one for one in now if one.table not in history] == []
    assert {one.number: one.table for one in then} == by_time
    assert len(then) == len(by_time)
