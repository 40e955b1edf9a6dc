"""The process that has loaded the package, and forks for each command that tests/system/forking.py asks for."""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Final

_MAX_BYTES: Final = 1 << 20
"""Of a request."""


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
    """Load what commands and servers load."""
    import millwheel.cli
    import millwheel.server

    for package in (millwheel.cli, millwheel.server):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
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
                    self._reap(key.data)
                else:
                    self._tell(key.data)

    def _receive(self) -> _Request | None:
        content, received, _, _ = socket.recv_fds(self._requests, _MAX_BYTES, 4)
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
        self._answer(running, process)
        return False

    def _tell(self, running: _Running) -> None:
        """Send the exit code of a fork that has ended. It is reaped later, so that its number stays its own."""
        found = os.waitid(os.P_PID, running.process, os.WEXITED | os.WNOWAIT)
        assert found is not None
        code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        self._selector.unregister(running.handle)
        self._answer(running, code)

    def _answer(self, running: _Running, number: int) -> None:
        with suppress(OSError):  # the test does not wait any more
            running.answer.send(b"%d\n" % number)

    def _reap(self, running: _Running) -> None:
        """The test has closed the connection: end the fork, if it still runs."""
        os.kill(running.process, signal.SIGKILL)
        os.waitpid(running.process, 0)
        self._selector.unregister(running.answer)
        with suppress(KeyError):  # its exit code was sent
            self._selector.unregister(running.handle)
        self._running.remove(running)
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
