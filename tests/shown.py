"""What a report of a failed test shows beside its output, such as the logs of its servers."""

from __future__ import annotations

from typing import Final, Protocol


class Shown(Protocol):
    """Something that a test uses."""

    title: str
    over: bool
    """Whether its use has ended. The test that ended it is the last one that shows it."""

    def described(self) -> str:
        """What it has to say about a failure."""


_used: Final[list[Shown]] = []


def show_if_it_fails(one: Shown) -> None:
    """Show it if a test fails, until its use has ended."""
    if one not in _used:
        _used.append(one)


def forget_ended() -> None:
    """Another test begins."""
    _used[:] = [one for one in _used if not one.over]


def sections() -> list[tuple[str, str]]:
    """The sections of a report, each with its title."""
    return [(one.title, one.described()) for one in _used]
