"""For every test: time limits that suit this machine, how tests are shared out, and reports of failures.

A gRPC server has to end before the tasks of its event loop, also if a test fails before it stops the server. A loop
that ends cancels its tasks. One task of each grpc.aio server holds memory that gRPC's core writes to at the next call,
or at the server's end. If that task ends first, the core writes to freed memory, and a later test crashes. A running
server that is garbage-collected raises within another test, or waits for its threads.
"""

from __future__ import annotations

import asyncio
import asyncio.selector_events
import os
import signal
import sys
import traceback
from collections.abc import Generator
from typing import Any, Final
from weakref import WeakKeyDictionary

import grpc
import hypothesis
import pytest

from millwheel.rpc import identity
from tests import again, sharing, shown
from tests.patience import patience

_started: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, list[grpc.aio.Server]]] = WeakKeyDictionary()
_failed: Final[list[str]] = []
_lost: Final[list[object]] = []
"""Why processes of tests died."""


def stop_servers_with_their_loops() -> None:
    """Make ``asyncio.run`` and ``asyncio.Runner`` stop a loop's servers before they end the loop."""
    make: Any = grpc.aio.server
    runners: Any = asyncio.runners
    cancel_all_tasks = runners._cancel_all_tasks  # noqa: SLF001  # asyncio has no hook for a loop's end

    def server(*arguments: Any, **options: Any) -> grpc.aio.Server:
        made: grpc.aio.Server = make(*arguments, **options)
        _started.setdefault(asyncio.get_running_loop(), []).append(made)
        return made

    def stop_and_cancel(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_until_complete(_stop(_started.pop(loop, [])))
        finally:
            cancel_all_tasks(loop)

    setattr(grpc.aio, "server", server)  # noqa: B010  # its type is a function's
    runners._cancel_all_tasks = stop_and_cancel  # noqa: SLF001  # asyncio has no hook for a loop's end


async def _stop(servers: list[grpc.aio.Server]) -> None:
    async with asyncio.timeout(patience(2.0)):
        for one in servers:
            await one.stop(None)


def refuse_connections_of_closed_servers() -> None:
    """Close a connection that asyncio accepts just before its server closes.

    asyncio forgets it (in Python 3.11): an assertion ends the task that makes the transport. The collector finds
    the open socket in another test, which fails.
    """
    loops: Any = asyncio.selector_events.BaseSelectorEventLoop
    accept = loops._accept_connection2  # noqa: SLF001  # asyncio has no hook for it

    async def accept_if_open(
        loop: Any, factory: Any, connection: Any, extra: Any, context: Any = None, server: Any = None, *more: Any
    ) -> None:
        if server is not None and not server.sockets:
            connection.close()
            return
        await accept(loop, factory, connection, extra, context, server, *more)

    loops._accept_connection2 = accept_if_open  # noqa: SLF001  # asyncio has no hook for it


# An example may take any time on a busy machine. The time limit of the whole test stays.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

# pytest parses the source of what failed. In some releases of CPython (3.11.7 is one) that ends with "AST constructor
# recursion depth mismatch" if another thread parses, too, and the whole run with it. Threads of the Cassandra driver do
# when they log an error: tracebacks parse each line, to underline the part of it that raised. They do without.
setattr(traceback, "_extract_caret_anchors_from_line_segment", lambda _: None)  # noqa: B010  # its name is private

stop_servers_with_their_loops()
refuse_connections_of_closed_servers()

# A run in the background of a script ignores SIGINT, and so would each process that it starts. Tests interrupt some.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def one_tests_tls_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that a test starts sets the TLS identity of the whole process. It ends with the test."""
    monkeypatch.setattr(identity, "chosen", list(identity.chosen))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the guarantees of a test that fails, "holds G8 (section 7.1)", and the logs of its servers."""
    report = yield
    if report.failed:
        report.sections += shown.sections()
    held = _held(item)
    if report.failed and held:
        report.sections.append(("what the test is for", held))
    return report


def _held(item: pytest.Item) -> str:
    """The guarantees and sections of a test's marks. Empty if it has no mark."""
    parts = []
    for marker in (*item.iter_markers("guarantee"), *item.iter_markers("paper")):
        names, section = ", ".join(marker.args), marker.kwargs.get("section", "")
        section = f"section {section}" if section[:1].isdigit() else section
        parts.append(f"{names} ({section})" if names and section else names or section)
    return f"holds {'; '.join(parts)}" if parts else ""


def pytest_runtest_logstart() -> None:
    """A test begins: the servers that former ones have ended are not shown any more."""
    shown.forget_ended()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print the name of a failed test at once, because an interrupted run has no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        reason = getattr(getattr(report.longrepr, "reprcrash", None), "message", str(report.longrepr))
        _failed.append(report.nodeid)
        sys.stdout.write(f"\nFAILED {report.nodeid} ({report.when}): {reason.strip().partition(chr(10))[0][:300]}\n")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(error: object) -> None:
    """A process of tests has ended. With an error it died, and its other tests did not run."""
    if error is not None:
        _lost.append(error)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write down which tests failed, in the process that knows of all. None have a second try if tests are missing."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        whole = not (_lost or session.shouldstop or session.shouldfail)
        again.write(session.config.rootpath, _failed if whole else [])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> sharing.Sharing | None:
    """Share tests out as tests/sharing.py says, if they go by file."""
    return sharing.Sharing(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Multiply the time limit of each test by the factor of tests/patience.py.

    A limit from ``--timeout`` on the command line is not multiplied. With several processes, put the tests in the order
    in which they are shared out.
    """
    if hasattr(config, "workerinput"):
        sharing.put_in_order(items)
    if config.getoption("timeout") is not None:
        return
    usual = float(config.getini("timeout"))
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = float(marker.args[0]) if marker is not None and marker.args else usual
        item.add_marker(pytest.mark.timeout(patience(seconds)), append=False)
