"""The texts about errors of user code and their times. They are the same for hooks and key functions."""

from __future__ import annotations

import re
from typing import Final

from millwheel.model.time import Timestamp, format_timestamp, seconds
from millwheel.rpc.v1 import inspection_pb2 as wire

__all__ = ["NEWS_FOR", "error_text", "is_news", "moment"]

_MAX_ERROR_CHARACTERS: Final = 1_000

NEWS_FOR: Final = seconds(60)
"""How long a failure is shown after no record waits because of it."""


def is_news(last_us: int, now: int) -> bool:
    """Return whether a failure happened within the last minute."""
    return now - last_us < NEWS_FOR


def moment(at: int) -> str:
    """Return a wall time as text, to the second."""
    return format_timestamp(Timestamp(at - at % 1_000_000))


def error_text(failure: wire.KeyFailure | wire.KeyFunctionFailure) -> str:
    """Return the error with its message and place on one line. Indented lines, such as code, keep their line breaks."""
    message = re.sub(r"\n(?! )", " ", failure.message.strip())
    cut = (
        message[:_MAX_ERROR_CHARACTERS]
        + ("…" if len(message) > _MAX_ERROR_CHARACTERS else "")
        + "\n" * ("\n" in message)
    )
    text = f"{failure.error}: {cut}" if cut else failure.error
    return f"{text} ({failure.place})" if failure.place else text
