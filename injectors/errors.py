"""Errors that stop the reading of a source (section 5.2)."""

from __future__ import annotations

from millwheel.sdk.errors import MillwheelError

__all__ = ["RefusedLineError", "SourceError"]


class SourceError(MillwheelError):
    """A file that cannot be injected. The message names the file and the place in it."""


class RefusedLineError(SourceError):
    """A line that is not a record of the stream."""
