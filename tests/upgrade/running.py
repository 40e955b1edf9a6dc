"""Programs that run the code of the version which a file names when they start."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

# The package of the tests imports millwheel. So this comes before anything of it.
_START: Final = """
import os, sys
from pathlib import Path
tree = Path({folder!r}, {name}).read_text()
sys.path.insert(0, tree)
os.environ["PYTHONPATH"] = os.pathsep.join((tree, {root!r}))
import millwheel
found = Path(millwheel.__file__).parents[1]
print("running the code of", found, file=sys.stderr, flush=True)
assert found == Path(tree), "another version's code comes first"
"""
_PORT: Final = """next(one for one in sys.argv if one.startswith("--rpc-listen=")).rpartition(":")[2]"""
_COMMAND_LINE: Final = "from millwheel.cli.main import main; main()\n"
_MODULE: Final = "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"


class Versions:
    """Which version each program runs from its next start on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def set(self, name: str, tree: Path) -> None:
        """Let a program run the code in ``tree``."""
        (self._folder / name).write_text(str(tree))

    def code(self, name: str = "") -> str:
        """Python code that runs the command line. ``name``: the program's; by default the port that it listens at."""
        return self._start(repr(name) if name else _PORT) + _COMMAND_LINE

    def module(self, name: str, module: str) -> str:
        """Python code that runs a module of the tests as a program, with the version's ``millwheel``."""
        return self._start(repr(name)) + _MODULE.format(module=module)

    def _start(self, name: str) -> str:
        return _START.format(folder=str(self._folder), name=name, root=str(ROOT))
