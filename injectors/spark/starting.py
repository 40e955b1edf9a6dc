"""Starts Spark's Python processes before the first micro-batch needs them.

Spark plans, writes and commits a micro-batch in processes of their own. It starts each when it first needs it, one
after the other, and each imports PySpark and MillWheel. Afterwards a process waits for its next use for a minute.

Spark knows its processes by all their environment variables. So Spark's own code starts them here, as for a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millwheel.injectors.spark.interpreter import check_interpreter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["start_python"]

log = logging.getLogger("millwheel.spark")

_SIMPLIFIED: Final = "SPARK_SIMPLIFIED_TRACEBACK"
_SIMPLIFIED_SETTING: Final = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
_FAILED: Final = "Spark's Python processes do not start early, so the first batch starts them: %s: %s"


def start_python(spark: SparkSession) -> Thread:
    """Start the Python processes that a query's first micro-batch needs, while the program goes on.

    Call it as soon as the session is there. Without the call the batch starts them itself, and takes longer. One job
    starts the processes of the executors: it has a task for each core that the session has now. If something fails,
    the log says so, and nothing else changes.

    Args:
        spark: The session. It must not be one of Spark Connect, whose processes are the server's.

    Returns:
        The thread that starts them. A program need not wait for it.

    Raises:
        SinkError: A local session would run another Python.
    """
    check_interpreter()
    thread = Thread(target=_start, args=(spark,), name="millwheel-spark-start", daemon=True)
    thread.start()
    return thread


def _start(spark: SparkSession) -> None:
    tasks = Thread(target=_tried, args=(_start_tasks, spark), name="millwheel-spark-start-tasks", daemon=True)
    tasks.start()
    _tried(_start_planners, spark)
    tasks.join()


def _tried(start: Callable[[SparkSession], None], spark: SparkSession) -> None:
    try:
        start(spark)
    except Exception as error:  # the session may be stopped meanwhile; and some of the calls are Spark's own
        log.warning(_FAILED, type(error).__name__, str(error).partition("\n")[0])


def _start_planners(spark: SparkSession) -> None:
    """Start the three processes beside the driver in the order of their use: plan a batch, make the source, commit."""
    from pyspark.sql.udf import _wrap_function

    context = spark.sparkContext
    java: Any = context._jvm
    gateway: Any = context._gateway
    python = java.org.apache.spark.sql.execution.datasources.v2.python
    none = java.org.apache.spark.sql.util.CaseInsensitiveStringMap.empty()
    schema = python.UserDefinedPythonDataSource.writeOutputSchema()  # any will do
    source = python.UserDefinedPythonDataSource(_wrap_function(context, _Starter))
    source.createWriteInfoInPython(_Starter.name(), schema, none, False, True)
    made = source.createDataSourceInPython(_Starter.name(), none, java.scala.Option.apply(schema))
    no_reports = gateway.new_array(java.org.apache.spark.sql.connector.write.WriterCommitMessage, 0)
    function = source.createPythonFunction(made.dataSource())
    commit = python.PythonStreamingSinkCommitRunner(function, schema, no_reports, 0, False, True)
    commit.runInPython(getattr(commit, "runInPython$default$1")())


def _start_tasks(spark: SparkSession) -> None:
    """Start a process for each core of the executors.

    The job is one of RDDs: it begins within a moment, and the first DataFrame of a session takes seconds to plan.
    """
    context = spark.sparkContext
    count = context.defaultParallelism
    rows: Any = context.parallelize(range(count), count).mapPartitions(_import_for_task)
    if spark.conf.get(_SIMPLIFIED_SETTING) == "true":
        rows.ctx = _Variable(context, _SIMPLIFIED, "1")
    rows._jrdd.count()


class _Variable:
    """A context with one environment variable more.

    Processes for DataFrames have it, and those for RDDs do not. Without it, Spark would start others for a batch.
    """

    def __init__(self, context: SparkContext, name: str, value: str) -> None:
        self._context = context
        self.environment = {**context.environment, name: value}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _import_for_task(rows: Iterable[int]) -> Iterable[int]:
    """Run in an executor: import what a task imports."""
    import pyarrow as pa

    import millwheel.injectors.spark.tasks  # noqa: F401

    pa.array([b""])  # a report is made so, and pyarrow looks for pandas first
    return rows


class _Starter(DataSource):
    """A data source whose writer sends nothing. Spark plans by it, and aborts."""

    @classmethod
    def name(cls) -> str:
        return "millwheel-start"

    def streamWriter(self, schema: StructType, overwrite: bool) -> _IdleWriter:
        import millwheel.injectors.spark.writers  # noqa: F401

        return _IdleWriter()


class _IdleWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
