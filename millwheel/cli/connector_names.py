"""The connectors of the library: their names in programs, what they need, and the classes that run."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["BUILT_IN", "BuiltIn", "name_of"]

_PLACE: Final = "millwheel.connectors."


class BuiltIn(NamedTuple):
    """A connector of the library.

    Attributes:
        name: As a program writes it behind ``connectors.``
        kind: Whether it is a source or a sink.
        runs: The class that runs, as ``module:class`` behind ``millwheel.connectors.``
        extra: The extra of the package that it needs. Empty: it needs none.
        only_for: What needs the extra, if the rest does not.
    """

    name: str
    kind: str
    runs: str
    extra: str = ""
    only_for: str = ""


BUILT_IN: Final = (
    BuiltIn("cassandra.sink", "sink", "cassandra.sink:_CassandraSink"),
    BuiltIn("database", "sink", "databases:_Database"),
    BuiltIn("kafka.sink", "sink", "kafka.writers:_KafkaSink", "kafka"),
    BuiltIn("kafka.source", "source", "kafka.topics:_KafkaSource", "kafka"),
    BuiltIn("mqtt.sink", "sink", "mqtt.writers:_TopicSink", "mqtt"),
    BuiltIn("mqtt.source", "source", "mqtt.topics:_SessionSource", "mqtt"),
    BuiltIn("postgres.changes", "source", "postgres.source:_TableSource", "postgres"),
    BuiltIn("read_files", "source", "files.source:_FilesSource", "arrow", "Parquet"),
    BuiltIn("read_log", "source", "logs:_LogSource"),
    BuiltIn("redis.command", "sink", "redis.writers:_CommandSink", "redis"),
    BuiltIn("redis.sink", "sink", "redis.writers:_CommandSink", "redis"),
    BuiltIn("redis.source", "source", "redis.streams:_StreamSource", "redis"),
    BuiltIn("redis.values", "sink", "redis.writers:_CommandSink", "redis"),
    BuiltIn("webhook", "sink", "webhooks:_Webhook"),
    BuiltIn("write_delta", "sink", "delta.sink:_DeltaSink", "delta"),
    BuiltIn("write_files", "sink", "files.sink:_FilesSink", "arrow", "Parquet"),
)


def name_of(implementation: str) -> str:
    """Return the name of the connector that a class runs. Several may run one class. A user's class is its own name.

    Args:
        implementation: The class, as ``module:class``.
    """
    return " or ".join(one.name for one in BUILT_IN if _PLACE + one.runs == implementation) or implementation
