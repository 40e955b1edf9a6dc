"""Runs ``millwheel`` commands in forks of a process that has loaded the package. Loading is most of a command's work.

A fork is like a new process: it has its own arguments, environment, folder and standard streams, and runs ``main`` to
the end of its interpreter. Nothing of a test is in it. The process that forks is started with the environment of the
run, runs only the loop below, and has one thread and no connection but that to the tests.

Its forks share one seed of hashes. So servers, whose later lives must not depend on the seed, are never forks.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).parents[2]
_SERVING: Final = {"server", "master", "authority", "worker", "http"}
"""In the first two words of a command: it serves."""
_CHANGING: Final = ("MILLWHEEL_", "PYTEST_", "SPARK_", "PYSPARK_")
"""How the variables begin that nothing reads when it is loaded."""
_MEASURED: Final = "COVERAGE_"
_MOST_BYTES: Final = 1 << 20


def _fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the package or a library may read when it is loaded."""
    return {name: value for name, value in environment.items() if not name.startswith(_CHANGING)}


_ENVIRONMENT: Final = _fixed({**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT)})
"""Of the forking process: that of the run, as it is before the first test."""


def fits(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a fork runs the command as a new process would.

    It does not if the command serves, or if a variable differs that may be read when the package is loaded. When a run
    is measured, each process is started in the usual way, because coverage is.
    """
    if _SERVING & set(arguments[:2]) or any(name.startswith(_MEASURED) for name in environment):
        return False
    return _fixed(environment) == _ENVIRONMENT


async def run(
    arguments: Sequence[str], environment: Mapping[str, str], typed: bytes, timeout: float
) -> tuple[int, str, str]:
    """Run a command. Returns its exit code and what it wrote to stdout and stderr. TimeoutError kills it."""
    loop, code = asyncio.get_running_loop(), b""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _forker().start(arguments, environment, typed, out, err) as answer:
            answer.setblocking(False)
            try:
                async with asyncio.timeout(timeout):
                    code = await loop.sock_recv(answer, 16)
            finally:
                if not code:
                    with suppress(OSError):
                        answer.shutdown(socket.SHUT_WR)  # the fork is killed
                        await loop.sock_recv(answer, 16)
        assert code, "the process that forks has ended"
        return int(code), _content(out), _content(err)


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
            command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=_ENVIRONMENT, cwd=ROOT
            )
        atexit.register(self._close)

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        typed: bytes,
        out: IO[bytes],
        err: IO[bytes],
    ) -> socket.socket:
        """Start a command. Returns a socket that gets its exit code. To shut down the socket kills the command."""
        mine, theirs = socket.socketpair()
        come, go = os.pipe()
        os.write(go, typed)  # it is far less than a pipe holds
        os.close(go)
        try:
            request = json.dumps([arguments, dict(environment), os.getcwd()]).encode()  # noqa: PTH109 - a text
            streams = [come, out.fileno(), err.fileno(), theirs.fileno()]
            socket.send_fds(self._requests, [request], streams)
        except BaseException:
            mine.close()
            raise
        finally:
            os.close(come)
            theirs.close()
        return mine

    def _close(self) -> None:
        self._requests.close()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class _Request:
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    streams: list[int]
    answer: socket.socket

    def become(self) -> None:
        """Make this process that of the command."""
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
            os.close(stream)
        self.answer.close()
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.argv[1:] = self.arguments
        signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True, slots=True)
class _Running:
    """A fork, and where its exit code is awaited."""

    process: int
    handle: int
    answer: socket.socket


def serve() -> None:
    """Fork for each request that comes through stdin. Returns at its end; a fork runs its command first."""
    from millwheel.cli.main import main
    from millwheel.rpc.polling import poll_without_threads

    poll_without_threads()
    _load()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = _Forking().next_fork()
    if request is not None:
        request.become()
        main()


def _load() -> None:
    """Load what commands load."""
    import millwheel.cli

    for module in pkgutil.iter_modules(millwheel.cli.__path__, "millwheel.cli."):
        import_module(module.name)
    with suppress(ModuleNotFoundError):
        import_module("typer._adapters")  # Typer loads it when a command runs, and with it much else
    threads = os.listdir("/proc/self/task")  # noqa: PTH208 - only their number
    assert len(threads) == 1, "a process with threads cannot fork"
    gc.collect()
    gc.freeze()


class _Forking:
    """The loop of the process that forks."""

    def __init__(self) -> None:
        self._requests = socket.socket(fileno=os.dup(0))
        # Forks would share the state of an epoll object.
        self._selector = selectors.PollSelector()
        self._selector.register(self._requests, selectors.EVENT_READ)
        self._running: list[_Running] = []

    def next_fork(self) -> _Request | None:
        """Returns in each fork, with its request. In this process None, when the tests have ended."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    request = self._receive()
                    if request is None or self._fork(request):
                        self._end(killing=request is None)
                        return request
                elif key.data not in self._running:
                    continue  # it has ended just now
                elif key.fileobj is key.data.answer:
                    self._selector.unregister(key.fileobj)
                    os.kill(key.data.process, signal.SIGKILL)
                else:
                    self._reap(key.data)

    def _receive(self) -> _Request | None:
        content, received, _, _ = socket.recv_fds(self._requests, _MOST_BYTES, 4)
        if not content:
            return None
        *streams, answer = received
        arguments, environment, folder = json.loads(content)
        return _Request(arguments, environment, folder, streams, socket.socket(fileno=answer))

    def _fork(self, request: _Request) -> bool:
        """Whether this is the fork."""
        process = os.fork()
        if process == 0:
            return True
        for stream in request.streams:
            os.close(stream)
        running = _Running(process, os.pidfd_open(process), request.answer)
        self._running.append(running)
        self._selector.register(running.handle, selectors.EVENT_READ, running)
        self._selector.register(running.answer, selectors.EVENT_READ, running)
        return False

    def _reap(self, running: _Running) -> None:
        _, status = os.waitpid(running.process, 0)
        with suppress(KeyError):  # the test does not wait any more
            self._selector.unregister(running.answer)
        self._selector.unregister(running.handle)
        self._running.remove(running)
        with suppress(OSError):
            running.answer.send(b"%d" % os.waitstatus_to_exitcode(status))
        self._close(running)

    def _end(self, *, killing: bool) -> None:
        """Close what belongs to the loop. ``killing``: end the forks, too."""
        for running in self._running:
            if killing:
                os.kill(running.process, signal.SIGKILL)
            self._close(running)
        self._selector.close()
        self._requests.close()

    def _close(self, running: _Running) -> None:
        os.close(running.handle)
        running.answer.close()
