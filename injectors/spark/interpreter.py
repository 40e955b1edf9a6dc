"""Checks the Python interpreter of Spark's workers, and silences a warning that does not concern the sink."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import warnings
from pathlib import Path
from typing import Final

from pyspark import SparkContext

from millwheel.injectors.spark.errors import SinkError

__all__ = ["check_interpreter", "ignore_pandas_warning"]

_COMMAND: Final = "millwheel-python"


def ignore_pandas_warning() -> None:
    """Silence pyspark's warning about pandas 3. The sink uses Arrow batches and not pandas.

    The filter matches the text of that warning only.
    """
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)


def check_interpreter() -> None:
    """Make a local session's workers run this interpreter. Raises SinkError if a setting prevents it.

    Spark starts ``PYSPARK_PYTHON``, or otherwise the ``python3`` on the path, which may lack pyarrow and millwheel. On
    a cluster, the cluster configures the executors' Python, so nothing is checked.

    The session runs the interpreter by ``launcher.py``, because its processes then start sooner. Spark knows them by
    the command, so registration and ``start_python`` set the same one.
    """
    context = SparkContext._active_spark_context
    if context is None or not (context.master or "").startswith("local"):
        return
    command = Path(context._temp_dir or os.devnull) / _COMMAND
    if context.pythonExec == str(command):
        return
    if "PYSPARK_PYTHON" in os.environ and not _is_this(context.pythonExec):
        raise SinkError(
            f"Spark's workers would run by PYSPARK_PYTHON={context.pythonExec!r}, not by {sys.executable!r}, which has "
            "millwheel: set os.environ['PYSPARK_PYTHON'] = sys.executable before the session starts"
        )
    context.pythonExec = str(command) if _write_command(command) else sys.executable


def _write_command(command: Path) -> bool:
    """Write the command that Spark runs: it takes one name, without arguments. Returns whether it can be run.

    It is in the session's own folder, which Spark deletes at the end.
    """
    launcher = Path(__file__).with_name("launcher.py")
    try:
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(launcher))} "$@"\n')
        command.chmod(0o755)
    except OSError:
        return False
    return os.name == "posix" and os.access(command, os.X_OK)


def _is_this(command: str) -> bool:
    """Whether a command is this interpreter. Directories count too: two environments may link to the same file."""
    found = shutil.which(command)
    if found is None:
        return False
    here = Path(sys.executable)
    there = Path(found)
    return there.parent.resolve() == here.parent.resolve() and there.resolve() == here.resolve()
