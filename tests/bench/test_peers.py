"""What decides in the comparison with other systems: the best run, and what the table says of failed and wrong ones."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bench.kafka_count.checking import Arrival
from bench.kafka_count.hits import Hits, Window
from bench.peers import java
from bench.peers.__main__ import main
from bench.peers.hooks import figures_of
from bench.peers.jobs import Bytewax, Flink, Job, Peer, Started, started_by
from bench.peers.reporting import Measured, table
from bench.peers.running import PeerRun, measure
from bench.peers.systems import all_peers, chosen
from bench.server import ServerProcess
from deploy.local.apt import InstallError
from deploy.local.child import ChildProcess
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


def test_at_least_once_may_repeat_results_after_a_kill_alone() -> None:
    again = PeerRun(records_per_s=1, results_twice=2)
    assert not again.keeps("at least once")
    killed = PeerRun(records_per_s=1, results_twice=2, recovery_s=3.25)
    assert killed.keeps("at least once")
    assert not killed.keeps("exactly once")
    assert not PeerRun(records_per_s=1, lost=1, recovery_s=3.25).keeps("at least once")


def test_a_line_has_the_seconds_of_each_recovery() -> None:
    assert cells(Measured("a", "", runs=[PeerRun(records_per_s=1, recovery_s=3.25), FAILED]))[9:] == ["3.2 s · –"]


def test_a_form_has_its_rate_as_a_multiple_of_a_like_one() -> None:
    runs = {"millwheel.batch": [(300.0, 3.0), (200.0, 4.0)], "bytewax.logic": [(100.0, 9.0), (200.0, 5.0)]}
    figures = {one.name: one for one in figures_of({**runs, "millwheel.columns": [(900.0, 1.0)]})}
    assert (figures["hooks.millwheel.batch"].value, figures["hooks.bytewax.logic.cpu_us"].value) == (300.0, 5.0)
    beside = figures.pop("hooks.millwheel.batch.beside")
    assert (beside.value, beside.unit, beside.runs) == (1.5, "× bytewax.logic", (3.0, 1.0))
    assert "hooks.millwheel.columns" in figures
    assert not any(name.endswith("beside") for name in figures), "its like was not measured"


PEERS: list[Peer] = [Bytewax(), Flink("flink-table", Path(), {}), Flink("flink-datastream", Path(), {})]


def test_systems_are_chosen_by_how_their_names_begin() -> None:
    assert [one.name for one in chosen("flink-t, byte", PEERS)] == ["bytewax", "flink-table"]
    assert chosen("", PEERS) == PEERS


@pytest.mark.parametrize("only", ["flnik", "bytewax,storm"])
def test_a_system_that_is_not_there_is_named(only: str) -> None:
    with pytest.raises(ValueError, match=r"--only (flnik|storm): there is no such system, but bytewax, flink-table"):
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


def job_at(place: str, processes: int = 1) -> Job:
    """A job in this folder. Its broker is not there."""
    return Job(
        broker="127.0.0.1:1",
        source="from",
        target="to",
        window_ms=1_000,
        out_of_order_ms=500,
        processes=processes,
        commit_seconds=1,
        place=place,
    )


CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


def settings_by_name(job: Job, beginning: str, spark: Mapping[str, str] | None = None) -> dict[str, dict[str, str]]:
    """The settings of the systems whose names begin so."""
    return {peer.name: peer.settings(job) for peer in chosen(beginning, all_peers({}, spark or {}))}


async def test_a_store_that_is_not_made_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = written(tmp_path / "hangs")
    monkeypatch.setattr("bench.peers.jobs.BYTEWAX", SimpleNamespace(python=program))
    job = job_at(str(tmp_path / "place"))

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


async def test_a_crash_ends_all_and_a_restart_makes_others(tmp_path: Path) -> None:
    program = written(tmp_path / "stays")
    made: list[ChildProcess] = []

    def make() -> list[ChildProcess]:
        made.append(ChildProcess([str(program)], tmp_path / "log"))
        return made[-1:]

    async with started_by(make) as system:
        await system.start()
        await system.crash()
        with pytest.raises(RuntimeError, match=r"it has ended \(exit code -9\)"):
            system.check()
        await system.restart()
        system.check()
        assert [one.is_running for one in made] == [False, True]
    assert not made[1].is_running


async def test_flink_goes_on_from_its_newest_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "given"
    program = written(tmp_path / "program", f'echo "$PEER_JOB" > "{given}.part"; mv "{given}.part" "{given}"')
    monkeypatch.setattr("bench.peers.jobs.FLINK", SimpleNamespace(python=program))
    monkeypatch.setattr("bench.peers.jobs.connector_jar", lambda: tmp_path / "connector.jar")
    job = job_at(str(tmp_path / "place"))

    async def settings(system: Started) -> dict[str, str]:
        await until(given.exists, patience(20), every=0.05)
        found: dict[str, str] = json.loads(given.read_text())["settings"]
        given.unlink()
        await system.crash()
        return found

    async with Flink("flink-table", Path("any.py"), {}).ready(job) as system:
        await system.start()
        assert "execution.state-recovery.path" not in await settings(system)
        for number in (9, 10):
            done = tmp_path / f"place/checkpoints/a/chk-{number}"
            done.mkdir(parents=True)
            (done / "_metadata").touch()
        (tmp_path / "place/checkpoints/a/chk-11").mkdir()
        await system.restart()
        path = (await settings(system))["execution.state-recovery.path"]
        assert path == (tmp_path / "place/checkpoints/a/chk-10").as_uri()


def test_settings_of_the_command_come_before_those_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers.jvm.spark_jars", lambda: [Path("/a.jar"), Path("/b.jar")])
    given = {"maxOffsetsPerTrigger": "5", CHANGELOG: "false"}
    settings = settings_by_name(job_at("/place", 3), "spark", spark=given)
    for one in settings.values():
        assert one["maxOffsetsPerTrigger"] == "5"
        assert one["spark.master"] == "local[3]"
        assert one["spark.jars"] == "/a.jar,/b.jar"
        assert one[CHANGELOG] == "false"


def test_states_of_python_are_in_rocksdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers.jvm.spark_jars", list)
    settings = settings_by_name(job_at("/place"), "spark")
    provider = "spark.sql.streaming.stateStore.providerClass"
    assert settings["spark-python"][provider].endswith("RocksDBStateStoreProvider")
    assert settings["spark-python"][CHANGELOG] == "true"
    assert provider not in settings["spark-sql"]


def test_flink_runs_python_where_the_form_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers.jobs.connector_jar", lambda: Path("/connector.jar"))
    settings = settings_by_name(job_at("/place"), "flink")
    modes = {name: one.pop("python.execution-mode") for name, one in settings.items()}
    assert modes == {"flink-table": "process", "flink-datastream": "process", "flink-thread": "thread"}
    assert settings["flink-thread"] == settings["flink-datastream"], "nothing else differs"


def test_the_name_of_a_system_belongs_to_it_alone() -> None:
    names = [peer.name for peer in all_peers({}, {})]
    assert len(set(names)) == len(names) >= 12


@pytest.mark.parametrize("option", ["--flink", "--spark"])
def test_a_setting_without_a_value_is_an_error(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.peers", option, "a=1", option, "parallelism"])
    with pytest.raises(SystemExit):
        main()
    assert "parallelism: a setting is NAME=VALUE" in capsys.readouterr().err


def test_a_runtime_without_a_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers.java.jars.install", lambda _: tmp_path / "jars")
    monkeypatch.setattr("bench.peers.java.jars.find_java", lambda: tmp_path / "bin" / "java")
    with pytest.raises(InstallError, match=r"needs a JDK, and \S+/bin/javac is not there: install one, or set"):
        java.kafka_streams_classpath()


class Faked:
    """A system that gives ``windows`` results at each look, unless it is down. It is its reader, too."""

    name, guarantee = "faked", "exactly once"

    def __init__(self, windows: int) -> None:
        self.calls: list[str] = []
        self.at_crash = 0
        self.results: list[tuple[Window, int]] = []
        self.arrivals: list[Arrival] = []
        self._windows = windows

    @property
    def windows(self) -> int:
        return len(self.results)

    def poll(self, seconds: float) -> None:
        time.sleep(seconds)  # as the client of Kafka waits
        if self.calls[-1] in ("start", "restart"):
            self.results += EXPECTED[self.windows : self.windows + self._windows]
            self.arrivals.append((time.monotonic(), self._windows))

    def close(self) -> None:
        """Nothing is open."""

    def check(self) -> None:
        """It has not ended."""

    async def start(self) -> None:
        self.calls.append("start")

    async def crash(self) -> None:
        self.calls.append("crash")
        self.at_crash = self.windows

    async def restart(self) -> None:
        self.calls.append("restart")

    def install(self) -> None:
        """It is here."""

    def versions(self) -> dict[str, str]:
        return {}

    def settings(self, job: Job) -> dict[str, str]:
        return {}

    @asynccontextmanager
    async def ready(self, job: Job) -> AsyncIterator[Started]:
        yield self


HITS = Hits(40, 20, per_second=1, window_ms=10_000)
EXPECTED = list(HITS.counts().items())


async def killed(system: Faked, monkeypatch: pytest.MonkeyPatch) -> PeerRun:
    """A run of it with a kill."""
    monkeypatch.setattr("bench.peers.running.OutputReader", lambda *_: system)
    job = job_at("")
    return await measure(system, job, HITS, dict(EXPECTED), patience(20), kill=True)


async def test_a_kill_comes_at_half_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    system = Faked(1)
    run = await killed(system, monkeypatch)
    assert system.calls == ["start", "crash", "restart"]
    assert system.at_crash == len(EXPECTED) // 2
    assert run.right, run
    assert run.recovery_s >= 0.5


async def test_a_kill_that_comes_too_late_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run = await killed(Faked(len(EXPECTED)), monkeypatch)
    assert "all results were there before the kill; a run with more --records lasts longer" in run.error
