"""What is wrong with a configuration: all of it at once, each thing with its place."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.sdk.errors import MillwheelError, Problem

__all__ = ["ConfigError"]


class ConfigError(MillwheelError):
    """Settings that are unknown, ill-typed or impossible: ``problems`` holds them all, and the message lists them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"the configuration has {count}:", *(f"  {problem}" for problem in problems)]))
        self.problems = tuple(problems)
