"""The file injector against the real server (5.2, figure 10)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millwheel.cli.dev_server import DevServer
from millwheel.client.injector import Injector
from millwheel.client.subscription import From, Subscription
from millwheel.core.time import Duration
from millwheel.injectors.files import FileInjector, FileSettings, SourceError
from millwheel.injectors.parsing import FileFormat, TimestampField
from millwheel.sdk.errors import UsageError
from tests.injectors.conftest import Submit
from tests.injectors.test_with_server import everything
from tests.patience import patience

FIELD = TimestampField("t")


def line(number: int, time: int = -1) -> str:
    return json.dumps({"user": f"u{number % 5}", "number": number, "t": number if time < 0 else time}) + "\n"


def write(path: Path, start: int, end: int, mode: str = "w") -> None:
    with path.open(mode) as file:
        file.writelines(line(number) for number in range(start, end))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    made = tmp_path / "logs"
    made.mkdir()
    return made


def numbers(rows: list[dict[str, Any]]) -> Counter[int]:
    return Counter(row["number"] for row in rows)


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110  # what it looks at tells nobody
        await asyncio.sleep(0.001)


async def test_g1_g7_files_are_injected_once_and_none_is_late_fig_10(
    server: DevServer, submit: Submit, logs: Path
) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 5_000)
    write(logs / "b.jsonl", 2_000, 9_000)
    (logs / "c.jsonl").write_text(line(9_001) + "\n" + line(9_002).rstrip())
    (logs / "empty.jsonl").touch()
    (logs / "other.txt").write_text("not ours")
    async with Injector(server.address, "orders") as injector:
        files = FileInjector(injector, FileSettings(logs, "*.jsonl", timestamp=FIELD))
        await files.run()
    assert (files.records, files.skipped, injector.late) == (12_002, 0, 0)
    rows = await everything(server.address, "echo")
    assert numbers(rows) == Counter([*range(5_000), *range(2_000, 9_000), 9_001, 9_002])
    assert not any(row["late"] for row in rows)


@pytest.mark.parametrize("kept", [True, False])
async def test_g1_a_restarted_reader_injects_nothing_twice_5_2(
    server: DevServer, submit: Submit, logs: Path, tmp_path: Path, kept: bool
) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 20_000)
    write(logs / "b.jsonl", 20_000, 25_000)
    checkpoint = tmp_path / "checkpoint.json" if kept else None
    settings = FileSettings(logs, timestamp=FIELD, checkpoint=checkpoint)
    first = Injector(server.address, "orders")
    await first.open()
    reader = asyncio.create_task(FileInjector(first, settings).run())
    await until(lambda: (first.acknowledged("a.jsonl") or 0) >= 1_000)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await first.close()
    if checkpoint is not None:
        assert json.loads(checkpoint.read_text())["a.jsonl"]["offset"] > 0
    async with Injector(server.address, "orders") as second:
        files = FileInjector(second, settings)
        await files.run()
    assert (files.records < 25_000) is kept
    assert numbers(await everything(server.address, "echo")) == Counter(range(25_000))


async def test_g8_a_tail_follows_growing_and_new_files_and_leaves_the_minimum_when_quiet_5_2(
    server: DevServer, submit: Submit, logs: Path
) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 100)
    settings = FileSettings(logs, timestamp=FIELD, tail=True, poll=0.01, quiet=Duration(100_000))
    async with (
        Injector(server.address, "orders", process="tail") as injector,
        Injector(server.address, "orders", process="other") as other,
        Subscription("echo", start=From.OLDEST, address=server.address, record_type=dict, watermarks=True) as reader,
    ):
        await other.advance(10_000)
        reading = asyncio.create_task(FileInjector(injector, settings).run())
        batches = aiter(reader)
        seen: list[int] = []

        async def see(count: int) -> None:
            while len(seen) < count:
                seen.extend(row["number"] for row in (await anext(batches)).values)

        await see(100)
        with (logs / "a.jsonl").open("a") as file:
            file.write(line(100) + line(101)[:10])
            file.flush()
            await see(101)
            await asyncio.sleep(0.05)
            file.write(line(101)[10:])
        write(logs / "b.jsonl", 102, 110)
        await see(110)
        assert Counter(seen) == Counter(range(110))
        while reader.watermark < 10_000:
            await anext(batches)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_csv_and_files_that_cannot_be_read(server: DevServer, submit: Submit, logs: Path, tmp_path: Path) -> None:
    await submit("shop")
    settings = FileSettings(logs, "*.jsonl", timestamp=FIELD)
    async with Injector(server.address, "orders") as injector:
        (logs / "a.jsonl").write_text(line(1) + "nonsense\n" + line(2))
        with pytest.raises(SourceError, match=r"a.jsonl, byte 36: no JSON"):
            await FileInjector(injector, settings).run()
        await injector.flush()
        tail = FileSettings(logs, "*.log", timestamp=FIELD, tail=True, poll=0.01)
        write(logs / "x.log", 5, 9)
        reading = asyncio.create_task(FileInjector(injector, tail).run())
        await until(lambda: injector.acknowledged("x.log") is not None)
        (logs / "x.log").write_text(line(77))
        with pytest.raises(SourceError, match="must not be truncated"):
            await asyncio.wait_for(reading, patience(5))
        broken = tmp_path / "broken.json"
        broken.write_text("[]")
        with pytest.raises(SourceError, match="nothing is injected twice"):
            FileInjector(injector, FileSettings(logs, checkpoint=broken))
        with pytest.raises(UsageError, match="raw lines"):
            FileInjector(injector, FileSettings(logs, form=FileFormat.LINES, timestamp=FIELD))
    assert [row["number"] for row in await tail_of(server, 5)] == [1, 5, 6, 7, 8]


async def test_a_checkpoint_that_cannot_be_written_stops_nothing_5_2(
    server: DevServer, submit: Submit, logs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 100)
    with pytest.raises(SourceError, match="there is no directory"):
        FileInjector(Injector(server.address, "orders"), FileSettings(logs, checkpoint=tmp_path / "no" / "where"))
    # In the way, as a full disk would be.
    (tmp_path / "checkpoint.json.new").mkdir()
    async with Injector(server.address, "orders") as injector:
        settings = FileSettings(logs, timestamp=FIELD, checkpoint=tmp_path / "checkpoint.json")
        await FileInjector(injector, settings).run()
    assert "checkpoint.json is not written" in caplog.text
    assert numbers(await everything(server.address, "echo")) == Counter(range(100))


async def tail_of(server: DevServer, count: int) -> list[dict[str, Any]]:
    """The first ``count`` records of "echo", by their numbers."""
    found: list[dict[str, Any]] = []
    async with Subscription("echo", start=From.OLDEST, address=server.address, record_type=dict) as reader:
        async for batch in reader:
            found += batch.values
            if len(found) >= count:
                break
    return sorted(found, key=lambda row: row["number"])


async def test_the_command_line_injects_and_lists(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("shop")
    rows = "".join(f"u{number % 3},{number},{number}\r\n" for number in range(50))
    (logs / "orders.csv").write_bytes(("user,number,t\r\n" + rows + "oops\r\n").encode())

    def run(*arguments: str) -> str:
        command = [sys.executable, "-c", "from millwheel.cli.main import main; main()", *arguments]
        done = subprocess.run(
            [*command, "--address", server.address], capture_output=True, text=True, timeout=patience(30), check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    options = (
        "--format",
        "csv",
        "--timestamp",
        "t",
        "--unit",
        "s",
        "--process",
        "cli",
        "--skip-bad",
        "--column",
        "number=int",
    )
    told = await asyncio.to_thread(run, "inject", "file", "orders", str(logs), *options)
    assert told == "50 records injected into orders, 1 lines skipped\n"
    assert numbers(await everything(server.address, "echo")) == Counter(range(50))
    listed = json.loads(await asyncio.to_thread(run, "injector", "list", "orders", "-o", "json"))
    assert [(one["stream"], one["process"], one["state"], one["watermark"]) for one in listed] == [
        ("orders", "cli", "finished", "+inf")
    ]
    assert "finished" in await asyncio.to_thread(run, "injector", "list")
