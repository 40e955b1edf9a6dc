"""The file injector against the real server (5.2, figure 10)."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millwheel.client.injector import Injector, InjectorSettings, InjectorSupersededError
from millwheel.client.subscription import From, Subscription
from millwheel.connectors.files.parsing import ColumnType, FileFormat, TimestampField, TimeUnit
from millwheel.injectors.errors import SourceError
from millwheel.injectors.files import FileInjector, FileSettings
from millwheel.injectors.identity import partition_name
from millwheel.model.time import Duration
from millwheel.sdk.errors import UsageError
from millwheel.server.dev_server import DevServer
from tests.injectors.conftest import Submit
from tests.injectors.test_with_server import everything
from tests.patience import patience, until
from tests.system.server import run_cli

FIELD = TimestampField("t", TimeUnit.MICROSECONDS)


def line(number: int, time: int = -1) -> str:
    return json.dumps({"user": f"u{number % 5}", "number": number, "t": number if time < 0 else time}) + "\n"


def write(path: Path, start: int, end: int, mode: str = "w") -> None:
    with path.open(mode) as file:
        file.writelines(line(number) for number in range(start, end))


def partition_of(path: Path) -> str:
    """The partition of the positions in a file of lines."""
    return partition_name(str(path.resolve()), path.read_bytes().splitlines()[:1])


async def grow(path: Path, number: int) -> None:
    """Append records until cancelled, because a tail becomes idle if its files do not grow."""
    while True:
        write(path, number, number + 1, "a")
        number += 1
        await asyncio.sleep(0.1)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    made = tmp_path / "logs"
    made.mkdir()
    return made


def numbers(rows: list[dict[str, Any]]) -> Counter[int]:
    return Counter(row["number"] for row in rows)


@pytest.mark.guarantee("G1", "G7", section="fig. 10")
async def test_files_are_injected_once_and_none_is_late(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 5_000)
    write(logs / "b.jsonl", 2_000, 9_000)
    (logs / "c.jsonl").write_text(line(9_001) + "\n" + line(9_002).rstrip())
    (logs / "empty.jsonl").touch()
    (logs / "other.txt").write_text("not ours")
    async with Injector("orders", address=server.address) as injector:
        files = FileInjector(injector, FileSettings(logs, "*.jsonl", timestamp=FIELD, finish=True))
        await files.run()
    assert (files.records, files.skipped, injector.late) == (12_002, 0, 0)
    rows = await everything(server.address, "echo")
    assert numbers(rows) == Counter([*range(5_000), *range(2_000, 9_000), 9_001, 9_002])
    assert not any(row["late"] for row in rows)


@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.parametrize("kept", [True, False])
async def test_a_restarted_reader_injects_nothing_twice(
    server: DevServer, submit: Submit, logs: Path, tmp_path: Path, kept: bool
) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 20_000)
    write(logs / "b.jsonl", 20_000, 25_000)
    checkpoint = tmp_path / "checkpoint.json" if kept else None
    settings = FileSettings(logs, timestamp=FIELD, checkpoint=checkpoint, finish=True)
    first = Injector("orders", address=server.address)
    await first.open()
    reading = FileInjector(first, settings)
    reader = asyncio.create_task(reading.run())
    partition = partition_of(logs / "a.jsonl")
    await until(lambda: (first.acknowledged(partition) or 0) >= 1_000)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await first.close()
    if checkpoint is not None:
        assert json.loads(checkpoint.read_text())[partition]["offset"] > 0
    async with Injector("orders", address=server.address) as second:
        files = FileInjector(second, settings)
        await files.run()
    assert (files.records < 25_000) is kept
    assert numbers(await everything(server.address, "echo")) == Counter(range(25_000))


@pytest.mark.guarantee("G1", section="5.2")
@pytest.mark.parametrize("kept", [True, False])
async def test_a_copy_of_a_file_injects_nothing_twice_by_its_ids(
    server: DevServer, submit: Submit, logs: Path, tmp_path: Path, kept: bool
) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 2_000)
    checkpoint = tmp_path / "checkpoint.json" if kept else None
    for files in (["a.jsonl"], ["a.jsonl", "copy.jsonl"]):
        for name in files:
            write(logs / name, 0, 2_000 if name == "a.jsonl" else 2_500)
        settings = FileSettings(logs, timestamp=FIELD, id_field="number", checkpoint=checkpoint, finish=len(files) == 2)
        async with Injector("orders", address=server.address) as injector:
            reading = FileInjector(injector, settings)
            await reading.run()
    assert reading.records == (2_500 if kept else 4_500)
    assert numbers(await everything(server.address, "echo")) == Counter(range(2_500))


@pytest.mark.guarantee("G8", section="5.2")
async def test_a_tail_follows_files_and_leaves_the_minimum_when_quiet(
    server: DevServer, submit: Submit, logs: Path
) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 100)
    settings = FileSettings(logs, timestamp=FIELD, tail=True, poll=0.01, quiet=Duration(100_000))
    async with (
        Injector("orders", address=server.address, process="tail") as injector,
        Injector("orders", address=server.address, process="other") as other,
        Subscription("echo", start=From.OLDEST, address=server.address, record_type=dict, watermarks=True) as reader,
    ):
        await other.advance(10_000)
        reading = asyncio.create_task(FileInjector(injector, settings).run())
        batches = aiter(reader)
        seen: list[int] = []

        async def see(count: int) -> None:
            while len(seen) < count:
                batch = asyncio.ensure_future(anext(batches))
                await asyncio.wait({batch, reading}, return_when=asyncio.FIRST_COMPLETED)
                assert not reading.done(), reading.exception()
                seen.extend(row["number"] for row in (await batch).values)

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
    async with Injector("orders", address=server.address) as injector:
        (logs / "a.jsonl").write_text(line(1) + "nonsense\n" + line(2))
        with pytest.raises(SourceError, match=r"a.jsonl, line 2 \(byte 36\): no JSON"):
            await FileInjector(injector, settings).run()
        await injector.flush()
        tail = FileSettings(logs, "*.log", timestamp=FIELD, tail=True, poll=0.01)
        write(logs / "x.log", 5, 9)
        follower = FileInjector(injector, tail)
        reading = asyncio.create_task(follower.run())
        partition = partition_of(logs / "x.log")
        await until(lambda: injector.acknowledged(partition) is not None)
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


@pytest.mark.paper(section="5.2")
async def test_a_checkpoint_that_cannot_be_written_stops_nothing(
    server: DevServer, submit: Submit, logs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 100)
    with pytest.raises(SourceError, match="there is no directory"):
        FileInjector(
            Injector("orders", address=server.address), FileSettings(logs, checkpoint=tmp_path / "no" / "where")
        )
    # This blocks the write, as a full disk does.
    (tmp_path / "checkpoint.json.new").mkdir()
    async with Injector("orders", address=server.address) as injector:
        settings = FileSettings(logs, timestamp=FIELD, checkpoint=tmp_path / "checkpoint.json", finish=True)
        await FileInjector(injector, settings).run()
    assert "checkpoint.json is not written" in caplog.text
    assert numbers(await everything(server.address, "echo")) == Counter(range(100))


async def tail_of(server: DevServer, count: int, stream: str = "echo") -> list[dict[str, Any]]:
    """The first ``count`` records of ``stream``, by their numbers."""
    found: list[dict[str, Any]] = []
    async with Subscription(stream, start=From.OLDEST, address=server.address, record_type=dict) as reader:
        async for batch in reader:
            found += batch.values
            if len(found) >= count:
                break
    return sorted(found, key=lambda row: row["number"])


Outcome = tuple[int, str, str]


async def command(server: DevServer, *arguments: str, **environment: str) -> Outcome:
    """The exit code, output and errors of the command line."""
    whole = [*arguments, "--address", server.address]
    done = await run_cli("", *whole, timeout=patience(60), variables=environment)
    return done.code, done.out, done.err


async def states(server: DevServer) -> dict[str, str]:
    """The state of each injector process."""
    _, out, _ = await command(server, "injector", "list", "-o", "json")
    return {one["process"]: one["state"] for one in json.loads(out)}


async def test_the_command_injects_files_and_lists_processes(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("shop")
    rows = "".join(f"u{number % 3},{number},{number}\r\n" for number in range(50))
    (logs / "orders.csv").write_bytes(("user,number,t\r\n" + rows + "oops\r\n").encode())
    options = "--format csv --timestamp t --unit s --process cli --skip-bad --column number=int --finish"
    code, printed, errors = await command(server, "inject", "file", "orders", str(logs), *options.split())
    assert (code, printed) == (0, "50 records are in orders, 0 late, 1 line skipped\n"), errors
    assert "orders.csv, line 52 (byte " in errors
    assert numbers(await everything(server.address, "echo")) == Counter(range(50))
    assert await states(server) == {"cli": "finished"}


async def test_without_finish_a_process_is_idle_and_goes_on(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 10)
    options = ["--timestamp", "t", "--unit", "us", "--process", "cli"]
    assert (await command(server, "inject", "file", "orders", str(logs), *options))[0] == 0
    assert await states(server) == {"cli": "idle"}
    write(logs / "a.jsonl", 10, 15, "a")
    options += ["--finish", "-o", "json"]
    code, printed, _ = await command(server, "inject", "file", "orders", str(logs / "a.jsonl"), *options)
    assert code == 0
    # Repeated records are behind the watermark. The receivers know their ids.
    assert json.loads(printed) == {"stream": "orders", "process": "cli", "records": 15, "late": 9, "skipped": 0}
    assert numbers(await everything(server.address, "echo")) == Counter(range(15))


async def test_lines_out_of_order_name_the_option_for_them(server: DevServer, submit: Submit, logs: Path) -> None:
    """Regression: records of such a file were late, and only their number said so."""
    await submit("shop")
    (logs / "a.jsonl").write_text(line(0, 9_000_000))
    (logs / "b.jsonl").write_text("".join(line(number, time) for number, time in enumerate([10_000_000, 0, 1])))
    how = ["--timestamp", "t", "--unit", "us"]
    for name in ("a.jsonl", "b.jsonl"):
        code, printed, errors = await command(server, "inject", "file", "orders", str(logs / name), *how)
        assert code == 0
    assert "2 known before or late" in printed, "the watermark is at the record of the first file"
    assert "up to 10 s older" in errors
    assert "--disorder 10 " in errors
    how += ["--disorder", "10", "--process", "other"]
    _, _, errors = await command(server, "inject", "file", "orders", str(logs / "b.jsonl"), *how)
    assert "older" not in errors


async def test_a_repeated_injection_reports_its_records_as_in(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("unread")
    write(logs / "a.jsonl", 0, 1)
    run = ["inject", "file", "orders", str(logs), "--timestamp", "t", "--unit", "us", "--process", "cli"]
    for _ in range(2):
        assert (await command(server, *run))[:2] == (0, "1 record is in orders, 0 late\n")
    assert [row["number"] for row in await tail_of(server, 1, "orders")] == [0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--pattern", "*.nothing"], "no file in .* matches '\\*.nothing'"),
        (["--timestamp", "t"], "say how the field 't' is written"),
        (["--timestamp", "t", "--unit", "us"], "a.jsonl, line 3 .*field 't': 2 as microseconds is 1970"),
        (["--timestamp", "at", "--unit", "s", "--any-timestamp"], "a.jsonl, line 1 .*no field 'at'"),
        (["--tail", "--finish"], "no end"),
    ],
)
async def test_a_refused_run_leaves_no_active_process(
    server: DevServer, submit: Submit, logs: Path, options: list[str], said: str
) -> None:
    await submit("shop")
    (logs / "a.jsonl").write_text(line(0, 1_700_000_000_000_000) + line(1, 1_700_000_000_000_000) + line(2, 2))
    code, _, errors = await command(server, "inject", "file", "orders", str(logs), *options, MILLWHEEL_ANY_TIMESTAMP="")
    assert code != 0
    assert re.search(said, errors), errors
    assert "active" not in (await states(server)).values()
    code, _, errors = await command(
        server, "inject", "file", "orders", str(logs), "--timestamp", "t", "--unit", "us", "--any-timestamp"
    )
    assert code == 0, errors


async def test_finishing_names_the_processes_that_have_not_finished(
    server: DevServer, submit: Submit, logs: Path
) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 3)
    async with Injector("orders", address=server.address, process="other") as other:
        await other.idle()
    options = ["--timestamp", "t", "--unit", "us", "--id", "number", "--finish"]
    code, _, errors = await command(server, "inject", "file", "orders", str(logs), *options)
    assert code == 0, errors
    assert "wait for injector process other, which is idle" in errors
    assert "`millwheel injector finish orders other`" in errors


@pytest.mark.parametrize("value", ['""', "true", "null", "1.5"])
async def test_a_line_without_a_usable_id_is_refused(server: DevServer, submit: Submit, logs: Path, value: str) -> None:
    await submit("shop")
    (logs / "a.jsonl").write_text(f'{{"user": "u", "number": 1, "t": 1, "name": {value}}}')
    async with Injector("orders", address=server.address) as injector:
        files = FileInjector(injector, FileSettings(logs, timestamp=FIELD, id_field="name"))
        with pytest.raises(SourceError, match=r"a\.jsonl, line 1 .*the field 'name' is no id"):
            await files.run()


async def test_a_unit_that_is_probably_wrong_is_named(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("shop")
    (logs / "a.jsonl").write_text(line(0, 1_700_000_000))
    options = ["--timestamp", "t", "--unit", "ms"]
    _, _, errors = await command(server, "inject", "file", "orders", str(logs), *options, MILLWHEEL_ANY_TIMESTAMP="")
    assert "did you mean --unit s? If not, give --any-timestamp" in " ".join(errors.split())


async def test_a_line_of_another_type_is_named(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("shop")
    bad = json.dumps({"user": "u", "number": "seven", "t": 1}) + "\n"
    keyless = json.dumps({"number": 7, "t": 1}) + "\n"
    (logs / "a.jsonl").write_text(line(1) + bad + line(2) + keyless + line(3))
    options = ["--timestamp", "t", "--unit", "us", "--process", "cli"]
    code, _, errors = await command(server, "inject", "file", "orders", str(logs), *options)
    assert code != 0
    assert re.search(r"a.jsonl, line 2 \(byte \d+\): .*`int`, got `str`.*number", " ".join(errors.split()))
    assert await states(server) == {"cli": "idle"}
    code, printed, errors = await command(
        server, "inject", "file", "orders", str(logs), *options, "--skip-bad", "--finish"
    )
    assert (code, printed) == (0, "3 records are in orders, 0 late, 2 lines skipped\n"), errors
    assert numbers(await everything(server.address, "echo")) == Counter([1, 2, 3])


async def test_lines_for_a_stream_without_consumers_are_checked(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("unread")
    (logs / "a.jsonl").write_text(line(1) + json.dumps({"user": "u", "number": "seven", "t": 1}) + "\n" + line(2))
    options = ["--timestamp", "t", "--unit", "us", "--skip-bad", "--finish"]
    code, printed, errors = await command(server, "inject", "file", "orders", str(logs), *options)
    assert (code, printed) == (0, "2 records are in orders, 0 late, 1 line skipped\n"), errors
    assert re.search(r"a.jsonl, line 2 \(byte \d+\): .*`int`, got `str`.*number", " ".join(errors.split()))
    assert numbers(await everything(server.address, "orders")) == Counter([1, 2])


async def test_a_quoted_field_of_several_lines_is_one_bad_record(
    server: DevServer, submit: Submit, logs: Path, tmp_path: Path
) -> None:
    await submit("shop")
    (logs / "a.csv").write_text('user,number,t\na,1,1\n"b\n\nc,7,7\nd",2,2\ne,3,3\n')
    skipped = tmp_path / "skipped.csv"
    run = ["inject", "file", "orders", str(logs), "--format=csv", "--timestamp=t", "--unit=us", "--process=cli"]
    code, _, errors = await command(server, *run, "--column=number=int")
    assert code == 5
    assert re.search(r"a.csv, line 3 .*a line is a record here.*1 record before it is in", " ".join(errors.split()))
    options = ["--column=number=int", f"--skipped-to={skipped}", "--finish"]
    code, printed, errors = await command(server, *run, *options)
    assert (code, printed) == (0, "2 records are in orders, 0 late, 4 lines skipped\n"), errors
    assert skipped.read_text() == 'user,number,t\n"b\n\nc,7,7\nd",2,2\n'
    assert numbers(await everything(server.address, "echo")) == Counter([1, 3])


async def test_a_checkpoint_begins_no_reading_within_quotes(
    server: DevServer, submit: Submit, logs: Path, tmp_path: Path
) -> None:
    await submit("shop")
    (logs / "a.csv").write_text('user,number,t\na,1,1\n"b\nc,7,7\n')
    number = {"number": ColumnType.INT}
    for more in ("", 'd",2,2\ne,3,3\n'):
        with (logs / "a.csv").open("a") as file:
            file.write(more)
        settings = FileSettings(
            logs, form=FileFormat.CSV, timestamp=FIELD, types=number, checkpoint=tmp_path / "checkpoint.json",
            skip_bad=True, finish=bool(more),
        )  # fmt: skip
        async with Injector(
            "orders", address=server.address, settings=InjectorSettings(check_at_worker=True)
        ) as injector:
            await FileInjector(injector, settings).run()
    assert numbers(await everything(server.address, "echo")) == Counter([1, 3])


async def test_a_text_in_a_column_of_numbers_names_the_option(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("shop")
    (logs / "a.csv").write_text("user,number,t\na,1,1\n")
    code, _, errors = await command(server, "inject", "file", "orders", str(logs), "--format", "csv")
    assert code == 5
    assert "give --column number=int" in " ".join(errors.split())


async def test_raw_lines_feed_text_streams_and_none_with_fields(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("spoken")
    (logs / "a.txt").write_text("käse\nbrot\n")
    run = ["--format", "lines", "--finish"]
    code, printed, errors = await command(server, "inject", "file", "words", str(logs), *run)
    assert (code, printed) == (0, "2 records are in words, 0 late\n"), errors
    async with Subscription("words", start=From.OLDEST, address=server.address, record_type=str) as reader:
        assert (await anext(aiter(reader))).values == ["käse", "brot"]
    await submit("shop")
    code, _, errors = await command(server, "inject", "file", "orders", str(logs), *run)
    assert code == 5
    said = " ".join(errors.split())
    assert "is no Order" in said
    assert "raw lines are for streams of bytes or str" in said


async def test_a_run_with_a_successor_does_not_name_it_as_its_own(
    server: DevServer, submit: Submit, logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 10)
    first = Injector("orders", address=server.address, process="cli")
    await first.open()
    running = asyncio.create_task(FileInjector(first, FileSettings(logs, timestamp=FIELD, tail=True)).run())
    async with Injector("orders", address=server.address, process="cli"):
        with pytest.raises(InjectorSupersededError):
            await asyncio.wait_for(running, patience(20))
    await first.close()
    assert "stays active" not in caplog.text


async def test_a_run_that_ends_with_unacked_records_stays_active(
    server: DevServer, submit: Submit, logs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millwheel.injectors.leaving.LEAVE_SECONDS", 0.2)
    await submit("poisoned")
    write(logs / "a.jsonl", 0, 1)
    injector = Injector("orders", address=server.address, process="cli")
    await injector.open()
    reading = FileInjector(injector, FileSettings(logs, timestamp=FIELD, tail=True))
    running = asyncio.create_task(reading.run())
    await until(lambda: injector.unacked == 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await injector.close()
    assert "injector process cli stays active" in caplog.text
    assert await states(server) == {"cli": "active"}


async def test_a_stream_keyed_by_code_is_fed_by_files(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("codekeyed")
    write(logs / "a.jsonl", 0, 3_000)
    options = ["--timestamp", "t", "--unit", "us", "--finish"]
    code, printed, errors = await command(server, "inject", "file", "orders", str(logs), *options)
    assert (code, printed) == (0, "3,000 records are in orders, 0 late\n"), errors
    assert {row["bucket"]: row["count"] for row in await everything(server.address, "totals")} == {
        "0": 1_000, "1": 1_000, "2": 1_000
    }  # fmt: skip


async def test_a_tail_that_is_ended_leaves_its_process_idle(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("shop")
    write(logs / "a.jsonl", 0, 10)
    options = ["--tail", "--timestamp", "t", "--unit", "us", "--process", "cli"]
    program = [sys.executable, "-c", "from millwheel.cli.main import main; main()"]
    arguments = ["inject", "file", "orders", str(logs), *options, "--address", server.address]
    tail = await asyncio.create_subprocess_exec(*program, *arguments)
    growing = asyncio.create_task(grow(logs / "a.jsonl", 10))

    async def active() -> bool:
        return await states(server) == {"cli": "active"}

    await until(active, patience(60))
    growing.cancel()
    await tail_of(server, len((logs / "a.jsonl").read_text().splitlines()))
    tail.terminate()
    assert await asyncio.wait_for(tail.wait(), patience(20)) == 143
    assert await states(server) == {"cli": "idle"}


async def test_a_two_phase_aggregation_is_fed_by_files(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("two_phases")
    write(logs / "a.jsonl", 0, 1_000)
    options = ["--timestamp", "t", "--unit", "us", "--finish"]
    assert (await command(server, "inject", "file", "orders", str(logs), *options))[0] == 0
    assert sum(row["value"] for row in await everything(server.address, "busy")) == 1_000


@pytest.mark.guarantee("G7", section="5.2")
@pytest.mark.parametrize("options", [[], ["--skip-bad"]])
async def test_a_refused_time_is_no_watermark(
    server: DevServer, submit: Submit, logs: Path, options: list[str]
) -> None:
    await submit("shop")
    now = 1_700_000_000
    (logs / "a.jsonl").write_text(line(0, now * 1_000) + line(1, now))
    run = ["inject", "file", "orders", str(logs), "--timestamp", "t", "--unit", "s", "--process", "cli", *options]
    code, _, errors = await command(server, *run, MILLWHEEL_ANY_TIMESTAMP="")
    assert code == (0 if options else 5), errors
    assert ("no record before it was injected" in " ".join(errors.split())) is not bool(options)
    async with Injector("orders", address=server.address, process="cli") as injector:
        assert injector.watermark <= now * 1_000_000


async def test_a_refused_line_reports_how_many_records_went_in(server: DevServer, submit: Submit, logs: Path) -> None:
    await submit("shop")
    (logs / "a.jsonl").write_text(line(1) + line(2) + "nonsense\n")
    code, _, errors = await command(server, "inject", "file", "orders", str(logs), "--timestamp", "t", "--unit", "us")
    assert code == 5
    said = " ".join(errors.split())
    assert "2 records before it are in the stream" in said
    assert "--skipped-to FILE" in said


@pytest.mark.guarantee("G1", section="5.2")
async def test_other_files_under_one_name_are_taken(server: DevServer, submit: Submit, tmp_path: Path) -> None:
    await submit("shop")
    days = [tmp_path / day / "orders.jsonl" for day in ("day1", "day2", "day2")]
    for number, file in enumerate(days):
        file.parent.mkdir(exist_ok=True)
        write(file, number * 10, number * 10 + 10)
        settings = FileSettings(file.parent, file.name, timestamp=FIELD, finish=number == 2)
        async with Injector("orders", address=server.address) as injector:
            await FileInjector(injector, settings).run()
    assert numbers(await everything(server.address, "echo")) == Counter(range(30))


@pytest.mark.guarantee("G1", section="5.2")
async def test_a_checkpoint_refuses_a_file_that_was_edited(
    server: DevServer, submit: Submit, logs: Path, tmp_path: Path
) -> None:
    await submit("shop")
    settings = FileSettings(logs, timestamp=FIELD, checkpoint=tmp_path / "checkpoint.json")
    for text in (line(1) + line(2), line(1) + line(2) + line(3)):
        (logs / "a.jsonl").write_text(text)
        async with Injector("orders", address=server.address) as injector:
            await FileInjector(injector, settings).run()
    (logs / "a.jsonl").write_text(line(1) + line(7) + line(3) + line(4))
    async with Injector("orders", address=server.address) as injector:
        with pytest.raises(SourceError, match=r"a.jsonl: its first .* bytes are not those that were injected before"):
            await FileInjector(injector, settings).run()
    assert [row["number"] for row in await tail_of(server, 3)] == [1, 2, 3]


async def test_skipped_lines_can_be_corrected_and_injected(
    server: DevServer, submit: Submit, logs: Path, tmp_path: Path
) -> None:
    await submit("shop")
    (logs / "a.csv").write_text("user,number,t\nu,1,1\noops\nu,3,3\n")
    skipped = tmp_path / "skipped.csv"
    options = ["--format=csv", "--timestamp=t", "--unit=us", "--column=number=int", "--process=cli", "--skipped-to"]
    run = ["inject", "file", "orders", str(logs), *options, str(skipped)]
    code, _, errors = await command(server, *run)
    assert code == 0, errors
    assert f"the skipped lines are in {skipped}" in " ".join(errors.split())
    assert skipped.read_text() == "user,number,t\noops\n"
    assert (await command(server, *run))[0] == 5
    skipped.write_text(skipped.read_text().replace("oops", "u,2,2"))
    mended = ["inject", "file", "orders", str(skipped), *options[:-1], "--finish"]
    assert (await command(server, *mended))[0] == 0
    assert numbers(await everything(server.address, "echo")) == Counter([1, 2, 3])
