"""Sets and checks the interpreter of Spark's Python processes. Silences a warning that does not concern the sink."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Final

from pyspark import SparkContext

from millwheel.injectors.spark.errors import SinkError

__all__ = ["check_interpreter", "ignore_pandas_warning", "use_this_python"]

_COMMAND: Final = "millwheel-python"
_VARIABLES: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""The interpreter of the session's processes, and that of the process that looks for data sources. Spark's JVM reads
the second one when it starts."""
_commands: Final[set[str]] = set()
"""Commands of ``use_this_python`` in this process, by which the launcher runs this interpreter."""


def ignore_pandas_warning() -> None:
    """Silence pyspark's warning about pandas 3. The sink uses Arrow batches and not pandas.

    The filter matches the text of that warning only.
    """
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)


def use_this_python() -> None:
    """Let the Python processes of a local session run by this interpreter. Call it before the session starts.

    It sets the environment variables ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON`` to a command. The command leaves
    out Spark's archive of PySpark, if the installed one has the same modules, compiled. So the processes start sooner.
    One of them looks for data sources when a program registers its first one. No later call can change how that one
    starts.

    The command is a file on this machine. So do not call it for a session whose executors run elsewhere.

    Example::

        use_this_python()
        spark = SparkSession.builder.getOrCreate()
        start_python(spark)
        spark.dataSource.register(MillwheelDataSource)
    """
    folder = Path(tempfile.mkdtemp(prefix="millwheel-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = folder / _COMMAND
    if _write_command(command):
        _commands.add(str(command))
    os.environ.update(dict.fromkeys(_VARIABLES, str(command) if str(command) in _commands else sys.executable))


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
    if context.pythonExec in {str(command), *_commands}:
        return
    if "PYSPARK_PYTHON" in os.environ and not _is_this(context.pythonExec):
        raise SinkError(
            f"Spark's workers would run by PYSPARK_PYTHON={context.pythonExec!r}, not by {sys.executable!r}, which has "
            "millwheel: call millwheel.injectors.spark.use_this_python() before the session starts"
        )
    context.pythonExec = str(command) if _write_command(command) else sys.executable


def _write_command(command: Path) -> bool:
    """Write the command that Spark runs: it takes one name, without arguments. Returns whether it can be run.

    It is in a folder that is deleted at the end: the session's own one, or that of ``use_this_python``.
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
