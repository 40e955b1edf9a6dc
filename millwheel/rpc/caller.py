"""Who makes the call that is being answered: for the event log, not for permissions."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

from millwheel.rpc.principal import ANONYMOUS, LOCAL, current_principal

__all__ = ["answer_to", "present_caller"]

_CONTEXT: Final[ContextVar[Any]] = ContextVar("call", default=None)
"""The gRPC context of the call that this task answers. Each call has a task of its own."""


def answer_to(context: Any) -> None:
    """Note that this task answers a call from now on."""
    _CONTEXT.set(context)


def present_caller() -> str:
    """Return the caller's principal, or without TLS the caller's host. Empty: this task answers no call."""
    context = _CONTEXT.get()
    if context is None:
        return ""
    if (principal := current_principal()) not in (ANONYMOUS, LOCAL):
        return principal.name
    # "ipv4:10.0.0.7:50000", "ipv6:[::1]:50000" with the brackets encoded, or "unix:"
    _, _, place = str(context.peer()).partition(":")
    return place.rpartition(":")[0].replace("%5B", "").replace("%5D", "")
