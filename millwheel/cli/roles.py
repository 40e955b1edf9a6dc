"""``millwheel master run``, ``worker run`` and ``authority run``: the daemons of a cluster. And ``worker list``.

A role's code is imported only when the role runs. So other commands do not wait for imports of store drivers and
coordinator clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final, TypeVar

import typer
import uvloop

from millwheel.cli.failing import ExitCode
from millwheel.cli.setting_flags import with_settings
from millwheel.cli.worker_list import list_workers
from millwheel.config import Configuration
from millwheel.server.logs import configure_logging
from millwheel.server.supervisor import die_with_parent, own_command, supervise

__all__ = ["authority_app", "master_app", "worker_app"]

master_app = typer.Typer(
    help="Daemon of a cluster: a master, which has the topologies and gives keys to workers.",
    no_args_is_help=True,
    add_completion=False,
)
authority_app = typer.Typer(
    help="Daemon of a cluster: a low watermark authority.", no_args_is_help=True, add_completion=False
)
worker_app = typer.Typer(
    help="Workers, which run computations: run one, or list those of a cluster.",
    no_args_is_help=True,
    add_completion=False,
)

Result = TypeVar("Result")

_SHARED: Final = ("coordinator", "store", "rpc", "security", "metrics", "logging")
_MARGIN_SECONDS: Final = 5.0
_Hidden = Annotated[int | None, typer.Option(hidden=True)]


@master_app.callback()
@authority_app.callback()
@worker_app.callback()
def _nouns() -> None:
    """Daemons."""


@master_app.command("run")
@with_settings(("cluster", "master", *_SHARED))
def run_master(configuration: Configuration) -> None:
    """Run a master, until SIGTERM or Ctrl-C. A cluster has two or more: one leads, the others stand by."""
    from millwheel.server.daemon import run_daemon
    from millwheel.server.master import MASTER

    configure_logging(configuration.settings.logging, role="master")
    _run(lambda stop: run_daemon(MASTER, configuration, stop))


@authority_app.command("run")
@with_settings(("cluster", "authority", *_SHARED))
def run_authority(configuration: Configuration) -> None:
    """Run a low watermark authority, until SIGTERM or Ctrl-C. A cluster has two or more, which share the shards."""
    from millwheel.server.authority import AUTHORITY
    from millwheel.server.daemon import run_daemon

    configure_logging(configuration.settings.logging, role="authority")
    _run(lambda stop: run_daemon(AUTHORITY, configuration, stop))


@worker_app.command("run")
@with_settings(("cluster", "worker", *_SHARED), process=_Hidden, parent=_Hidden)
def run_worker(configuration: Configuration, process: int | None, parent: int | None) -> None:
    """Run a worker, of one process or several (--worker-processes), until SIGTERM or Ctrl-C."""
    from millwheel.server.daemon import run_daemon
    from millwheel.server.worker import WORKER

    settings = configuration.settings
    if process is None and settings.worker.processes > 1:
        configure_logging(settings.logging, role="worker")
        grace = WORKER.grace(settings) + _MARGIN_SECONDS
        # In conflict with the cluster, such as a duplicate worker id. Each process has said why.
        final = {ExitCode.CONFLICT}
        raise typer.Exit(_run(lambda stop: supervise(own_command, settings.worker.processes, stop, grace, final)))
    index = process or 0
    configure_logging(settings.logging, role="worker", process=index)
    if parent is not None:
        die_with_parent(parent)
    _run(lambda stop: run_daemon(WORKER, configuration, stop, index))


worker_app.command("list")(list_workers)


def _run(work: Callable[[asyncio.Event], Coroutine[Any, Any, Result]]) -> Result:
    """Run ``work`` until it ends, and return its result. A stop signal sets the event that ``work`` receives."""
    from millwheel.server.daemon import stop_on_signals

    async def main() -> Result:
        stop = asyncio.Event()
        stop_on_signals(stop)
        return await work(stop)

    return uvloop.run(main())
