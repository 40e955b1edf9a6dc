"""A machine of its own, whose process 1 is systemd: the image's root, with Debian's systemd and our units.

It has namespaces of its own for everything but users, so it touches neither this machine's systemd nor its network. It
needs root, and a kernel with the second version of control groups.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

from deploy.local.child import ChildProcess
from tests.deploy.units import FOLDER as UNITS
from tests.deploy.units import ROLES
from tests.image.building import FOLDER, Stage, image, in_root, run
from tests.patience import patience

_SETTINGS = """
[coordinator]
kind = "embedded"
path = "/var/cache/millwheel/db"
[store]
kind = "embedded"
path = "/var/cache/millwheel/db"
[rpc]
insecure = true
advertise = "127.0.0.1"
"""
_PROGRAMS = "/opt/millwheel/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@cache
def root() -> Path:
    """The root of the machine."""
    made = FOLDER / "systemd"
    shutil.rmtree(made, ignore_errors=True)
    run(["cp", "--archive", str(image()), str(made)])
    in_root(Stage(made), "apt-get update && apt-get install --yes --no-install-recommends systemd dbus")
    for role in ROLES:
        shutil.copy(UNITS / f"millwheel-{role}.service", made / "etc/systemd/system")
    for folder in ("sysusers.d", "tmpfiles.d"):
        (made / "usr/lib" / folder).mkdir(exist_ok=True)
        shutil.copy(UNITS / folder / "millwheel.conf", made / "usr/lib" / folder)
    (made / "etc/millwheel").mkdir()
    (made / "etc/millwheel/millwheel.toml").write_text(_SETTINGS)
    return made


class Machine:
    """A running machine. Use it as ``with``."""

    def __init__(self, log: Path) -> None:
        """Does not start it."""
        self._groups = FOLDER / f"groups-{os.getpid()}"
        self._process = ChildProcess(
            ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-e", "-c", self._begun()], log
        )

    def _begun(self) -> str:
        group = shlex.quote(str(self._groups / f"millwheel-{os.getpid()}"))
        spaces = "--mount --pid --net --uts --ipc --cgroup --fork --kill-child=KILL"
        return "\n".join(
            [
                f"mkdir -p {self._groups}",
                f"mount -t cgroup2 cgroup2 {self._groups}",
                f"mkdir -p {group}",
                f"echo $$ >{group}/cgroup.procs",
                f"exec unshare {spaces} /bin/sh -e -c {shlex.quote(self._inside())}",
            ]
        )

    def _inside(self) -> str:
        new = shlex.quote(str(root()))
        mounts = [
            f"mount --bind {new} {new}",
            f"cd {new}",
            "mount -t proc proc proc",
            "mount -t sysfs sysfs sys",
            "mount -t cgroup2 cgroup2 sys/fs/cgroup",
            "mount -t tmpfs -o mode=755 tmpfs dev",
            "mkdir -p dev/pts dev/shm",
            *(f"touch dev/{name}; mount --bind /dev/{name} dev/{name}" for name in _DEVICES),
            "mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts",
            "ln -s pts/ptmx dev/ptmx",
            *(f"mount -t tmpfs -o mode={mode} tmpfs {name}" for name, mode in {"run": "755", "tmp": "1777"}.items()),
            "mount -t tmpfs -o mode=1777 tmpfs dev/shm",
            "ip link set lo up",
            "mkdir -p .old",
        ]
        begin = "exec /lib/systemd/systemd --unit=multi-user.target --log-target=console --show-status=no"
        inner = f"pivot_root . .old; umount -l /.old; {begin}"
        return "\n".join([*mounts, f"exec env -i container=lxc PATH={_PROGRAMS} /bin/sh -e -c {shlex.quote(inner)}"])

    def __enter__(self) -> Machine:
        """Start it, and wait until systemd has."""
        self._process.start()
        end = time.monotonic() + patience(60)
        while not self._has_begun():
            assert self._process.is_running, self._process.last_lines()
            assert time.monotonic() < end, self._process.last_lines()
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        # The kernel keeps a group until it is removed.
        remove = f"mount -t cgroup2 cgroup2 {self._groups}; find {self._groups}/millwheel-{os.getpid()} -depth -type d"
        time.sleep(0.5)
        subprocess.run(["unshare", "--mount", "/bin/sh", "-c", f"{remove} -exec rmdir {{}} ';'"], capture_output=True)
        self._groups.rmdir()

    def _has_begun(self) -> bool:
        return bool(self._first) and self.run("systemctl", "is-system-running").stdout.strip() in (
            "running",
            "degraded",
        )

    @property
    def _first(self) -> int:
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on it, as root."""
        inside = ["nsenter", f"--target={self._first}", "--all", "/usr/bin/env", "-i", f"PATH={_PROGRAMS}"]
        return subprocess.run([*inside, *command], capture_output=True, text=True, timeout=patience(60))

    def property_of(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", f"--property={name}", "--value", unit).stdout.strip()
