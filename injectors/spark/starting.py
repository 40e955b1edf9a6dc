"""Starts Spark's Python processes before the first batch needs them.

Spark plans, writes and commits a batch in processes of their own. A batch write and a micro-batch share those that plan
and write, and each has others that commit. Another process looks for data sources of packages, and a program that
registers a source waits for it. Spark starts each when it first needs it, one after the other, and most import PySpark
and MillWheel. Afterwards a process waits for its next use for a minute.

Spark knows its processes by all their environment variables. So Spark's own code starts them here, as for a batch.

After each use of a process, Spark collects garbage there: 10 to 25 ms of processor time, five times for a micro-batch.
Most of it is for what was imported, and modules stay. So the collector leaves them out from then on (``gc.freeze``).
"""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from millwheel.injectors.spark.interpreter import check_interpreter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["start_python", "tried"]

log = logging.getLogger("millwheel.spark")

_SETTING: Final = "spark.sql.execution.pyspark.udf.%s.enabled"
_VARIABLES: Final = (
    ("hideTraceback", "SPARK_HIDE_TRACEBACK"),
    ("simplifiedTraceback", "SPARK_SIMPLIFIED_TRACEBACK"),
    ("tracebackWithLocals", "SPARK_TRACEBACK_WITH_LOCALS"),
)
"""Settings of a session, and the variables of its tasks for DataFrames that Spark makes of them."""
_ERROR: Final = re.compile(r"^(?:: |Caused by: )?([\w.$]*(?:Error|Exception)\b.*)", re.MULTILINE)
"""An error in a text of Java's or Python's."""


def start_python(spark: SparkSession, *, batch_writes: bool = True, micro_batches: bool = True) -> Thread:
    """Start the Python processes that a session's first batch needs, while the program goes on.

    Call it as soon as the session is there. Without the call the batch starts them itself, and takes longer. One job
    starts the processes of the executors: it has as many tasks as they can run at once now. If something fails, the
    log says so, and nothing else changes.

    Args:
        spark: The session. It must not be one of Spark Connect, whose processes are the server's.
        batch_writes: Whether to start the process that commits a batch write. A session that has none needs no such
            process, and its start takes a share of the processor.
        micro_batches: Whether to start the two processes that commit a micro-batch.

    Returns:
        The thread that starts them. A program need not wait for it.

    Raises:
        SinkError: A local session would run another Python.
    """
    check_interpreter()
    planners = partial(_start_planners, batch_writes=batch_writes, micro_batches=micro_batches)
    thread = Thread(target=_start, args=(spark, planners), name="millwheel-spark-start", daemon=True)
    thread.start()
    return thread


def _start(spark: SparkSession, planners: Callable[[SparkSession], object]) -> None:
    others = [
        Thread(target=tried, args=(start, spark), name=f"millwheel-spark{start.__name__}", daemon=True)
        for start in (_start_tasks, _start_lookup)
    ]
    for thread in others:
        thread.start()
    tried(planners, spark)
    for thread in others:
        thread.join()


def tried(start: Callable[[SparkSession], object], spark: SparkSession) -> None:
    """Start some processes, or log why they do not start."""
    try:
        start(spark)
    except Exception as error:  # some of the calls are Spark's own
        if not _is_stopped(spark):
            message = "Spark's Python processes do not start early, so the first batch starts them: %s"
            log.warning(message, _cause(error))


def _is_stopped(spark: SparkSession) -> bool:
    """Whether the program has stopped the session meanwhile. A short one does."""
    with suppress(Exception):  # a session of Spark Connect has no context
        java: Any = spark.sparkContext._jsc
        return java is None or bool(java.sc().isStopped())
    return False


def _cause(error: Exception) -> str:
    """The last error in the text: below Spark's own is that of a Python process."""
    text = str(error)
    found: list[str] = _ERROR.findall(text)
    first, _, _ = text.partition("\n")
    return found[-1] if found else f"{type(error).__name__}: {first}"


