"""Translates the driver's errors into the contract's errors, which name the setting concerned and the remedy."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Final

from cassandra import (
    AuthenticationFailed,
    InvalidRequest,
    OperationTimedOut,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
)
from cassandra.cluster import NoHostAvailable

from millwheel.store.contract import StoreError, StoreUnavailableError

__all__ = ["StoreSettingsError", "failure_of", "is_unknown", "text_of"]


class StoreSettingsError(StoreError):
    """A repetition does not help until a setting, or the resource that the setting names, is changed."""


_WAITS: Final = "It is tried again until it answers."


def failure_of(
    error: BaseException, contact_points: tuple[str, ...], username: str, keyspace: str, prefix: str
) -> StoreError:
    """Return the contract's error for one of the driver's errors. ``prefix``: of the names of settings in its text.

    StoreSettingsError: only a changed setting helps. StoreUnavailableError: the request may have taken effect.
    """
    where = ", ".join(contact_points)
    causes = list(_causes(error))
    if any(isinstance(cause, AuthenticationFailed) for cause in causes):
        user = f"user {username!r}" if username else "the login, as no user is set"
        return StoreSettingsError(
            f"Cassandra at {where} refuses {user}: set {prefix}username and {prefix}password to a role that may log in"
        )
    if any(isinstance(cause, UnresolvableContactPoints) for cause in causes):
        return StoreUnavailableError(f"{prefix}contact_points: no address is found for {where}. {_WAITS}")
    for cause in causes:
        if isinstance(cause, Unauthorized):
            return StoreUnavailableError(
                f"Cassandra keeps user {username!r} from it ({text_of(cause)}): GRANT SELECT, MODIFY ON KEYSPACE "
                f"{keyspace} TO that role, or set {prefix}username to one that has it. {_WAITS}"
            )
        if isinstance(cause, InvalidRequest) and is_unknown(cause):
            return StoreUnavailableError(
                f"a Cassandra node of {where} does not know the tables: {text_of(cause)}. {_WAITS}"
            )
        if isinstance(cause, InvalidRequest):
            return StoreSettingsError(f"Cassandra refuses a request of this software: {text_of(cause)}")
        if isinstance(cause, ssl.SSLError):
            return StoreUnavailableError(
                f"TLS with Cassandra at {where}: {cause}; see {prefix}tls_ca, tls_cert, tls_key"
            )
    if isinstance(error, Unavailable):
        return StoreUnavailableError(
            f"of {keyspace}'s replicas {error.alive_replicas} are up and {error.required_replicas} are needed: start "
            f"the Cassandra nodes that are down. {_WAITS}"
        )
    if isinstance(error, OperationTimedOut):
        return StoreUnavailableError(f"Cassandra at {where} did not answer in time. {_WAITS}")
    if isinstance(error, NoHostAvailable):
        details = "; ".join(sorted({text_of(cause) for cause in causes[1:]})) or "none is known to be up"
        return StoreUnavailableError(
            f"no Cassandra node answers at {where} ({details}): see that it runs, and that {prefix}contact_points and "
            f"{prefix}local_dc name it. {_WAITS}"
        )
    return StoreUnavailableError(f"Cassandra at {where}: {text_of(error)}. {_WAITS}")


def is_unknown(error: InvalidRequest) -> bool:
    """Return whether a keyspace or table does not exist. Cassandra has no separate error code for this."""
    return any(text in str(error) for text in ("does not exist", "doesn't exist"))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, the login failure that caused it, and the errors of the single nodes."""
    yield error
    if isinstance(error.__cause__, AuthenticationFailed):
        yield error.__cause__
    if isinstance(error, NoHostAvailable) and isinstance(error.errors, dict):
        for cause in error.errors.values():
            if isinstance(cause, BaseException):
                yield from _causes(cause)


def text_of(error: BaseException) -> str:
    """Return an error's class and text as one line of at most 300 characters."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
