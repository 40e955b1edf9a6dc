"""The unit files: what systemd finds in them, what they set, and that the daemons work under their filters."""

from __future__ import annotations

import asyncio
import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.cluster import settings_of
from deploy.local.daemons import Daemons
from millwheel.server.supervisor import RETRY_BACKOFF
from tests.components import cassandra, etcd
from tests.deploy import units
from tests.deploy.units import FOLDER, ROLES, service
from tests.deploy.variables import unknown
from tests.faults import program
from tests.faults.load import verified
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system.server import ROOT, run_cli

MAX_EXPOSURE = 2.0

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
needs_seccomp = pytest.mark.skipif(ctypes.util.find_library("seccomp") is None, reason="libseccomp is not installed")


@needs_systemd
@pytest.mark.parametrize("role", ROLES)
def test_systemd_finds_nothing_to_mend(role: str, tmp_path: Path) -> None:
    unit = tmp_path / f"millwheel-{role}.service"
    # The program is there where it is installed.
    unit.write_text((FOLDER / unit.name).read_text().replace("/opt/millwheel/bin/millwheel", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []


@needs_systemd
@pytest.mark.parametrize("role", ROLES)
def test_systemd_finds_little_exposed(role: str) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(FOLDER / f"millwheel-{role}.service")]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found.group(1)) <= MAX_EXPOSURE


@pytest.mark.parametrize("role", ROLES)
def test_units_set_variables_that_there_are(role: str) -> None:
    assert unknown(units.environment(role)) == set()
    assert service(role)["ExecStart"] == [f"/opt/millwheel/bin/millwheel {role} run"]
    assert service(role)["RestartPreventExitStatus"] == ["2 5 6"]
    assert float(service(role)["RestartSec"][0]) >= RETRY_BACKOFF.delay(1, 0.5)


def entries(folder: str) -> list[list[str]]:
    """The words of each line."""
    lines = (FOLDER / folder / "millwheel.conf").read_text().splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


def test_users_and_folders_are_those_of_the_units() -> None:
    (user,) = [line for line in (FOLDER / "sysusers.d/millwheel.conf").read_text().splitlines() if line[0] != "#"]
    folders = [
        line.split() for line in (FOLDER / "tmpfiles.d/millwheel.conf").read_text().splitlines() if line[0] != "#"
    ]
    for role in ROLES:
        assert user.split()[1] == service(role)["User"][0] == service(role)["Group"][0]
    cache = f"/var/cache/{service('worker')['CacheDirectory'][0]}"
    assert [mode for _, path, mode, *_ in folders if path == cache] == service("worker")["CacheDirectoryMode"]
    assert f'packages = "{cache}/packages"' in (FOLDER / "millwheel.toml").read_text()


@pytest.mark.skipif(
    shutil.which("systemd-sysusers") is None or os.geteuid() != 0,
    reason="systemd is not installed, or this is not root",
)
def test_systemd_makes_the_user_and_the_folders(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\n")
    for command, folder in (("systemd-sysusers", "sysusers.d"), ("systemd-tmpfiles", "tmpfiles.d")):
        arguments = [command, f"--root={tmp_path}", *(["--create"] if command == "systemd-tmpfiles" else [])]
        done = subprocess.run([*arguments, str(FOLDER / folder / "millwheel.conf")], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "millwheel:" in (tmp_path / "etc/passwd").read_text()
    assert (tmp_path / "etc/millwheel/tls").stat().st_mode & 0o777 == 0o750


_CONFINED = "from tests.deploy.confined import confine; confine({role!r})"


@needs_systemd
@needs_seccomp
def test_what_a_unit_forbids_fails() -> None:
    """The filters of the tests work, else the next test would show nothing."""
    tries = """
import ctypes, json, mmap, os, socket
def fails(act):
    try:
        act()
    except OSError as error:
        return error.errno
    return 0
print(json.dumps([
    fails(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)),
    fails(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
    fails(lambda: os.setpriority(os.PRIO_PROCESS, 0, 1)),
    fails(lambda: os.chroot("/")),
    fails(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))),
    fails(lambda: socket.socketpair()[0].close()),
    fails(lambda: os.stat("/")),
]))"""
    code = _CONFINED.format(role="worker") + tries
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, 97, 1, 1, 1, 0, 0]


@pytest.mark.long
@needs_systemd
@needs_seccomp
async def test_daemons_work_under_the_filters_of_their_units(tmp_path: Path) -> None:
    settings = settings_of(etcd(), cassandra(), tmp_path.name.replace("-", "_")[-40:])
    codes = {role: f"{_CONFINED.format(role=role)}; from millwheel.cli.main import main; main()" for role in ROLES}
    said: list[str] = []
    by_role = f"import sys; exec({codes!r}[sys.argv[1]])"
    async with Daemons(
        tmp_path / "daemons", settings, said.append, masters=1, authorities=1, workers=2, code=by_role
    ) as daemons:
        await submit_copy(daemons.address, program.__file__, "faults", tmp_path)
        async with verified(daemons.address, tmp_path, seed=7) as load:
            await until(lambda: load.sent.total() > 500 and load.received["windows"] > 2, patience(60))
        health = await run_cli(daemons.address, "cluster", "health", "-o", "json")
        assert json.loads(health.out)["problems"] == []
        for name, process in daemons.services.processes.items():
            status = await asyncio.to_thread(Path(f"/proc/{process.pid}/status").read_text)
            assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE), name
    assert said == [], "none has ended"
