"""The Python that Spark's workers run by, and a warning that says nothing about the sink."""

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
    """Keep pyspark from warning of pandas 3 in every process: the sink takes Arrow batches, and pandas no part.

    That warning alone, by its words.
    """
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)


def check_interpreter() -> None:
    """See that a local session's workers run by this interpreter, or can be made to; SinkError says what to set.

    Spark starts ``PYSPARK_PYTHON``, or else whatever ``python3`` is on the path, which may lack pyarrow and
    millwheel. On a cluster the executors' Python is the cluster's matter.
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
    """Whether a command is this interpreter. Not by what links lead to: those of two environments lead to one file."""
    found = shutil.which(command)
    if found is None:
        return False
    here = Path(sys.executable)
    there = Path(found)
    return there.parent.resolve() == here.parent.resolve() and there.resolve() == here.resolve()
