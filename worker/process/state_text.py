"""A state for people."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.sdk.growing.codec import sizes
from millwheel.sdk.growing.fields import GrowingState

__all__ = ["state_text"]


def state_text(value: Any) -> str:
    """A state as JSON if possible, otherwise its Python ``repr``. Of a collection in pages, its size."""
    if isinstance(value, GrowingState):
        value = sizes(value)
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, NotImplementedError):
        return repr(value)
