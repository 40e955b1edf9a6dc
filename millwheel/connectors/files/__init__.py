"""Files, in directories and in buckets of object stores. See docs/files.md."""

from millwheel.connectors.files.errors import FilesError
from millwheel.connectors.files.sink import write_files
from millwheel.connectors.files.source import read_files

__all__ = ["FilesError", "read_files", "write_files"]
