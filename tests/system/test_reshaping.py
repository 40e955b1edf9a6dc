"""Intervals of a development server are split and merged from the command line while records flow (G1, G11; 7.1)."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from millwheel.client.control import ControlClient
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import interval_pb2 as wire
from tests.faults.load import CUTS
from tests.patience import patience
from tests.system.server import Server, run_cli
from tests.system.test_restarts import loaded_server

SEED = 23
ROUNDS = 15


async def split_where_the_load_is_halved(server: Server) -> None:
    """Split as soon as the owner has reported its keys. Both halves then have some of them."""
    for _ in range(40):
        shown = await run_cli(server.address, "interval", "split", "faults/numberer", "--key", "k-01", "-o", "json")
        if shown.code == 0:
            break
        assert shown.code == 6, shown.err
        # The report is missing, or has only the first one or two keys.
        assert "has not reported its keys' load yet" in shown.err or "no key divides the load" in shown.err
        await asyncio.sleep(0.25)
    lower, upper = json.loads(shown.out)
    assert lower["parents"] == upper["parents"] != []
    boundary = upper["keys"].split("'")[1]
    assert boundary in CUTS["numberer"], upper["keys"]


async def children_have_let_go(client: ControlClient, computation: str) -> None:
    """Wait, but not for ever, until no interval of the computation needs a parent's journal."""
    for _ in range(40):
        shown = await client.list_intervals("faults", computation)
        if not any(one.interval.parents for one in shown):
            break
        await asyncio.sleep(0.1)


async def change_something(client: ControlClient, chance: random.Random, done: Counter[str]) -> None:
    """Split at a random key, or merge. Often the children of the last change are not independent yet."""
    computation = chance.choice(["numberer", "adder"])
    if chance.random() < 0.5:
        await children_have_let_go(client, computation)
    at = chance.choice(CUTS[computation]).encode()
    shown = await client.list_intervals("faults", computation)
    verb = "split" if len(shown) <= 3 and chance.random() < 0.6 else "merge"
    try:
        if verb == "split":
            await client.split_interval(name(computation, at), at)
        else:
            # The last interval has no neighbour after it. This requests its merge now and then.
            first = min(shown, key=lambda one: one.interval.keys.start).interval.keys.start
            await client.merge_intervals(name(computation, first if chance.random() < 0.7 else at))
        done[verb] += 1
    except RequestError as error:
        done[error.reason] += 1


def name(computation: str, key: bytes) -> wire.IntervalName:
    return wire.IntervalName(topology="faults", computation=computation, key=key)


@pytest.mark.guarantee("G11", section="7.1")
@pytest.mark.timeout(240)
async def test_a_development_server_splits_and_merges_through_kills(tmp_path: Path) -> None:
    chance, done = random.Random(SEED), Counter[str]()
    async with loaded_server(tmp_path, SEED, intervals=1) as (server, _, _):
        await split_where_the_load_is_halved(server)
        for number in range(ROUNDS):
            await asyncio.sleep(chance.uniform(0.05, 0.8))
            async with ControlClient(server.address, patience=patience(20)) as client:
                await change_something(client, chance, done)
            if number % 5 == 4:
                await server.kill()
                await server.spawn()
                await server.ready()
        nowhere = await run_cli(server.address, "interval", "move", "faults/numberer", "--key", "k-01")
        assert (nowhere.code, nowhere.out) == (6, "")
        assert "start another worker first" in nowhere.err
    assert done.keys() <= {"split", "merge", "HAS_PARENTS", "KEY_OUTSIDE", "NO_NEIGHBOUR"}, done
    assert done["split"] >= 2, done
    assert done["merge"] >= 1, done
