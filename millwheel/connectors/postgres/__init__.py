"""PostgreSQL: the changes of a table as a source, and connections for sinks. See docs/postgresql.md."""

from millwheel.connectors.postgres.rows import Change
from millwheel.connectors.postgres.session import Connect, PostgresError
from millwheel.connectors.postgres.source import changes
from millwheel.connectors.postgres.transactions import Position

__all__ = ["Change", "Connect", "Position", "PostgresError", "changes"]
