"""What a snapshot shows of growing states and within event loops (4.4, 6.2)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import millwheel as mw
from millwheel.client.injector import Injector
from millwheel.server.dev_server import DevSettings, running
from millwheel.snapshots.tables import read_snapshot_state
from tests.snapshots import ledger
from tests.snapshots.ledger import Sale
from tests.snapshots.test_states import START, take
from tests.submitting import submit_copy


@pytest.mark.guarantee("G12", section="4.4")
@pytest.mark.timeout(120)
async def test_pages_of_growing_states_are_no_keys(tmp_path: Path) -> None:
    """The entries of the journal have pages of both keys. A table is read within an event loop, as in a notebook."""
    place, count = tmp_path / "backups", 2_000
    async with running(DevSettings(tmp_path / "db", port=0)) as server:
        await submit_copy(server.address, ledger.__file__, "ledger", tmp_path)
        async with Injector("ledger/sales", address=server.address, process="p", topology=ledger.ledger) as injector:
            sales = [Sale("yz"[number % 2], 100_000 + number) for number in range(count)]
            await injector.send_many(sales, [mw.Timestamp(START)] * count, positions=range(count))
            await injector.flush()
        await take(server, place, "s")
    found = read_snapshot_state(str(place), "s", "ledger/keep").to_pylist()
    assert [(row["key"], row["state"]["last"]) for row in found] == [("y", 101_998), ("z", 101_999)]
