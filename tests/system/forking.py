"""Runs ``millwheel`` in forks of a process that has loaded the package. To load it is most of a command's work.

A fork is like a new process: it has its own arguments, environment, folder and standard streams, and runs ``main`` to
the end of its interpreter. Nothing of a test is in it. The process that forks (tests/system/forker.py) is started with
the environment of the run, runs one loop, and has one thread and no connection but that to the tests.

Forks share one seed of hashes. So the later lives of a server, which must not depend on the seed, are new processes.
So are all daemons, and what the tests of pages type.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).parents[2]
_CHANGING: Final = ("MILLWHEEL_", "PYTEST_", "SPARK_", "PYSPARK_", "KMP_")
"""How the variables begin that nothing of the package reads when it is loaded. scikit-learn sets those of OpenMP."""
_MEASURED: Final = "COVERAGE_"


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the package or a library may read when it is loaded."""
    return {name: value for name, value in environment.items() if not name.startswith(_CHANGING)}


_ENVIRONMENT: Final = _fixed({**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT)})
"""Of the forking process: that of the run, as it is before the first test."""


def fits(environment: Mapping[str, str]) -> bool:
    """Whether a fork runs as a new process would.

    It does not if a variable differs that may be read when the package is loaded. When a run is measured, each process
    is started in the usual way, because coverage is.
    """
    measured = any(name.startswith(_MEASURED) for name in environment)
    return not measured and _fixed(environment) == _ENVIRONMENT


class ForkedProcess:
    """A fork that was started. It has what tests use of ``asyncio.subprocess.Process``."""

    def __init__(
        self,
        pid: int,
        stdout: asyncio.StreamReader | None,
        answers: asyncio.StreamReader,
        connection: asyncio.StreamWriter,
    ) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._answers = answers
        self._connection = connection
        self._ended = False
        self._end = asyncio.ensure_future(self._await_end())

    async def wait(self) -> int:
        """The exit code, once it has ended; below zero, the signal that ended it."""
        return await asyncio.shield(self._end)

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if not self._ended:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def _await_end(self) -> int:
        code = int(await self._answers.readline())
        # Until this process closes the connection, no other process gets the number.
        self._ended = True
        self._connection.write_eof()
        await self._answers.read()
        self._connection.close()
        self.returncode = code
        return code


async def start(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    out: IO[bytes] | None,
    err: IO[bytes],
    typed: bytes = b"",
) -> ForkedProcess:
    """Start a command in a folder, with ``typed`` on stdin. Without ``out``, its stdout goes to a pipe."""
    stdout = None
    mine, pipe = _forker().request([list(arguments), dict(environment), str(folder)], typed, out, err)
    answers, connection = await asyncio.open_connection(sock=mine)
    if pipe is not None:
        stdout = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(stdout)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    try:
        pid = int(await answers.readline())
    except BaseException:
        connection.close()  # the fork is killed
        raise
    return ForkedProcess(pid, stdout, answers, connection)


async def run(
    arguments: Sequence[str], environment: Mapping[str, str], typed: bytes, timeout: float
) -> tuple[int, str, str]:
    """Run a command. Returns its exit code and what it wrote to stdout and stderr. TimeoutError kills it."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        fork = await start(arguments, environment, Path.cwd(), out, err, typed)
        try:
            async with asyncio.timeout(timeout):
                code = await fork.wait()
        finally:
            fork.kill()
            await fork.wait()
        return code, _content(out), _content(err)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@cache
def _forker() -> _Forker:
    return _Forker()


class _Forker:
    """The process that has loaded the package. It ends with the process of the tests, and its forks with it."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-c", "from tests.system.forker import serve; serve()"]
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=_ENVIRONMENT, cwd=ROOT
            )
        atexit.register(self._close)

    def request(
        self,
        command: list[object],
        typed: bytes,
        out: IO[bytes] | None,
        err: IO[bytes],
    ) -> tuple[socket.socket, IO[bytes] | None]:
        """Ask for a fork. Returns a socket that gets its number and its exit code, and the end of a pipe for stdout.

        To close the socket kills the fork.
        """
        with ExitStack() as sent, ExitStack() as kept:
            mine, theirs = socket.socketpair()
            sent.callback(theirs.close)
            kept.callback(mine.close)
            come, go = map(_unbuffered, os.pipe(), ("rb", "wb"))
            sent.callback(come.close)
            with go:
                go.write(typed)  # it is far less than a pipe holds
            pipe = None
            if out is None:
                pipe, out = map(_unbuffered, os.pipe(), ("rb", "wb"))
                sent.callback(out.close)
                kept.callback(pipe.close)
            streams = [come.fileno(), out.fileno(), err.fileno(), theirs.fileno()]
            socket.send_fds(self._requests, [json.dumps(command).encode()], streams)
            kept.pop_all()  # nothing has failed, so the caller has them
            return mine, pipe

    def _close(self) -> None:
        self._requests.close()
        self._process.wait()


def _unbuffered(descriptor: int, mode: str) -> IO[bytes]:
    return open(descriptor, mode, buffering=0)
