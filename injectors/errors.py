"""What stops the reading of a source (section 5.2)."""

from __future__ import annotations

from millwheel.sdk.errors import MillwheelError

__all__ = ["RefusedLineError", "SourceError"]


class SourceError(MillwheelError):
    """A file that cannot be injected: the message names it, and the place in it."""


class RefusedLineError(SourceError):
    """A line that is no record of the stream."""
