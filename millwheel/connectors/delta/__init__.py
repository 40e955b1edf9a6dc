"""Tables of Delta Lake as sinks, exactly once. See docs/delta.md."""

from millwheel.connectors.delta.errors import DeltaTableError
from millwheel.connectors.delta.sink import write_delta

__all__ = ["DeltaTableError", "write_delta"]
