"""The container image: its file by a linter's rules, and what comes of it, as an engine would run it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.child import ChildProcess
from tests.deploy import dockerfile
from tests.deploy.dockerfile import FILE
from tests.image.building import image, run
from tests.patience import patience

pytestmark = pytest.mark.long

LARGEST = 350 << 20
"""In bytes. NumPy, for windows by columns, has 59 MB of them."""
EMBEDDED = {
    f"MILLWHEEL_{section}_{name}": value
    for section in ("STORE", "COORDINATOR")
    for name, value in (("KIND", "embedded"), ("PATH", "/tmp/db"))
}
LISTENING = {"MILLWHEEL_RPC_LISTEN": "127.0.0.1:7433", "MILLWHEEL_METRICS_LISTEN": "127.0.0.1:9433"}


class InImage:
    """The image's entry point as process 1 of its own namespaces.

    The root is read-only, the user is the image's, and there is no network but loopback.
    """

    def __init__(self, root: Path, log: Path, arguments: list[str], environment: dict[str, str]) -> None:
        """Does not start it."""
        self._root, self._variables = root, dockerfile.environment() | environment
        quoted, user = shlex.quote(str(root)), dockerfile.user()
        mounts = [
            f"mount --bind {quoted} {quoted}",
            f"mount -o remount,bind,ro {quoted}",
            f"mount -t proc proc {quoted}/proc",
            f"mount --rbind /dev {quoted}/dev",
            f"mount -t tmpfs -o mode=1777 tmpfs {quoted}/tmp",
            f"mount -t tmpfs -o mode=0750,uid={user},gid={user} tmpfs {quoted}/var/cache/millwheel",
            "ip link set lo up",
        ]
        script = " && ".join([*mounts, f"exec {shlex.join(self._command(list(dockerfile.entry_point()) + arguments))}"])
        spaces = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child=KILL"]
        self.process = ChildProcess([*spaces, "/bin/sh", "-c", script], log)

    def _command(self, command: list[str]) -> list[str]:
        user, variables = dockerfile.user(), [f"{name}={value}" for name, value in self._variables.items()]
        return ["chroot", f"--userspec={user}:{user}", str(self._root), "/usr/bin/env", "-i", *variables, *command]

    @property
    def first(self) -> int:
        """The number of process 1, as this machine counts. 0: it does not run yet."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command beside it, as ``docker exec`` does."""
        inside = ["nsenter", f"--target={self.first}", "--mount", "--pid", "--net", *self._command(list(command))]
        return subprocess.run(inside, capture_output=True, text=True, timeout=patience(60))

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it is true, while the process runs."""
        end = time.monotonic() + patience(60)
        while not holds():
            assert self.process.is_running, self.process.last_lines()
            assert time.monotonic() < end, self.process.last_lines()
            time.sleep(0.2)

    def until_healthy(self) -> None:
        """Wait for the image's own health check."""
        self.until(lambda: self.asked()[0] == 0)

    def asked(self) -> tuple[int, str]:
        """The exit code of the image's health check, and what it says."""
        if not self.first:
            return 1, ""
        done = self.run(*dockerfile.health_check())
        return done.returncode, done.stdout

    def stop(self) -> int | None:
        """SIGTERM to process 1, as an engine sends it. Returns the exit code."""
        os.kill(self.first, signal.SIGTERM)
        end = time.monotonic() + patience(30)
        while self.process.is_running and time.monotonic() < end:
            time.sleep(0.1)
        return self.process.exit_code


@contextmanager
def running(tmp_path: Path, *arguments: str, **environment: str) -> Iterator[InImage]:
    """Run the image with these arguments."""
    started = InImage(image(), tmp_path / "log", list(arguments), environment)
    started.process.start()
    try:
        yield started
    finally:
        started.process.kill()


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint has no wheel for this machine")
def test_the_linter_finds_nothing_to_mend() -> None:
    done = subprocess.run(["hadolint", str(FILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_image_is_small_and_has_the_compiled_core() -> None:
    # Debian's image keeps no packages in apt's cache. The root of debootstrap does.
    left_out = "--exclude=./var/cache/apt"
    size = int(run(["du", "--summarize", "--bytes", left_out, "."], cwd=str(image())).split()[0])
    print(f"the image has {size / 1e6:.0f} MB")
    assert size < LARGEST
    compiled = list((image() / "opt/millwheel").rglob("worker/interval/core*.so"))
    assert len(compiled) == 1
    for absent in ("usr/bin/gcc", "build", "opt/millwheel/bin/pip"):
        assert not (image() / absent).exists()


def test_it_runs_a_server_for_development(tmp_path: Path) -> None:
    with running(tmp_path, "server", "start-dev") as server:
        server.until_healthy()
        done = server.run("millwheel", "topology", "list")
        assert done.returncode == 0, done.stderr
        status = Path(f"/proc/{server.first}/status").read_text()
        assert f"\nUid:\t{dockerfile.user()}\t" in status
        assert "\nNSpid:\t" in status
        assert status.partition("\nNSpid:\t")[2].split("\n")[0].split()[-1] == "1", "it is process 1 itself"
        assert server.run("touch", "/opt/millwheel/x").returncode != 0
        assert server.stop() == 0, server.process.last_lines()


@pytest.mark.parametrize("role", ["master", "authority"])
def test_a_daemon_is_healthy_and_ends_in_order(role: str, tmp_path: Path) -> None:
    with running(tmp_path, role, "run", **EMBEDDED, **LISTENING) as daemon:
        daemon.until_healthy()
        assert daemon.stop() == 0, daemon.process.last_lines()


def test_a_daemon_that_waits_is_not_healthy(tmp_path: Path) -> None:
    """There is no etcd."""
    with running(tmp_path, "worker", "run", **LISTENING) as daemon:
        daemon.until(lambda: "etcd at" in daemon.asked()[1])
        assert daemon.asked()[0] == 1
        assert daemon.stop() == 0


def test_without_arguments_it_says_what_it_takes(tmp_path: Path) -> None:
    with running(tmp_path, *dockerfile.last("CMD").items) as asked:
        end = time.monotonic() + patience(30)
        while asked.process.is_running and time.monotonic() < end:
            time.sleep(0.1)
        assert asked.process.exit_code == 0
        assert "start-dev" in asked.process.log.read_text() or "server" in asked.process.log.read_text()
