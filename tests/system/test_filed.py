"""A server reads files and writes Parquet files by itself, and is killed meanwhile (G1, G15)."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path

import pytest

from tests.connectors.files.given import compressed, contents_of, files_in, records_in
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import filed
from tests.system.server import Server, run_cli

FIRST = 4
"""How many files are there at first. Each makes 30 files of Parquet."""
MORE = (1, 1, 2)
"""How many come after each kill, so that each life of the server has enough to do, however quick the former one was."""


@pytest.mark.timeout(240)
@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.guarantee("G15")
async def test_each_line_is_in_one_parquet_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILED_FOLDER", str(tmp_path))
    place = tmp_path / "in"
    place.mkdir()
    names = [f"{number}.jsonl{'.gz' if number % 2 else ''}" for number in range(filed.FILES)]

    def put(name: str) -> None:
        text = "".join(
            f'{{"number":{number},"at":{filed.BEGIN + number * filed.STEP}}}\n' for number in range(filed.LINES)
        )
        part = place / f".{name}"
        part.write_bytes(compressed(text.encode(), part.suffix))
        part.rename(place / name)

    def written() -> int:
        return len(files_in(out))

    left = iter(names)
    for name in islice(left, FIRST):
        put(name)
    out = tmp_path / "out"
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_copy(server.address, filed.__file__, "filed", tmp_path)
        before = 0
        for more in MORE:
            await until(written, patience(60), every=0.05, holds=(before + 20).__lt__)
            await server.kill()
            before = written()
            for name in islice(left, more):
                put(name)
            await server.start()
        await until(lambda: len(records_in(out)) >= filed.FILES * filed.LINES, patience(120), every=0.5)
        await asyncio.sleep(1)
        shown = await run_cli(server.address, "key", "inspect", "filed/numbers-reader", names[1])
        assert f'"line":{filed.LINES}' in shown.out, shown.out
        assert '"read_at":"20' in shown.out, "a time is shown as one"
    # In the order of the batches, each file's numbers are in their order: all are in one shard.
    batches = sorted(files_in(out).items(), key=lambda one: one[0].rpartition("/")[2])
    rows = [row for name, content in batches for row in contents_of(name, content)]
    for name in names:
        assert [row["number"] for row in rows if row["file"] == name] == list(range(filed.LINES))
    assert {name.rpartition("/")[0] for name in files_in(out)} == {f"date=2026-01-01/hour={hour}" for hour in (12, 13)}