def _start_planners(spark: SparkSession, batch_writes: bool, micro_batches: bool) -> None:
    """Start the processes beside the driver in the order of their use.

    One plans, and one commits a batch write. For a micro-batch, one makes the source, and one commits. A batch write
    is first: it needs no query to be set up, so its commit comes sooner.
    """
    from pyspark.sql.udf import _wrap_function

    context = spark.sparkContext
    java: Any = context._jvm
    _be_active(spark)
    gateway: Any = context._gateway
    python = java.org.apache.spark.sql.execution.datasources.v2.python
    none = java.org.apache.spark.sql.util.CaseInsensitiveStringMap.empty()
    schema = python.UserDefinedPythonDataSource.writeOutputSchema()  # any will do
    source = python.UserDefinedPythonDataSource(_wrap_function(context, _Starter))
    planned = source.createWriteInfoInPython(_Starter.name(), schema, none, False, False)
    no_reports = gateway.new_array(java.org.apache.spark.sql.connector.write.WriterCommitMessage, 0)
    if batch_writes:
        source.commitWriteInPython(planned.writer(), no_reports, True)
    if not micro_batches:
        return
    made = source.createDataSourceInPython(_Starter.name(), none, java.scala.Option.apply(schema))
    function = source.createPythonFunction(made.dataSource())
    commit = python.PythonStreamingSinkCommitRunner(function, schema, no_reports, 0, False, True)
    commit.runInPython(getattr(commit, "runInPython$default$1")())


def _start_tasks(spark: SparkSession) -> None:
    """Start as many processes as the executors use at once.

    The job is one of RDDs: it begins within a moment, and the first DataFrame of a session takes seconds to plan.
    """
    context = spark.sparkContext
    java: Any = context._jsc.sc()
    # Not `defaultParallelism`: a user may set that to thousands. One task waits if no executor is there yet.
    count = max(1, java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))
    context.setJobDescription("start_python: starts the Python processes of the executors")
    rows: Any = context.parallelize(range(count), count).mapPartitions(_import_for_task)
    variables = {variable: "1" for name, variable in _VARIABLES if _is_set(spark, _SETTING % name)}
    rows.ctx = _WithVariables(context, variables)
    rows._jrdd.count()


def _be_active(spark: SparkSession) -> None:
    """Spark makes variables of the settings of the thread's session, and these threads are new."""
    java: Any = spark.sparkContext._jvm
    java.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def _start_lookup(spark: SparkSession) -> None:
    """Let Spark look for the data sources of packages, in a process. A registration waits until that is done."""
    java: Any = spark._jsparkSession
    _be_active(spark)
    java.sessionState().dataSourceManager().dataSourceExists(_Starter.name())


def _is_set(spark: SparkSession, setting: str) -> bool:
    value = spark.conf.get(setting)  # or Spark's own default
    return value is not None and value.lower() == "true"


class _WithVariables:
    """A context with more environment variables.

    Processes for DataFrames have them, and those for RDDs do not. Without them, Spark would start others for a batch.
    """

    def __init__(self, context: SparkContext, variables: Mapping[str, str]) -> None:
        self._context = context
        self.environment = {**context.environment, **variables}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _import_for_task(rows: Iterable[int]) -> Iterable[int]:
    """Run in an executor: import what a task imports."""
    import pyarrow as pa

    import millwheel.injectors.spark.tasks  # noqa: F401

    pa.array([b""])  # a report is made so, and pyarrow looks for pandas first
    gc.freeze()
    return rows


class _Starter(DataSource):
    """A data source whose writers send nothing. Spark plans by it, and aborts.

    Each process imports what MillWheel's own writers need there.
    """

    @classmethod
    def name(cls) -> str:
        return "millwheel-start"

    def writer(self, schema: StructType, overwrite: bool) -> _IdleWriter:
        _import_writers()
        return _IdleWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> _IdleStreamWriter:
        _import_writers()
        return _IdleStreamWriter()


class _IdleWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return WriterCommitMessage()  # no task calls it

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The process that commits a batch write gets the writer, and does not make it."""
        _import_writers()


class _IdleStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return WriterCommitMessage()  # no task calls it


def _import_writers() -> None:
    import millwheel.injectors.spark.writers  # noqa: F401

    gc.freeze()
