"""Unusable databases and ports: the message has cause and remedy, and nothing is lost."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deploy.local.child import free_ports
from tests import disks
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system import words
from tests.system.server import Finished, Server, run_cli
from tests.system.speaking import read, speak, submit
from tests.system.words import Seen

SMALL_DISK = "64m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is soon full; needs the right to mount one."""
    with disks.small_disk(tmp_path / "disk", SMALL_DISK) as place:
        if place is None:
            pytest.skip("mounting a small file system needs root")
        yield place


@pytest.fixture
async def cramped(small_disk: Path, tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(small_disk / "db", tmp_path / "server.log", options=("--log-level", "warning"))
    try:
        await server.start()
        yield server
    finally:
        await server.kill()


def fill(place: Path) -> Path:
    """Fill the file system."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return filler


@pytest.mark.guarantee("G1")
async def test_a_full_disk_stops_the_intake_and_loses_nothing(cramped: Server, small_disk: Path) -> None:
    await submit_copy(cramped.address, words.__file__, "words", small_disk.parent)
    await speak(cramped, "before")
    filler = fill(small_disk)
    speaking = asyncio.create_task(speak(cramped, *(["during"] * 50), first=1))
    await until(lambda: "trying again" in cramped.tail(100_000))
    await asyncio.sleep(0.5)
    assert not speaking.done(), "nothing is ACKed that is not on disk"
    filler.unlink()
    await speaking
    await speak(cramped, "after", first=51)
    assert [(seen.text, seen.times) for seen in await read(cramped, "seen", Seen, 52)] == [
        ("before", 1),
        *[("during", number) for number in range(1, 51)],
        ("after", 1),
    ]
    log = cramped.tail(100_000)
    assert "space" in log.lower(), log[-2_000:]


@pytest.mark.guarantee("G1")
async def test_a_server_killed_on_a_full_disk_goes_on_with_free_space(cramped: Server, small_disk: Path) -> None:
    await submit_copy(cramped.address, words.__file__, "words", small_disk.parent)
    await speak(cramped, "before")
    filler = fill(small_disk)
    speaking = asyncio.create_task(speak(cramped, "during", first=1))
    await asyncio.sleep(0.5)
    await cramped.kill()
    shown = await attempt(cramped)
    if shown is not None:
        assert shown.code != 0
        assert "space" in shown.err.lower(), shown.err
        assert "Traceback" not in shown.err
    filler.unlink()
    await cramped.kill()
    await cramped.start()
    await speaking
    assert await read(cramped, "seen", Seen, 2) == [Seen("before", 1), Seen("during", 1)]


def remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)


async def test_a_read_only_database_is_named_and_left_as_it_is(small_disk: Path, tmp_path: Path) -> None:
    first = Server(small_disk / "db", tmp_path / "first.log")
    await first.start()
    await submit_copy(first.address, words.__file__, "words", tmp_path)
    await speak(first, "one")
    await first.stop()
    remount(small_disk, "ro")
    for place in (first.db, small_disk / "new"):
        shown = await attempt(Server(place, tmp_path / f"{place.name}.log"))
        assert shown is not None
        assert shown.code == 4
        assert f"error: cannot use {place}: " in shown.err
        assert "Check that the directory is writable and has free space" in shown.err
    remount(small_disk, "rw")
    try:
        await first.start()
        assert await read(first, "seen", Seen, 1) == [Seen("one", 1)]
    finally:
        await first.kill()


async def attempt(server: Server) -> Finished | None:
    """Try to start. Returns the error's text, or None if the server runs."""
    await server.spawn()
    assert server.process.stdout is not None
    line = await asyncio.wait_for(server.process.stdout.readline(), patience(20))
    if line:
        return None
    return Finished(await server.process.wait(), "", server.tail())


async def test_a_port_in_use_is_named(server: Server, tmp_path: Path) -> None:
    other = Server(tmp_path / "db2", tmp_path / "other.log", port=server.port)
    shown = await attempt(other)
    assert shown is not None
    assert shown.code == 4
    assert f"cannot listen on 127.0.0.1:{server.port}: the port is in use" in shown.err
    assert "choose another port" in shown.err
    assert not (tmp_path / "db2").exists(), "nothing is begun that cannot be served"


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        (["--host", "192.0.2.1", "--insecure"], 4, "cannot listen on 192.0.2.1:"),
        (["--host", "no-such-host.invalid", "--insecure"], 4, "name an address of this machine"),
        (["--log-level", "loud"], 2, "'loud' is not one of"),
    ],
)
async def test_an_option_that_cannot_be_met_is_named(tmp_path: Path, options: list[str], code: int, part: str) -> None:
    place = ["--port", str(free_ports(1)[0]), "--db", str(tmp_path / "db")]
    shown = await run_cli("", "server", "start-dev", *place, *options)
    assert shown.code == code
    assert part in shown.err
    assert "fault of millwheel" not in shown.err
    assert not (tmp_path / "db").exists()


