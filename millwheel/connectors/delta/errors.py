"""The error of tables."""

from __future__ import annotations

from millwheel.errors import MillwheelError

__all__ = ["DeltaTableError"]


class DeltaTableError(MillwheelError):
    """A table is not what it was, or cannot be written. The message says what to do."""
