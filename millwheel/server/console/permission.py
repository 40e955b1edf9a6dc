"""Who may make which call of the console's API. Every decision about that is made here, and nowhere else.

A call without side effects only reads. Of the others, the API offers those that are named here. It refuses them if the
console is read-only.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["Permission", "needed_permission", "refuse_call"]

_CHANGES: Final = frozenset(
    {
        "IntervalService/MoveInterval",
        "IntervalService/SplitInterval",
        "IntervalService/MergeIntervals",
    }
)
"""The calls that change something and are offered. Each has a request id, so that a repetition changes nothing more."""


class Permission(Enum):
    """What a caller must be allowed to do for a call."""

    READ = auto()
    OPERATE = auto()


def needed_permission(method: MethodDescriptor) -> Permission | None:
    """Return what a call needs. None: the API does not offer it."""
    if method.client_streaming or method.server_streaming:
        return None
    if method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS:
        return Permission.READ
    return Permission.OPERATE if f"{method.containing_service.name}/{method.name}" in _CHANGES else None


def refuse_call(needed: Permission, *, read_only: bool) -> None:
    """Raise RequestError (PERMISSION_DENIED) unless a caller may make a call that needs this permission."""
    if needed is Permission.OPERATE and read_only:
        raise RequestError(
            FailureCode.PERMISSION_DENIED,
            "this console is read-only",
            "use the `millwheel` command, or set master.ui_read_only to false (start-dev: leave out --ui-read-only)",
            reason="CONSOLE_READ_ONLY",
        )
