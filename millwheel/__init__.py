"""MillWheel: fault-tolerant stream processing after the paper of that name (VLDB 2013).

Write a :class:`Computation`, put it into a :class:`Topology`, and submit that to a cluster, or run it by
``millwheel.testing`` with no cluster at all::

    import millwheel as mw

    class WordCount(mw.Computation[str, int]):
        def process_record(self, ctx: mw.Context[int], record: mw.Record[str]) -> None:
            ctx.state += 1
            ctx.produce("counts", f"{ctx.key}: {ctx.state}")

    words = mw.Topology("words")
    words.source("words", str)
    words.add(WordCount, inputs={"words": mw.key(str.lower)}, outputs=["counts"])

What is named here is the public interface, with ``millwheel.testing``, ``millwheel.client.injector``,
``millwheel.client.subscription``, ``millwheel.client.metrics``, ``millwheel.connectors`` and
``millwheel.injectors.spark``; everything else may change.
"""

import os

# gRPC documents its fork handlers as off in Python, and has them on; it looks at this once, when it is first
# imported. A child that they prepare while calls go on dies before it runs its program: so did the Java gateway that
# a Spark driver started beside a MillWheel client.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Its C core writes a line to stderr for each server that shuts down: noise in a user's terminal.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from millwheel import agg, windows
from millwheel.model.time import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Duration,
    TimeDomain,
    Timestamp,
    days,
    format_timestamp,
    from_datetime,
    from_milliseconds,
    from_nanoseconds,
    from_seconds,
    hours,
    milliseconds,
    minutes,
    seconds,
    to_datetime,
)
from millwheel.operators import Change, cached
from millwheel.sdk.batches.computation import BatchComputation
from millwheel.sdk.batches.context import BatchContext
from millwheel.sdk.batches.records import RecordBatch
from millwheel.sdk.codecs import Codec
from millwheel.sdk.computation import SAME_AS_INPUT, Computation
from millwheel.sdk.context import Context
from millwheel.sdk.dead_letters import DeadLetter
from millwheel.sdk.errors import (
    KeyExtractionError,
    MillwheelError,
    PackageError,
    Problem,
    ProductionTimestampError,
    TooLargeError,
    TopologyError,
    UndeclaredStreamError,
    UsageError,
    ValueDecodeError,
    ValueEncodeError,
)
from millwheel.sdk.expressions import col
from millwheel.sdk.growing.collections import CounterState, ListState, MapState, OrderedState, SetState
from millwheel.sdk.growing.expiring import ExpiringMapState
from millwheel.sdk.growing.fields import GrowingState
from millwheel.sdk.growing.migrated import Dropped, migrated
from millwheel.sdk.keys import KeyExtractor, everything, join_key, key, split_key
from millwheel.sdk.migration import StoredState
from millwheel.sdk.options import FailurePolicy, Late, Retention, dead_letter, divert, retry, stop
from millwheel.sdk.records import Record, Timer
from millwheel.streams import Stream, Topology

__all__ = [
    "MAX_TIMESTAMP",
    "MIN_TIMESTAMP",
    "SAME_AS_INPUT",
    "BatchComputation",
    "BatchContext",
    "Change",
    "Codec",
    "Computation",
    "Context",
    "CounterState",
    "DeadLetter",
    "Dropped",
    "Duration",
    "ExpiringMapState",
    "FailurePolicy",
    "GrowingState",
    "KeyExtractionError",
    "KeyExtractor",
    "Late",
    "ListState",
    "MapState",
    "MillwheelError",
    "OrderedState",
    "PackageError",
    "Problem",
    "ProductionTimestampError",
    "Record",
    "RecordBatch",
    "Retention",
    "SetState",
    "StoredState",
    "Stream",
    "TimeDomain",
    "Timer",
    "Timestamp",
    "TooLargeError",
    "Topology",
    "TopologyError",
    "UndeclaredStreamError",
    "UsageError",
    "ValueDecodeError",
    "ValueEncodeError",
    "agg",
    "cached",
    "col",
    "days",
    "dead_letter",
    "divert",
    "everything",
    "format_timestamp",
    "from_datetime",
    "from_milliseconds",
    "from_nanoseconds",
    "from_seconds",
    "hours",
    "join_key",
    "key",
    "migrated",
    "milliseconds",
    "minutes",
    "retry",
    "seconds",
    "split_key",
    "stop",
    "to_datetime",
    "windows",
]
