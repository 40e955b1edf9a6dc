"""Connectors: what a topology reads from, and writes to. See docs/connectors.md."""

from millwheel.connectors.databases import DatabaseError, database
from millwheel.connectors.delta import DeltaTableError, write_delta
from millwheel.connectors.files import FilesError, read_files, write_files
from millwheel.connectors.logs import LogError, LogPosition, read_log
from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.connectors.source import BadRecord, Read, Source, SplitReader, Splits
from millwheel.connectors.starts import Start
from millwheel.connectors.webhooks import WebhookError, webhook

__all__ = [
    "BadRecord",
    "DatabaseError",
    "DeltaTableError",
    "FilesError",
    "LogError",
    "LogPosition",
    "Read",
    "Sink",
    "SinkBatch",
    "SinkShard",
    "SinkWriter",
    "Source",
    "SplitReader",
    "Splits",
    "Start",
    "WebhookError",
    "database",
    "read_files",
    "read_log",
    "webhook",
    "write_delta",
    "write_files",
]
