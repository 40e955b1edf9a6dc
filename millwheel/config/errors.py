"""The error for a wrong configuration. It lists all problems at once, each with its place."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.errors import MillwheelError, Problem

__all__ = ["ConfigError"]


class ConfigError(MillwheelError):
    """Settings are unknown, of a wrong type or contradictory. ``problems`` and the message list all of them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"the configuration has {count}:", *(f"  {problem}" for problem in problems)]))
        self.problems = tuple(problems)
