"""PostgreSQL on a unix socket: a server with its data in a temporary folder, which can be stopped and killed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from deploy.local.apt import InstallError, library_path, unpack
from deploy.local.child import ChildProcess

__all__ = ["PostgresServer", "install"]

_START: Final = 60.0
"""Seconds within which a server must serve. After a crash, it first replays its log."""
_OLDEST: Final = 14
_SETTINGS: Final = {
    "listen_addresses": "",
    "wal_level": "logical",
    "max_replication_slots": "60",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "fsync": "off",  # the kernel outlives a crash of the server, and so does what was written
}


def install() -> Path:
    """The folder of PostgreSQL's programs: those of the machine, or Debian's, unpacked into the build folder."""
    found = _programs(Path("/")) or _programs(unpack("postgresql", with_needed=True))
    if found is None:
        raise InstallError(
            f"no PostgreSQL of version {_OLDEST} or newer: neither this machine nor its distribution has one"
        )
    return found


def _programs(root: Path) -> Path | None:
    versions = {
        int(one.parts[-3]): one.parent
        for one in root.glob("usr/lib/postgresql/*/bin/initdb")
        if one.parts[-3].isdigit() and int(one.parts[-3]) >= _OLDEST
    }
    return versions[max(versions)] if versions else None


class PostgresServer:
    """A server that its clients reach by ``conninfo``, as the superuser ``postgres`` and without a password.

    Usable with ``with``. The kernel kills it when this process ends. PostgreSQL refuses to run as root: then the
    server is a process of the user with the fewest rights.
    """

    def __init__(self, **settings: str) -> None:
        """``settings``: more settings of the server, such as ``max_slot_wal_keep_size``."""
        programs = install()
        # Short, because the path of a socket has 107 bytes. And not in the folder of a test, which is for root alone.
        self.folder = Path(tempfile.mkdtemp(prefix="millwheel-postgres-"))
        environment = library_path(programs.parents[4])
        as_user = _without_root(self.folder, programs)
        self._make = [*as_user, str(programs / "initdb"), "--pgdata", str(self.folder / "data"), "--username=postgres"]
        self._make += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._environment = {**os.environ, **environment}
        options = {**_SETTINGS, "unix_socket_directories": str(self.folder), **settings}
        command = [str(programs / "postgres"), "-D", str(self.folder / "data")]
        command += [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        # The order to die with the parent ends with a change of the user, so it is given again.
        again = ["setpriv", "--pdeathsig", "KILL"] if as_user else []
        self.process = ChildProcess([*as_user, *again, *command], self.folder / "log", environment)

    @property
    def conninfo(self) -> str:
        """How libpq connects."""
        return f"host={self.folder} user=postgres dbname=postgres"

    def start(self) -> None:
        """Start the server, and wait until it serves. The first start makes its database."""
        if not (self.folder / "data" / "PG_VERSION").exists():
            done = subprocess.run(self._make, env=self._environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"initdb failed:\n{done.stderr}")
        self.process.start()
        end = time.monotonic() + _START
        while not self._serves():
            if not self.process.is_running or time.monotonic() > end:
                raise RuntimeError(f"PostgreSQL does not serve; its log ends with:\n{self.process.last_lines()}")
            time.sleep(0.02)

    def _serves(self) -> bool:
        """Whether the server says in its file that it is ready, for the process that runs."""
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        return len(lines) > 7 and int(lines[0]) == self.process.pid and lines[7].strip() == "ready"

    def crash(self) -> None:
        """End all processes of the server at once. The next start replays its log."""
        self.process.signal(signal.SIGQUIT)
        self.process.wait(_START)

    def stop(self) -> None:
        """End the server and all its sessions."""
        self.process.signal(signal.SIGINT)
        if self.process.pid:
            self.process.wait(_START)

    def remove(self) -> None:
        """Remove all its data."""
        self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> PostgresServer:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self.remove()


def _without_root(folder: Path, programs: Path) -> list[str]:
    """What runs a command as a user who is not root, and owns the folder. Empty: this process is not root.

    The user may read the programs, also if they are below a folder that is for root alone, such as ``/root``.
    """
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    closed = any(not one.stat().st_mode & stat.S_IXOTH for one in programs.parents)
    # PostgreSQL asks by access(2) first, which takes capabilities of a user into account with this bit alone.
    reading = ["--securebits", "+no_setuid_fixup"] if closed else []
    reading += ["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"] if closed else []
    return ["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups", *reading]
