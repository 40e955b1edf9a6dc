"""The error of tables of Cassandra."""

from __future__ import annotations

from millwheel.errors import MillwheelError

__all__ = ["CassandraError"]


class CassandraError(MillwheelError):
    """A table does not take what the topology writes. The message says why, and what to do."""
