"""Checks the Python interpreter of Spark's workers, and silences a warning that does not concern the sink."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from pathlib import Path

from pyspark import SparkContext

from millwheel.injectors.spark.errors import SinkError

__all__ = ["check_interpreter", "ignore_pandas_warning"]


def ignore_pandas_warning() -> None:
    """Silence pyspark's warning about pandas 3. The sink uses Arrow batches and not pandas.

    The filter matches the text of that warning only.
    """
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)


def check_interpreter() -> None:
    """Make a local session's workers run this interpreter. Raises SinkError if a setting prevents it.

    Spark starts ``PYSPARK_PYTHON``, or otherwise the ``python3`` on the path, which may lack pyarrow and millwheel. On
    a cluster, the cluster configures the executors' Python, so nothing is checked.
    """
    context = SparkContext._active_spark_context
    if context is None or not (context.master or "").startswith("local"):
        return
    if "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    elif not _is_this(context.pythonExec):
        raise SinkError(
            f"Spark's workers would run by PYSPARK_PYTHON={context.pythonExec!r}, not by {sys.executable!r}, which has "
            "millwheel: set os.environ['PYSPARK_PYTHON'] = sys.executable before the session starts"
        )


def _is_this(command: str) -> bool:
    """Whether a command is this interpreter. Directories count too: two environments may link to the same file."""
    found = shutil.which(command)
    if found is None:
        return False
    here = Path(sys.executable)
    there = Path(found)
    return there.parent.resolve() == here.parent.resolve() and there.resolve() == here.resolve()
