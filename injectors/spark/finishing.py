"""The end of a stream that a query feeds (section 4.5).

The package loads this module in each of Spark's processes, so it imports the client only when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from millwheel.injectors.spark.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["finish_stream"]


def finish_stream(query: StreamingQuery, options: Mapping[str, str]) -> None:
    """Declare a streaming query the last of its stream: the watermark becomes plus infinity. This is final.

    Call it when ``query.awaitTermination()`` has returned, for example after ``trigger(availableNow=True)``. The call
    is idempotent.

    Args:
        query: The query, which must have ended without an error.
        options: The sink options of the query.

    Raises:
        SinkError: The query still runs or has failed. Its last batch may have to be sent again.
        OptionError: An option is invalid.
    """
    from millwheel.injectors.spark.driver import finish
    from millwheel.injectors.spark.options import parse_options

    parsed = parse_options(options)
    if query.isActive:
        raise SinkError(f"query {query.id} still runs: wait for query.awaitTermination() before finishing its stream")
    if (failure := query.exception()) is not None:
        raise SinkError(f"query {query.id} has failed, and its stream is not at its end: run it again") from failure
    finish(parsed)
