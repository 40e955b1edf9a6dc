"""Tables of Apache Cassandra as sinks, exactly once in effect. See docs/cassandra.md.

The driver is loaded where a topology runs. A program that only declares such a sink does without.
"""

from millwheel.connectors.cassandra.errors import CassandraError
from millwheel.connectors.cassandra.sink import sink

__all__ = ["CassandraError", "sink"]
