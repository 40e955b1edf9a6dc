"""What cannot be undone is asked about first."""

from __future__ import annotations

import typer

from millwheel.cli.main import app
from tests.cli.test_help import commands

ASKING = {
    "computation remove",
    "dead-letter discard",
    "injector advance",
    "injector finish",
    "injector retire",
    "injector retire-query",
    "snapshot delete",
    "stream cursors delete",
    "stream log delete",
    "topology cancel",
    "topology drain",
    "topology rollback",
    "topology update",
}
CHANGING = {
    "certificates create",
    "certificates signing-key",
    "computation add",
    "dead-letter replay",
    "inject file",
    "inject http",
    "interval merge",
    "interval move",
    "interval split",
    "snapshot create",
    "snapshot restore",
    "snapshot states",
    "stream produce",
    "topology pause",
    "topology quota",
    "topology resume",
    "topology submit",
}
"""They add, or can be taken back."""
LOOKING = {
    "check",
    "describe",
    "explain",
    "graph",
    "health",
    "inspect",
    "list",
    "queries",
    "show",
    "table",
    "tail",
    "validate",
    "verify",
}
RUNNING = {"authority run", "master run", "server start-dev", "worker run", "version"}


def test_each_command_that_cannot_be_undone_takes_yes() -> None:
    """A new command belongs to one of the sets."""
    leaves = {path: one for path, one in commands(typer.main.get_command(app)) if not hasattr(one, "list_commands")}
    asking = {path for path, one in leaves.items() if any("--yes" in parameter.opts for parameter in one.params)}
    others = {path for path in leaves.keys() - asking if path.rpartition(" ")[2] not in LOOKING}
    assert asking == ASKING
    assert others == CHANGING | RUNNING
