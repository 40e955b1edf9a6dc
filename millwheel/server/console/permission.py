"""Which calls the console's API offers. Every decision about that is made here, and nowhere else.

Whether a call changes something, and which roles it needs, is in its option ``access`` (access.proto). The master
applies the roles to the person for whom the console calls. The API offers the calls that only read. Of the others it
offers those that are named here, and refuses them if the console is read-only.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from millwheel.rpc.access.requirements import MethodAccess, access_of
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["offered_access", "refuse_call"]

_CHANGES: Final = frozenset(
    {
        "IntervalService/MoveInterval",
        "IntervalService/SplitInterval",
        "IntervalService/MergeIntervals",
        "LetterHandlingService/ReplayLetters",
        "LetterHandlingService/DiscardLetters",
    }
)
"""The calls that change something and are offered. A repetition changes nothing more: by a request id, or by the ids of
the letters, each of which is handled once."""


def offered_access(method: MethodDescriptor) -> MethodAccess | None:
    """Return what a call requires. None: the API does not offer it."""
    access = access_of(f"/{method.containing_service.full_name}/{method.name}")
    if access is None or method.client_streaming or method.server_streaming:
        return None
    if access.changes:
        return access if access.method in _CHANGES else None
    return access if method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS else None


def refuse_call(access: MethodAccess, *, read_only: bool) -> None:
    """Raise RequestError (PERMISSION_DENIED) if a call changes something and the console is read-only."""
    if access.changes and read_only:
        raise RequestError(
            FailureCode.PERMISSION_DENIED,
            "this console is read-only",
            "use the `millwheel` command, or set master.ui_read_only to false (start-dev: leave out --ui-read-only)",
            reason="CONSOLE_READ_ONLY",
        )
