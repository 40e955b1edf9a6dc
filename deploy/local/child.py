"""Child processes that end with their parent, even if the parent is killed."""

from __future__ import annotations

import ctypes
import itertools
import os
import queue
import random
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

__all__ = ["ChildProcess", "StoppedAtExit", "free_ports", "listens"]

Result = TypeVar("Result")


_BLOCKS: Final = 120
_BLOCK_PORTS: Final = 100
_turns = itertools.count(random.randrange(_BLOCK_PORTS))


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports on which no process listens now.

    They are outside the range that the system gives to outgoing connections. So a listener that was killed can use its
    port again. Each process draws from a block of its own, in turn: a port that is drawn gets its listener only later.

    Raises:
        OSError: The block has not so many free ports.
    """
    first = 20_000 + os.getpid() % _BLOCKS * _BLOCK_PORTS
    found: list[int] = []
    for turn in itertools.islice(_turns, 10 * _BLOCK_PORTS):
        port = first + turn % _BLOCK_PORTS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((host, port))
                found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"of the ports {first} to {first + _BLOCK_PORTS - 1}, {count} are not free")


def listens(host: str, port: int) -> bool:
    """Whether a process accepts connections at the address."""
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


_PR_SET_TIMERSLACK: Final = 29


@contextmanager
def _slack(micros: int) -> Iterator[None]:
    """Give the processes that this thread starts this timer slack.

    They keep it over exec (prctl(2)). 0: the default.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(micros * 1_000))
    try:
        yield
    finally:
        libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(0))


class StoppedAtExit(ABC):
    """A service that runs within ``with``. If its start fails, it is stopped as well."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it serves."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


class ChildProcess:
    """One program in its own process group. After a stop or kill, it can be started again with the same settings."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        timer_slack: int = 0,
    ) -> None:
        """``log``: the file to which output is appended. ``environment`` is added to this process's environment.

        ``timer_slack``: the microseconds by which the kernel may delay the end of the program's sleeps. 0: as for this
        process.
        """
        self._arguments = list(arguments)
        self._environment = {**os.environ, **(environment or {})}
        self._timer_slack = timer_slack
        self._process: subprocess.Popen[bytes] | None = None
        self.log = log

    @property
    def pid(self) -> int:
        """The process id. 0 if it was not started."""
        return 0 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code. Negative: the signal that ended it. None: it runs, or was not started."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the process. Idempotent while it runs."""
        if self.is_running:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._process = _in_lasting_thread(self._spawn)

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log, _slack(self._timer_slack):
            return subprocess.Popen(
                # Not by `preexec_fn`: it would run between fork and exec, in a copy of a process with many threads.
                ["setpriv", "--pdeathsig", "KILL", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        if self.is_running:
            assert self._process is not None
            os.killpg(self._process.pid, number)

    def pause(self) -> None:
        """Pause the process by SIGSTOP, and return when all of its threads stand still.

        On a busy machine that takes a while.
        """
        self.signal(signal.SIGSTOP)
        if self.is_running:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """End a pause."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL the process, and return when it has ended."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self, patience: float = 10.0) -> None:
        """Send SIGTERM, and SIGKILL after ``patience`` seconds. Return when the process has ended."""
        self._ask()
        self._await(patience)

    def _ask(self) -> None:
        """Send SIGTERM once. A daemon that receives a second one ends without releasing what it owns."""
        self.signal(signal.SIGTERM)
        # A paused process handles SIGTERM only after SIGCONT.
        self.signal(signal.SIGCONT)

    def _await(self, patience: float) -> None:
        if self._process is not None:
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self.kill()

    def wait(self, patience: float) -> int:
        """Return the exit code once the process has ended by itself. subprocess.TimeoutExpired: it still runs."""
        assert self._process is not None
        return self._process.wait(patience)

    def last_lines(self, count: int = 10) -> str:
        """The end of the program's output, for error messages."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])
        except OSError:
            return ""

    @staticmethod
    def stop_all(processes: Iterable[ChildProcess], patience: float = 10.0) -> None:
        """Stop several processes at once: send SIGTERM to all, then wait for each."""
        stopping = list(processes)
        for process in stopping:
            process._ask()
        end = time.monotonic() + patience
        for process in stopping:
            process._await(max(0.1, end - time.monotonic()))


_work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()


@cache
def _lasting_thread() -> threading.Thread:
    def run() -> None:
        while True:
            work, future = _work.get()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

    thread = threading.Thread(target=run, name="child-processes", daemon=True)
    thread.start()
    return thread


def _in_lasting_thread(work: Callable[[], Result]) -> Result:
    """Run it in a thread that ends only with this process, because a child ends with the thread that started it."""
    _lasting_thread()
    future: Future[Result] = Future()
    _work.put((work, future))
    return future.result()
