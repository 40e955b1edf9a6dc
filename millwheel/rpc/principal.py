"""Who makes the present call: the caller of a gRPC handler, as its certificate or token names it. No gRPC here.

A server sets the principal before a handler runs (:mod:`millwheel.rpc.access`). Everything that the handler calls or
starts sees it, so a record of a change can name the person who made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

__all__ = [
    "ANONYMOUS",
    "LOCAL",
    "Principal",
    "acting_as",
    "current_principal",
    "may_read",
    "set_principal",
    "set_readable",
]


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a call.

    Attributes:
        name: ``certificate:COMMON-NAME``, ``token:SUBJECT``, ``anonymous`` without TLS, or ``local`` for what this
            process does on its own.
        groups: The organizational units of a certificate (``unit:NAME``), its alternative names (``name:NAME``), or
            the groups of a token (``group:NAME``).
        roles: The roles that the certificate itself names (its units ``millwheel-ROLE``).
        credential: The id for revocation: a certificate's serial in lower-case hex, or a token's ``jti``.
        fingerprint: The SHA-256 of a certificate in lower-case hex, otherwise empty.
        expires: When the credential ends, in seconds since the epoch. 0: never.
    """

    name: str
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    credential: str = ""
    fingerprint: str = ""
    expires: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Everything by which a policy may name this principal."""
        return (self.name, *self.groups)


ANONYMOUS: Final = Principal("anonymous")
"""A caller without a certificate and without a token: the server has no TLS."""

LOCAL: Final = Principal("local")
"""This process, outside a call."""
_current: ContextVar[Principal] = ContextVar("principal", default=LOCAL)


_readable: ContextVar[Callable[[str | None], bool]] = ContextVar("readable", default=lambda topology: True)


def set_readable(readable: Callable[[str | None], bool]) -> None:
    """Say which topologies the caller of the present call may read. Without it: all, because there is no policy."""
    _readable.set(readable)


def may_read(topology: str | None) -> bool:
    """Return whether the caller of the present call may read a topology. None: the whole cluster."""
    return _readable.get()(topology)


def current_principal() -> Principal:
    """Return who makes the present call. Outside a call it is the process itself, with the name ``local``."""
    return _current.get()


def set_principal(principal: Principal) -> None:
    """Name the caller of the present call. gRPC runs each call in a task of its own, so nothing is reset."""
    _current.set(principal)


@contextmanager
def acting_as(principal: Principal) -> Iterator[None]:
    """Name the caller for a block, where many callers share one task."""
    token = _current.set(principal)
    try:
        yield
    finally:
        _current.reset(token)
