"""Calls that a process makes for a person, as the web console does. All clients load this: it reads no certificates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.principal import Principal, acting_as

__all__ = ["CLIENT_ADDRESS", "ON_BEHALF", "calling_for", "delegated", "delegation", "from_metadata"]

ON_BEHALF: Final = "millwheel-principal-bin"
"""Metadata of a call that a process makes for a person: the web console. Only a process may send it."""
CLIENT_ADDRESS: Final = "millwheel-client-address"
"""Metadata of such a call: the address of the person's browser, as the console's connection has it."""


def delegated(principal: Principal, address: str = "") -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata of a call that this process makes for ``principal``, whose browser is at ``address``."""
    fields = [principal.name, principal.groups, principal.roles, principal.credential]
    on_behalf = json.dumps([*fields, principal.fingerprint, principal.expires]).encode()
    return ((ON_BEHALF, on_behalf), *([(CLIENT_ADDRESS, address)] if address else ()))


_for: ContextVar[tuple[Principal, str] | None] = ContextVar("calls for", default=None)


@contextmanager
def calling_for(principal: Principal, address: str) -> Iterator[None]:
    """Make the calls of a block for a person, whose browser is at ``address``.

    The person is also the principal of the block.
    """
    token = _for.set((principal, address))
    try:
        with acting_as(principal):
            yield
    finally:
        _for.reset(token)


def delegation() -> tuple[tuple[str, str | bytes], ...] | None:
    """Return the metadata of a call within :func:`calling_for`. None outside."""
    person = _for.get()
    return None if person is None else delegated(*person)


def from_metadata(value: bytes) -> Principal:
    """Return the principal for whom a process makes a call. RequestError: the value has another form."""
    try:
        name, groups, roles, credential, fingerprint, expires = json.loads(value)
        return Principal(name, tuple(groups), tuple(roles), credential, fingerprint, float(expires))
    except (ValueError, TypeError) as error:
        raise RequestError(
            FailureCode.UNAUTHENTICATED,
            f"the metadata {ON_BEHALF} cannot be read",
            "only a console of the same version sends it",
            reason="PRINCIPAL_MALFORMED",
        ) from error
