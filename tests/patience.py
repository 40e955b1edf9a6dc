"""How long tests wait for what has to happen: one factor for all of them.

A limit says when a test is given up because something hangs. It is no statement about speed: a test waits for a
condition, and a machine that is many times slower, or busy with other work, must not change its outcome.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["SLOWNESS", "patience"]

SLOWNESS: Final = float(os.environ.get("MILLWHEEL_TEST_SLOWNESS", "5"))
"""How many times slower than an idle machine this one may be. Every limit of every test is multiplied by it."""


def patience(seconds: float) -> float:
    """The limit, in seconds, for what takes less than ``seconds`` on an idle machine."""
    return seconds * SLOWNESS
