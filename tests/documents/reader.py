"""A reader follows a page: types its commands and runs its programs, in the order of the page.

Everything runs in one directory. One thing differs from the page: servers have free ports instead of 7433 and 8480, so
that readers do not collide.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import types
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deploy.local.child import free_ports
from millwheel.model.units import ANY_TIMESTAMP_VARIABLE
from tests.documents.blocks import Block, Command, commands_of
from tests.patience import patience

_SECONDS = patience(60.0)
"""The time limit of one command."""


class Reader:
    """A reader with its own directory and port. Use it as ``with``.

    ``python`` names the interpreter whose installation the commands run in.
    """

    def __init__(self, place: Path, python: Path = Path(sys.executable)) -> None:
        self.place = place
        self._port, self._http_port = map(str, free_ports(2))
        self._page = types.ModuleType("page")
        self._groups: list[int] = []
        self._imported: list[str] = []
        self._commands = 0
        path = f"{python.parent}:{os.environ.get('PATH', '')}"
        self._more = {"NO_COLOR": "1", "COLUMNS": "200", "PATH": path}

    def __enter__(self) -> Reader:
        self._surroundings = pytest.MonkeyPatch()
        self._surroundings.chdir(self.place)
        self._surroundings.syspath_prepend(self.place)
        self._surroundings.setenv("MILLWHEEL_ADDRESS", f"127.0.0.1:{self._port}")
        self._surroundings.delenv(ANY_TIMESTAMP_VARIABLE, raising=False)  # the other tests have it
        # Types that a program declares are looked up in its module.
        self._surroundings.setitem(sys.modules, self._page.__name__, self._page)
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self._surroundings.undo()
        for name in self._imported:
            sys.modules.pop(name, None)

    def run_python(self, block: Block) -> None:
        """Run a program. If it is a file, it is saved and imported. The others share a namespace."""
        code = self._own(block)
        if block.file:
            self.save(block)
            importlib.invalidate_caches()
            self._imported.append(Path(block.file).stem)
            importlib.import_module(self._imported[-1])
            return
        # Empty lines stand for the page above the block, so that a traceback names the page's line.
        exec(compile("\n" * (block.line - 1) + code, block.page, "exec"), vars(self._page))

    def save(self, block: Block) -> None:
        """Save a program as the file that its first line names."""
        (self.place / block.file).write_text(self._own(block))

    def type_commands(self, block: Block, left_out: Container[str]) -> None:
        """Type the commands of a console block, except those of ``left_out``."""
        for command in commands_of(block):
            if command.text not in left_out:
                self._type(block, command)

    def _own(self, block: Block) -> str:
        own = block.code.replace("127.0.0.1:7433", f"127.0.0.1:{self._port}")
        return own.replace("127.0.0.1:8480", f"127.0.0.1:{self._http_port}")

    def _type(self, block: Block, command: Command) -> None:
        text = command.text.replace("server start-dev", f"server start-dev --port {self._port}")
        text = text.replace("inject http", f"inject http --port {self._http_port}")
        text = text.replace("127.0.0.1:8480", f"127.0.0.1:{self._http_port}")
        self._commands += 1
        log = self.place / f".command-{self._commands}"
        with log.open("wb") as output:
            # The command has its own process group, which its background processes stay in.
            how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "start_new_session": True}
            shell = subprocess.Popen(["bash", "-ec", text], stdout=output, env={**os.environ, **self._more}, **how)
        self._groups.append(shell.pid)
        try:
            code = shell.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{block}: `{text}` does not end; so far: {log.read_text()}") from None
        printed = log.read_text()
        assert code == 0, f"{block}: `{text}` ended with {code}: {printed}"
        for line in command.shown:
            assert " ".join(line.split()) in " ".join(printed.split()), f"{block}: `{text}` printed: {printed}"
