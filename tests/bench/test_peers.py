"""What decides in the comparison with other systems: the best run, and what the table says of failed and wrong ones."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bench.peers.__main__ import chosen
from bench.peers.jobs import Bytewax, Flink, Job, Peer
from bench.peers.reporting import Measured, table
from bench.peers.running import PeerRun
from bench.server import ServerProcess
from tests.patience import patience, until

SLOW = PeerRun(records_per_s=1_000, first_result_s=2.0, peak_mb=900, cpu_s=3.0)
FAST = PeerRun(records_per_s=2_500, first_result_s=4.0, peak_mb=1_200, cpu_s=2.5)
FAILED = PeerRun(records_per_s=9_000, error="it has ended | here")


def cells(measured: Measured) -> list[str]:
    """What the table has of the only system in it."""
    last = table([measured], 1_000_000).splitlines()[-1]
    return [cell.strip() for cell in last.strip("|").split("|")]


def test_the_best_run_is_the_fastest_without_an_error() -> None:
    assert Measured("a", "", runs=[SLOW, FAST, FAILED]).best is FAST
    assert Measured("a", "", runs=[FAILED]).best is Measured("a", "").best is None


def test_a_line_has_the_best_run_beside_all_rates() -> None:
    found = cells(Measured("a", "exactly once", {"a": "1.2"}, runs=[SLOW, FAST]))
    assert found == ["a", "exactly once", "2,500", "1,000 · 2,500", "4.0 s", "2.5 µs", "1,200 MB", "right", "a 1.2"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (PeerRun(records_per_s=1, lost=3), "3 lost"),
        (PeerRun(records_per_s=9_999, twice=1, results_twice=2), "1 twice, 2 results twice"),
        (FAILED, "it has ended / here"),
    ],
)
def test_a_line_says_what_is_wrong_with_any_run(more: PeerRun, said: str) -> None:
    assert not more.right
    assert cells(Measured("a", "", runs=[SLOW, more]))[7] == said


def test_a_line_says_why_a_system_cannot_be_run() -> None:
    found = cells(Measured("a", "exactly once", missing="it needs Python 3.12"))
    assert found[2:8] == ["–", "–", "–", "–", "–", "it needs Python 3.12"]


PEERS: list[Peer] = [Bytewax(), Flink("flink-table", Path(), {}), Flink("flink-datastream", Path(), {})]


def test_systems_are_chosen_by_how_their_names_begin() -> None:
    assert [one.name for one in chosen("flink-t, byte", PEERS)] == ["bytewax", "flink-table"]
    assert chosen("", PEERS) == PEERS


@pytest.mark.parametrize("only", ["flnik", "bytewax,spark"])
def test_a_system_that_is_not_there_is_named(only: str) -> None:
    with pytest.raises(ValueError, match=r"--only (flnik|spark): there is no such system, but bytewax, flink-table"):
        chosen(only, PEERS)


def written(program: Path, *lines: str) -> Path:
    """A program of the shell, which stays after these lines."""
    program.write_text("\n".join(["#!/bin/sh", *lines, "sleep 600", ""]))
    program.chmod(0o755)
    return program


def running(program: Path) -> list[psutil.Process]:
    """The processes of this one that run the program."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            found += [one] if str(program) in one.cmdline() else []
    return found


async def test_a_store_that_is_not_made_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = written(tmp_path / "hangs")
    monkeypatch.setattr("bench.peers.jobs.BYTEWAX", SimpleNamespace(python=program))
    job = Job(
        broker="127.0.0.1:1",
        source="from",
        target="to",
        window_ms=1_000,
        out_of_order_ms=500,
        processes=1,
        commit_seconds=1,
        place=str(tmp_path / "place"),
    )

    async def ready() -> None:
        async with Bytewax().ready(job):
            pass

    task = asyncio.ensure_future(ready())
    await until(lambda: running(program), patience(20), every=0.05)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert not running(program)


def test_a_server_that_does_not_get_ready_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = written(tmp_path / "hangs")
    monkeypatch.setattr("bench.server.READY_SECONDS", 0.2)
    with pytest.raises(RuntimeError, match="the server did not start"):
        ServerProcess(tmp_path, command=str(program))
    assert not running(program)


async def test_a_server_that_writes_much_is_not_held_up(tmp_path: Path) -> None:
    """Its output goes to a file: a pipe that is not read holds 64 KiB."""
    done = tmp_path / "done"
    much = ["echo 'ready at 127.0.0.1:4711; begin'", "head -c 300000 /dev/zero", f'touch "{done}"']
    server = await asyncio.to_thread(ServerProcess, tmp_path, command=str(written(tmp_path / "writes", *much)))
    try:
        assert server.address == "127.0.0.1:4711"
        await until(done.exists, patience(20))
    finally:
        server.kill()


def test_settings_of_default_runs_are_not_shared() -> None:
    one, other = Measured("a", ""), Measured("b", "")
    one.runs.append(SLOW)
    assert other.runs == []
