"""Spark as an injector: ``df.writeStream.format("millwheel")``, exactly once (section 5.2; docs/spark.md).

``spark.read`` and ``spark.readStream`` with the same format read streams and states.

::

    from millwheel.injectors.spark import MillwheelDataSource, start_python

    start_python(spark)  # the first batch then waits less
    spark.dataSource.register(MillwheelDataSource)
    query = (
        df.writeStream.format("millwheel")
        .option("stream", "flights")
        .option("id_column", "id")
        .option("timestamp_column", "scheduled")
        .option("allowed_delay", "22 hours")
        .option("checkpointLocation", "/var/lib/flights")
        .start()
    )
"""

from millwheel.injectors.spark.errors import ColumnError, OptionError, RowError, SinkError
from millwheel.injectors.spark.finishing import finish_stream
from millwheel.injectors.spark.interpreter import ignore_pandas_warning, use_this_python
from millwheel.injectors.spark.source import MillwheelDataSource
from millwheel.injectors.spark.starting import start_python

__all__ = [
    "ColumnError",
    "MillwheelDataSource",
    "OptionError",
    "RowError",
    "SinkError",
    "finish_stream",
    "start_python",
    "use_this_python",
]

ignore_pandas_warning()
