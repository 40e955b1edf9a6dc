"""Each record is in one file, however often the subscriber dies and wherever."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from examples.gallery import exact_files as program
from examples.gallery.exact_files import Order, exact_files, export
from millwheel.client.injector import Injector
from millwheel.client.subscription import Subscription
from millwheel.server.dev_server import DevSettings, running
from tests.examples.gallery.playing import at, play
from tests.submitting import submit_copy

chance = Random(14)
ORDERS = [Order(number, chance.randrange(5_000)) for number in range(300)]
LARGE = [order for order in ORDERS if order.cents >= 1_000]


class KilledError(Exception):
    """The subscriber dies."""


def test_large_orders_pass() -> None:
    harness = play(exact_files, [("orders", order, at(order.order)) for order in ORDERS])
    assert sorted(harness.values("large"), key=lambda one: one.order) == LARGE


async def test_each_record_is_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, ack, chance = Path.rename, Subscription.ack, Random(15)

    def rename_or_die(part: Path, name: Path) -> Path:
        if chance.random() < 0.3:
            raise KilledError  # nothing of the batch is in a file
        return rename(part, name)

    async def ack_or_die(subscription: Subscription, below_offset: int) -> None:
        if chance.random() < 0.3:
            raise KilledError  # the batch is in a file, and comes again
        await ack(subscription, below_offset)

    monkeypatch.setattr(Path, "rename", rename_or_die)
    monkeypatch.setattr(Subscription, "ack", ack_or_die)
    files = tmp_path / "files"
    files.mkdir()
    async with running(DevSettings(db=tmp_path / "db", port=0)) as server:
        await submit_copy(server.address, program.__file__, "exact_files", tmp_path)
        async with Injector("exact-files/orders", process="shop", address=server.address) as injector:
            for order in ORDERS:
                await injector.send(order, timestamp=at(order.order))
            await injector.finish()
        kills = 0
        while True:
            try:
                await export(files, server.address, most=chance.choice([7, 20, 33]))
                break
            except KilledError:
                kills += 1
    assert kills > 3
    written = [line for file in sorted(files.glob("*.jsonl")) for line in file.read_bytes().splitlines()]
    found = [msgspec.json.decode(line, type=Order) for line in written]
    assert sorted(found, key=lambda one: one.order) == LARGE