async def test_a_port_for_metrics_that_is_in_use_is_named(server: Server, tmp_path: Path) -> None:
    place = ["--port", str(free_ports(1)[0]), "--db", str(tmp_path / "db2")]
    shown = await run_cli("", "server", "start-dev", *place, "--metrics-port", str(server.port))
    assert shown.code == 4
    assert f"cannot serve metrics on 127.0.0.1:{server.port}: Address already in use" in shown.err
    assert "choose another --metrics-port" in shown.err


async def test_a_database_in_use_is_named(server: Server, tmp_path: Path) -> None:
    shown = await attempt(Server(server.db, tmp_path / "other.log"))
    assert shown is not None
    assert shown.code == 4
    assert f"error: {server.db} is in use by process {server.process.pid} on host " in shown.err
    assert "One process owns a database: stop that one, or name another directory" in shown.err
    assert "fault of millwheel" not in shown.err


async def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "holiday.jpg").write_bytes(b"jpeg")
    shown = await attempt(Server(foreign, tmp_path / "server.log"))
    assert shown is not None
    assert shown.code == 6
    assert f"error: {foreign} holds files that are not ours" in shown.err
    assert "fault of millwheel" not in shown.err
    assert "Traceback" not in shown.err
    assert [one.name for one in foreign.iterdir()] == ["holiday.jpg"]


async def test_a_file_in_place_of_a_database_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no database")
    shown = await attempt(Server(file, tmp_path / "server.log"))
    assert shown is not None
    assert shown.code == 6
    assert f"error: {file} is a file, not a database directory" in shown.err
    assert "fault of millwheel" not in shown.err
    assert file.read_text() == "no database"


def manifest(db: Path) -> Path:
    return next(path for path in sorted(db.rglob("MANIFEST-*")) if path.stat().st_size)


def log_with_most(db: Path) -> Path:
    """The write-ahead log."""
    return max(db.rglob("*.log"), key=lambda path: path.stat().st_size)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["current", "manifest", "log"])
async def test_a_damaged_database_is_refused_by_name_and_unchanged(server: Server, tmp_path: Path, damage: str) -> None:
    await submit(server)
    await speak(server, *(["word"] * 200))
    await server.kill()
    if damage == "current":
        victim = next(server.db.rglob("CURRENT"))
        victim.write_bytes(b"")
    elif damage == "manifest":
        victim = manifest(server.db)
        flip(victim, victim.stat().st_size // 2)
    else:
        victim = log_with_most(server.db)
        flip(victim, victim.stat().st_size // 3)
    whole = tmp_path / "kept"
    shutil.copytree(server.db, whole)
    server.log.write_text("")
    shown = await attempt(server)
    assert shown is not None, f"the damage was not seen:\n{server.tail()}"
    assert shown.code == 1
    assert str(server.db) in shown.err
    assert "Traceback" not in shown.err
    assert "fault of millwheel" not in shown.err
    assert "damaged" in shown.err or "corrupt" in shown.err.lower(), shown.err
    assert (whole / victim.relative_to(server.db)).read_bytes() == victim.read_bytes()


async def test_a_database_that_was_copied_whole_goes_on(server: Server, tmp_path: Path) -> None:
    await submit(server)
    await speak(server, "one")
    code = await server.stop()
    assert code == 0
    copied = tmp_path / "copy"
    await asyncio.to_thread(shutil.copytree, server.db, copied)
    second = Server(copied, tmp_path / "second.log")
    try:
        await second.start()
        await speak(second, "one", "two")
        assert await read(second, "seen", Seen, 2) == [Seen("one", 1), Seen("two", 1)]
    finally:
        await second.kill()


if sys.platform != "linux":
    pytest.skip("the small disk and the damage are Linux's", allow_module_level=True)
