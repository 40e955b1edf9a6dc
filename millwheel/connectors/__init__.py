"""Connectors: what a topology reads from, and writes to. See docs/connectors.md."""

from millwheel.connectors.database import DatabaseError, database
from millwheel.connectors.sink import Batch, Place, Sink, SinkWriter
from millwheel.connectors.source import BadRecord, Read, Source, SplitReader, Splits

__all__ = [
    "BadRecord",
    "Batch",
    "DatabaseError",
    "Place",
    "Read",
    "Sink",
    "SinkWriter",
    "Source",
    "SplitReader",
    "Splits",
    "database",
]
