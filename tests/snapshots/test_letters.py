"""Dead letters from before a snapshot are replayed by the restored topology (6.1.1, 4.2; G1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millwheel.client.dead_letters import DeadLetters, LetterFilter
from tests.snapshots.test_restored import snapshot
from tests.submitting import submit_copy
from tests.system import letter_shop as program
from tests.system.letter_shop import Billed, Order
from tests.system.server import WAIT, Server, run_cli
from tests.system.test_letter_targets import MENDED, letters, letters_log, order, replay, results, update


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.timeout(300)
async def test_letters_of_a_snapshot_are_replayed(tmp_path: Path) -> None:
    place = str(tmp_path / "backups")
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_copy(server.address, program.__file__, "shop", tmp_path)
        await order(server, Order("ann", "tea"), Order("ann", "bad"))
        (bill,) = (one for one in await letters(server, 2) if one.content.computation == "bill")
        for name in ("first", "second"):
            await snapshot(server, "create", "shop", "--to", place, "--name", name)
            done = await run_cli(server.address, "topology", "cancel", "shop", "--yes")
            assert done.code == 0, done.err
            await snapshot(server, "restore", place, name)
        await update(server, MENDED)
        assert (await replay(server, f"{bill.offset}@{await letters_log(server)}"))["replayed"] == [bill.offset]
        assert sorted(await results(server, "bills", Billed), key=str) == [Billed("ann", 1), Billed("ann", 2)]
        done = await run_cli(server.address, "topology", "describe", "shop", "-o", "json")
        assert json.loads(done.out)["state"] == "running"


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.timeout(300)
async def test_a_fork_replays_letters_of_its_own(tmp_path: Path) -> None:
    place, mended = str(tmp_path / "backups"), tmp_path / "mended.py"
    mended.write_text(MENDED)
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_copy(server.address, program.__file__, "shop", tmp_path)
        await order(server, Order("ann", "tea"), Order("ann", "bad"))
        found = await letters(server, 2)
        await snapshot(server, "create", "shop", "--to", place, "--name", "s")
        await snapshot(server, "restore", place, "s", "--as", "next")
        done = await run_cli(server.address, "topology", "update", f"{mended}:shop", "--as", "next", "--yes", *WAIT)
        assert done.code == 0, done.err
        for replayed in (sorted(one.offset for one in found), []):
            done = await run_cli(server.address, "dead-letter", "replay", "next", "--all", "-o", "json")
            assert sorted(json.loads(done.out)["replayed"]) == replayed, done.err
        assert sorted(await results(server, "next/bills", Billed), key=str) == [Billed("ann", 1), Billed("ann", 2)]
        assert await results(server, "shop/bills", Billed) == [Billed("ann", 1)]
        async with DeadLetters("shop", server.address) as waiting:
            assert len((await waiting.page(LetterFilter())).letters) == len(found), "the original's are as they were"
