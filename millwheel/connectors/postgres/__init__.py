"""PostgreSQL: the changes of a table as a source, and connections for sinks. See docs/postgresql.md."""

from millwheel.connectors.postgres.rows import ChangedRow
from millwheel.connectors.postgres.session import PostgresError, connecting
from millwheel.connectors.postgres.source import changes
from millwheel.connectors.postgres.transactions import Position

__all__ = ["ChangedRow", "Position", "PostgresError", "changes", "connecting"]
