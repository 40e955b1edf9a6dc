"""Runs a module for Spark by this interpreter, with the installed PySpark in place of its archive.

Spark puts its archive first into the path of each Python process. The archive has no compiled modules, so each
process compiles PySpark again, which takes most of its start. A PySpark that pip has installed has the same modules
beside its archive, compiled.

Invariant: only the archive of the PySpark that the path gives next is left out. So a process has the same version as
without this module. Another ``SPARK_HOME`` or another installation has another archive, which stays.

Spark runs this file by its path, before any package is imported. So it imports the standard library alone.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["main", "without_archive"]

_ARCHIVE: Final = Path("python", "lib", "pyspark.zip")


def main(arguments: Sequence[str]) -> None:
    """Do as the interpreter does with ``-m MODULE ...``. Other arguments go to the interpreter itself."""
    if len(arguments) < 2 or arguments[0] != "-m":
        os.execv(sys.executable, [sys.executable, *arguments])
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd())  # it is the folder of this file, and that of a module's is the current one
    sys.path[:] = without_archive(sys.path)
    sys.argv[:] = arguments[1:]
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


def without_archive(path: Sequence[str]) -> list[str]:
    """The path without the archive of the installed PySpark."""
    packages = (Path(folder, "pyspark") for folder in path)
    installed = next((package for package in packages if (package / "__init__.py").is_file()), None)
    if installed is None:
        return list(path)
    archive = os.path.realpath(installed / _ARCHIVE)
    return [one for one in path if os.path.realpath(one) != archive]


if __name__ == "__main__":
    main(sys.argv[1:])
