"""Failures of requests between roles: a code, what is wrong, where, and what to do.

Pure. The master's core refuses with a :class:`RequestError`. A server turns it into a gRPC status with details, and a
client turns that back into an equal :class:`RequestError` (:mod:`millwheel.rpc.errors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from millwheel.errors import MillwheelError, Problem

__all__ = ["NOT_LEADING", "FailureCode", "RequestError", "authority_is_away"]

NOT_LEADING: Final = "NOT_LEADING"
"""The reason of a master that is not the leader. ``leader`` names the leader, if it is known."""


class FailureCode(Enum):
    """Why a request failed. The values are gRPC's status codes."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RequestError(MillwheelError):
    """A request failed: ``message`` says what is wrong and where, ``remedy`` says what to do.

    Attributes:
        code: the kind of failure, as a gRPC status code.
        reason: a short constant for programs (UPPER_SNAKE_CASE); the code's name if none was given.
        problems: everything that is wrong with the request, if there can be several problems.
        leader: the address to use instead, if it is known; otherwise empty.
    """

    def __init__(
        self,
        code: FailureCode,
        message: str,
        remedy: str = "",
        *,
        reason: str = "",
        problems: Sequence[Problem] = (),
        leader: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy
        self.reason = reason or code.name
        self.problems = tuple(problems)
        self.leader = leader

    def __str__(self) -> str:
        lines = [self.message, *(f"  {problem}" for problem in self.problems)]
        if self.remedy and self.problems:
            lines.append(self.remedy)
        elif self.remedy:
            lines[0] += f": {self.remedy}"
        return "\n".join(lines)


def authority_is_away(of: str, consequence: str = "") -> RequestError:
    """The error while no process answers for a shard of the low watermark authority.

    Args:
        of: What the shard is for, such as ``stream 'queries'``, or the shard itself.
        consequence: What cannot be known for that reason. It completes the message.
    """
    return RequestError(
        FailureCode.UNAVAILABLE,
        f"the low watermark authority of {of} cannot be reached{consequence}",
        "another candidate takes its shard within its lease's time; see that `millwheel authority run` runs",
        reason="AUTHORITY_AWAY",
    )
