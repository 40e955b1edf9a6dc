"""Sets and checks the interpreter of Spark's Python processes. Silences a warning that does not concern the sink."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import stat
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

    The command is a file on this machine, which this user's programs share. So executors elsewhere do not have it:
    a session that is not local runs ``sys.executable`` on them, as if ``PYSPARK_PYTHON`` were that. Once a session has
    started, the call does nothing.

    Example::

        use_this_python()
        spark = SparkSession.builder.getOrCreate()
        start_python(spark)
        spark.dataSource.register(MillwheelDataSource)
    """
    if SparkContext._active_spark_context is not None:
        return  # its JVM has the variables, and other ones would count as a setting against it
    command = _shared_command()
    there = _is_own(command.parent) and _write_command(command)
    os.environ.update(dict.fromkeys(_VARIABLES, str(command) if there else sys.executable))


def check_interpreter() -> None:
    """Make a local session's workers run this interpreter. Raises SinkError if a setting prevents it.

    Spark starts ``PYSPARK_PYTHON``, or otherwise the ``python3`` on the path, which may lack pyarrow and millwheel. On
    a cluster, the cluster configures the executors' Python, so nothing is checked.

    The session runs the interpreter by ``launcher.py``, because its processes then start sooner. Spark knows them by
    the command, so registration and ``start_python`` set the same one.
    """
    context = SparkContext._active_spark_context
    if context is None:
        return
    shared = context.pythonExec == str(_shared_command())
    if not (context.master or "").startswith("local"):
        if shared:
            context.pythonExec = sys.executable
        return
    command = Path(context._temp_dir or os.devnull) / _COMMAND
    if shared or context.pythonExec == str(command):
        return
    if "PYSPARK_PYTHON" in os.environ and not _is_this(context.pythonExec):
        raise SinkError(
            f"Spark's workers would run by PYSPARK_PYTHON={context.pythonExec!r}, not by {sys.executable!r}, which has "
            "millwheel: call millwheel.injectors.spark.use_this_python() before the session starts"
        )
    context.pythonExec = str(command) if _write_command(command) else sys.executable


def _shared_command() -> Path:
    """The command of this user for this interpreter, the same in each program.

    It stays: children of a program, and sessions of others, may run it after the program has ended.
    """
    user = os.getuid() if os.name == "posix" else "none"
    name = f"{_COMMAND}-{hashlib.sha256(_script().encode()).hexdigest()[:16]}"
    return Path(tempfile.gettempdir(), f"millwheel-spark-{user}", name)


def _is_own(folder: Path) -> bool:
    """Make a folder. Returns whether it is this user's own, and no other may write to it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    mine = os.name == "posix" and found.st_uid == os.getuid()
    return mine and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o022


def _script() -> str:
    launcher = Path(__file__).with_name("launcher.py")
    return f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(launcher))} "$@"\n'


def _write_command(command: Path) -> bool:
    """Write the command that Spark runs: it takes one name, without arguments. Returns whether it can be run.

    Others may run it meanwhile, so it is replaced as a whole.
    """
    written = command.with_name(f"{command.name}.{os.getpid()}")
    try:
        written.write_text(_script())
        written.chmod(0o755)
        written.replace(command)
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
