"""The errors of files."""

from __future__ import annotations

from types import ModuleType

from millwheel.errors import MillwheelError
from millwheel.sdk.errors import UsageError

__all__ = ["FilesError", "load_parquet"]


class FilesError(MillwheelError):
    """A file is not what it was, or cannot be read or written. The message says what to do."""


def load_parquet() -> ModuleType:
    """``pyarrow.parquet``. UsageError if it is not installed."""
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError(
            "Parquet files and .zst files need pyarrow: install openmillwheel[arrow], here and on the workers"
        ) from error
    module: ModuleType = parquet
    return module
