"""Hostile input from seeds: the answer is clear, and the process stays as it was (docs/reliability.md).

``make fuzz CASES=100000 SEED=1`` runs all surfaces; ``make test`` runs a slice of each. A surface is a context manager
that yields its :data:`Case`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeAlias


class Unclear(AssertionError):
    """A case without a clear answer: an internal error, a hang, or damage that was served."""


Case: TypeAlias = Callable[[Random], Awaitable[str]]
"""Runs one case. Returns its outcome in a word. Raises Unclear if there is no clear answer."""
