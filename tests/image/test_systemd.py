"""The units, under systemd as process 1 of a machine of its own: with all of their hardening."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.deploy.units import ROLES, environment
from tests.image.machine import Machine
from tests.patience import patience

pytestmark = pytest.mark.long

ASK = "import urllib.request; urllib.request.urlopen('http://{}/readyz', timeout=5)"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machine") / "log") as made:
        yield made


def log_of(machine: Machine, unit: str) -> str:
    return machine.run("journalctl", "--no-pager", "--lines=20", f"--unit={unit}").stdout


def serve(machine: Machine, role: str) -> None:
    """Start a unit, and wait until its daemon serves."""
    unit, ask = f"millwheel-{role}", ASK.format(environment(role)["MILLWHEEL_METRICS_LISTEN"])
    # An embedded store serves one process.
    machine.run("rm", "-rf", "/var/cache/millwheel/db")
    assert machine.run("systemctl", "start", unit).returncode == 0, log_of(machine, unit)
    end = time.monotonic() + patience(60)
    while machine.run("python3", "-c", ask).returncode != 0:
        assert machine.property_of(unit, "ActiveState") == "active", log_of(machine, unit)
        assert time.monotonic() < end, log_of(machine, unit)
        time.sleep(0.5)


@pytest.mark.parametrize("role", ROLES)
def test_a_daemon_serves_confined_and_stops_in_order(role: str, machine: Machine) -> None:
    unit = f"millwheel-{role}"
    serve(machine, role)
    pid = machine.property_of(unit, "MainPID")
    status = machine.run("cat", f"/proc/{pid}/status").stdout
    for line in (r"Uid:\t10001\t10001", r"CapBnd:\t0000000000000000$", r"NoNewPrivs:\t1$", r"Seccomp:\t2$"):
        assert re.search(f"^{line}", status, re.MULTILINE), line
    # As root, in the daemon's view of the files.
    beside = ("nsenter", f"--target={pid}", "--mount")
    for place in ("/opt/millwheel", "/etc", "/usr"):
        assert machine.run(*beside, "touch", f"{place}/made").returncode != 0, place
    assert machine.run(*beside, "ls", "/home").stdout == ""
    assert machine.run(*beside, "touch", "/var/cache/millwheel/made").returncode == 0
    assert machine.run("systemctl", "stop", unit).returncode == 0
    assert machine.property_of(unit, "Result") == "success", log_of(machine, unit)
    assert machine.property_of(unit, "ExecMainStatus") == "0"


def test_a_daemon_that_is_killed_comes_back(machine: Machine) -> None:
    serve(machine, "authority")
    before = machine.property_of("millwheel-authority", "MainPID")
    assert machine.run("systemctl", "kill", "--signal=KILL", "millwheel-authority").returncode == 0
    end = time.monotonic() + patience(30)
    while machine.property_of("millwheel-authority", "MainPID") in (before, "0"):
        assert time.monotonic() < end, log_of(machine, "millwheel-authority")
        time.sleep(0.2)
    machine.run("systemctl", "stop", "millwheel-authority")


def test_a_wrong_setting_is_not_tried_again(machine: Machine) -> None:
    machine.run("sh", "-c", "sed -i.right 's/insecure/insecurely/' /etc/millwheel/millwheel.toml")
    machine.run("systemctl", "start", "millwheel-master")
    end = time.monotonic() + patience(30)
    while machine.property_of("millwheel-master", "ActiveState") != "failed":
        assert time.monotonic() < end, log_of(machine, "millwheel-master")
        time.sleep(0.2)
    assert machine.property_of("millwheel-master", "ExecMainStatus") == "5"
    time.sleep(2.0)
    assert machine.property_of("millwheel-master", "NRestarts") == "0"
    machine.run("mv", "/etc/millwheel/millwheel.toml.right", "/etc/millwheel/millwheel.toml")


def test_the_folders_are_the_daemons_alone(machine: Machine) -> None:
    shown = machine.run("stat", "--format=%a %U %G", "/etc/millwheel/tls", "/var/cache/millwheel").stdout.splitlines()
    assert shown == ["750 root millwheel", "750 millwheel millwheel"]
