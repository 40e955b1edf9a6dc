"""What etcd's failures mean to a caller: try another member, or give up, and say what to do."""

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

__all__ = ["RefusedError", "Verdict", "closed", "judge", "refusal", "unavailable"]

_NOT_DONE = ("etcdserver: no leader", "etcdserver: too many requests", "etcdserver: not capable")
"""Said before anything was proposed: the call had no effect, and may be made again whatever it was."""

_TOKEN_IS_OVER = ("invalid auth token", "revision of auth store is old")

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
    """etcd answers, but not to this process, until an operator has done something: waiting alone does not help."""


class Verdict(Enum):
    """What to do about a failed call."""

    AGAIN = auto()
    """It had no effect: make it again, at another member."""
    AWAY = auto()
    """It may have had its effect: make it again if it may be repeated."""
    TOKEN = auto()
    """The authentication has run out: authenticate, and make it again."""
    FINAL = auto()
    """See :func:`refusal`."""


def judge(code: grpc.StatusCode, details: str) -> Verdict:
    """What the failure of a call calls for."""
    if any(text in details for text in _NOT_DONE):
        return Verdict.AGAIN
    if (
        code is grpc.StatusCode.UNAUTHENTICATED
        or "invalid auth token" in details
        or "revision of auth store" in details
    ):
        return Verdict.TOKEN
    return Verdict.AWAY if code in _AWAY else Verdict.FINAL


def refusal(settings: EtcdSettings, details: str) -> CoordinatorError:
    """The error for a call that etcd answered, and will answer again as it did."""
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
    """The error for a call that nobody answered in time."""
    where = ", ".join(settings.endpoints)
    return CoordinatorUnavailableError(
        f"etcd at {where} gave no answer within {settings.timeout:g} s ({why}): see that most of its members run and "
        f"reach each other, and that coordinator.endpoints{' and coordinator.tls_*' if _is_about_tls(why) else ''} fit"
    )


def _is_about_tls(why: str) -> bool:
    return any(word in why.lower() for word in ("ssl", "tls", "handshake", "certificate"))


def closed() -> CoordinatorUnavailableError:
    """The error for a call to a coordinator that was closed."""
    return CoordinatorUnavailableError("the coordinator is closed")
