"""The contents of the files of a sink.

Equal records make equal contents, with one version of the libraries.
"""

from __future__ import annotations

import gzip
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from millwheel.connectors.files.errors import load_parquet
from millwheel.connectors.tables import row_columns
from millwheel.sdk.errors import UsageError

__all__ = ["ENDINGS", "Encoder", "ParquetEncoder", "encoder_of"]

ENDINGS: Final = ("jsonl", "jsonl.gz", "parquet")


class Encoder(ABC):
    """Makes the content of a file of records."""

    @abstractmethod
    def encode(self, values: Sequence[Any]) -> bytes:
        """The content of a file with these records."""


class _JsonLines(Encoder):
    def __init__(self, compressed: bool) -> None:
        self._compressed = compressed
        self._encoder = msgspec.json.Encoder()

    def encode(self, values: Sequence[Any]) -> bytes:
        content = self._encoder.encode_lines(values)
        return gzip.compress(content, mtime=0) if self._compressed else content


class ParquetEncoder(Encoder):
    """Makes files of Parquet. ``columns``: those of the type."""

    def __init__(self, record_type: Any) -> None:
        self._library = load_parquet()
        self.columns = row_columns(record_type)

    def encode(self, values: Sequence[Any]) -> bytes:
        return self.encode_table(self.columns.table(values))

    def encode_table(self, table: Any) -> bytes:
        """The content of a file with a table of these columns."""
        content = io.BytesIO()
        self._library.write_table(table, content)
        return content.getvalue()


def encoder_of(ending: str, record_type: Any) -> Encoder:
    """What makes the contents of files that end so.

    Raises:
        UsageError: The ending is not known, or the type has no place in such a file.
    """
    if ending not in ENDINGS:
        raise UsageError(f"{ending!r} is no format of a sink of files: {', '.join(ENDINGS)} are known")
    if ending != "parquet":
        return _JsonLines(compressed=ending.endswith(".gz"))
    return ParquetEncoder(record_type)
