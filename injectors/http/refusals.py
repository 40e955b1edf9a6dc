"""What a request over HTTP is refused with: a status, a reason for programs, a text, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from millwheel.errors import Problem
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.sdk.errors import MillwheelError

__all__ = ["HttpRefusal", "refusal_of"]


class HttpRefusal(MillwheelError):
    """A request that is refused, or whose records have no ACK yet.

    Attributes:
        status: The HTTP status.
        reason: A constant for programs (UPPER_SNAKE_CASE).
        message: What is wrong.
        remedy: What to do.
        problems: By record, what is wrong with it.
        retry_after: Seconds after which the same request may succeed. None: it does not, unless it changes.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        remedy: str,
        *,
        problems: Sequence[Problem] = (),
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.remedy = remedy
        self.problems = problems
        self.retry_after = retry_after

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}

    def described(self) -> dict[str, Any]:
        """The body of the answer. It has the form of the console's errors."""
        return _described(self.reason, self.message, self.remedy, self.problems)


_STATUS: Final = {
    FailureCode.UNAUTHENTICATED: 401,
    FailureCode.PERMISSION_DENIED: 403,
    FailureCode.UNAVAILABLE: 503,
}
"""The HTTP status of a failure of the check who may send. Any other one: 500."""


def refusal_of(error: RequestError) -> tuple[int, dict[str, Any]]:
    """The status and the body of the answer to a caller who may not send."""
    status = _STATUS.get(error.code, 500)
    return status, _described(error.reason, error.message, error.remedy, error.problems)


def _described(reason: str, message: str, remedy: str, problems: Sequence[Problem]) -> dict[str, Any]:
    listed = [{"where": one.where, "message": one.message} for one in problems]
    return {"error": {"reason": reason, "message": message, "remedy": remedy, "problems": listed}}
