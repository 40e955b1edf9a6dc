"""Classifies etcd's failures: whether the caller retries at another member, or gets an error that says what to do."""

from __future__ import annotations

from enum import Enum, auto

import grpc

from millwheel.coordination.contract import (
    CompactedError,
    CoordinatorError,
    CoordinatorUnavailableError,
    LeaseExpiredError,
    TransactionTooLargeError,
)
from millwheel.coordination.etcd.settings import EtcdSettings

__all__ = ["RefusedError", "RetryDecision", "closed", "judge", "refusal", "unavailable"]

_NOT_DONE = ("etcdserver: no leader", "etcdserver: too many requests", "etcdserver: not capable")
"""Failures that etcd reports before it proposes anything. The call had no effect, so any call may be repeated."""

_TOO_LARGE = ("too many operations in txn request", "request is too large", "larger than max")

_AWAY = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class RefusedError(CoordinatorUnavailableError):
    """etcd answers, but refuses this process until an operator changes something. Waiting alone does not help."""


class RetryDecision(Enum):
    """What the caller does after a failed call."""

    AGAIN = auto()
    """The call had no effect. Make it again, at another member."""
    AWAY = auto()
    """The call may have taken effect. Make it again only if it is repeatable."""
    TOKEN = auto()
    """The authentication has expired. Authenticate, then make the call again."""
    FINAL = auto()
    """A retry gives the same answer. See :func:`refusal`."""


def judge(settings: EtcdSettings, code: grpc.StatusCode, details: str) -> RetryDecision:
    """Decide what to do after a failed call."""
    if any(text in details for text in _NOT_DONE):
        return RetryDecision.AGAIN
    if (
        code is grpc.StatusCode.UNAUTHENTICATED
        or "invalid auth token" in details
        or "revision of auth store" in details
        or ("user name is empty" in details and settings.username)
    ):
        return RetryDecision.TOKEN
    return RetryDecision.AWAY if code in _AWAY else RetryDecision.FINAL


def refusal(settings: EtcdSettings, details: str) -> CoordinatorError:
    """Return the error for a call that etcd refuses, and would refuse again."""
    if "requested lease not found" in details:
        return LeaseExpiredError("the lease has ended, and what was bound to it is gone")
    if "required revision has been compacted" in details:
        return CompactedError(f"these revisions are no longer kept ({details}): list again, and watch from there")
    if any(text in details for text in _TOO_LARGE):
        return TransactionTooLargeError(
            f"a transaction is larger than etcd takes it ({details}): change less at a time, "
            "or raise etcd's --max-txn-ops (128 by default) and --max-request-bytes (1.5 MiB)"
        )
    where = ", ".join(settings.endpoints)
    if "database space exceeded" in details:
        return RefusedError(
            f"etcd at {where} has used up its space and takes no writes: raise --quota-backend-bytes, "
            "or compact and defragment it; then `etcdctl alarm disarm`"
        )
    if "user name is empty" in details:
        remedy = "set coordinator.username and coordinator.password"
    elif "authentication failed" in details:
        remedy = "correct coordinator.username and coordinator.password"
    elif "permission denied" in details:
        user = settings.username or "(none)"
        remedy = (
            f"give user {user} (coordinator.username) a role that reads and writes keys from {settings.prefix!r} on"
        )
    else:
        return CoordinatorError(f"etcd at {where} refuses a call: {details}")
    return RefusedError(f"etcd at {where} refuses this process ({details}): {remedy}")


def unavailable(settings: EtcdSettings, why: str) -> CoordinatorUnavailableError:
    """Return the error for a call that no member answered in time."""
    where = ", ".join(settings.endpoints)
    return CoordinatorUnavailableError(
        f"etcd at {where} gave no answer within {settings.timeout:g} s ({why}): see that most of its members run and "
        f"reach each other, and that coordinator.endpoints{' and coordinator.tls_*' if _is_about_tls(why) else ''} fit"
    )


def _is_about_tls(why: str) -> bool:
    return any(word in why.lower() for word in ("ssl", "tls", "handshake", "certificate"))


def closed() -> CoordinatorUnavailableError:
    """Return the error for a call to a closed coordinator."""
    return CoordinatorUnavailableError("the coordinator is closed")
