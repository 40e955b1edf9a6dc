"""This version goes on with data directories that earlier versions wrote and never closed (docs/upgrading.md)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from millwheel.embedded.database import EmbeddedDatabase
from millwheel.model.catalog_keys import INTERVALS
from millwheel.model.formats import COLUMNS
from millwheel.rpc.v1.catalog_pb2 import IntervalMapRecord
from millwheel.worker.interval.entry import decode_entry
from tests.system.server import Server

from .database import FIRST_HALF, NOON_US, READ_BEFORE, TEXTS, counts_of, feed, path_of, read, unpack
from .golden import ALL_FORMATS
from .recorded_program import Hour, Seen

AFTER = 400
"""So many words are sent in the end. The first of them are sent a second time."""
HOUR_US = 3_600_000_000


async def test_a_recorded_database_has_windows_by_columns(tmp_path: Path) -> None:
    async with await EmbeddedDatabase.open(unpack(COLUMNS, tmp_path)) as database:
        chunks = (await database.coordinator.list(INTERVALS)).entries
        maps = [IntervalMapRecord.FromString(chunk.value) for chunk in chunks if "/hours." in chunk.key]
        (journal,) = [one.journal for found in maps for one in found.intervals]
        head = await database.store.read_head(journal)
        entries = await database.store.read_entries(journal, head.truncation_point + 1, head.commit)
    assert any(decode_entry(entry, journal).panes for entry in entries)


@pytest.mark.parametrize("number", ALL_FORMATS)
@pytest.mark.guarantee("G1", section="6.2")
async def test_a_recorded_database_goes_on_and_loses_nothing(number: int, tmp_path: Path) -> None:
    assert path_of(number).exists(), "python -m tests.formats.database"
    async with Server(unpack(number, tmp_path), tmp_path / "log") as server:
        known = await feed(server.address, 0, AFTER, NOON_US + HOUR_US)
        assert known >= 2 * (FIRST_HALF - 1), "each of the two consumers knew what it had taken before"
        seen = await read(server, "seen", Seen, AFTER - READ_BEFORE)
        ended = await read(server, "ended", Seen, len(TEXTS))
        hours = await read(server, "hours", Hour, len(TEXTS))
    counts = counts_of(AFTER)
    for text in TEXTS:
        times = [one.times for one in seen if one.text == text]
        assert times == list(range(times[0], counts[text] + 1)), "none is missing, and none comes twice"
    assert Counter({one.text: one.times for one in ended}) == counts
    assert Counter({one.key: one.times for one in hours}) == counts
