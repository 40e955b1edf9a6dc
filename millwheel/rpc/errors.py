"""Conversion between RequestError and gRPC statuses with details (google.rpc.ErrorInfo and BadRequest)."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NoReturn, TypeVar, cast

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from millwheel.errors import (
    CoordinatorError,
    CorruptValueError,
    DamagedValueError,
    NotInstalledError,
    Problem,
    StoreError,
)
from millwheel.rpc.addresses import how_to_start
from millwheel.rpc.caller import answer_to
from millwheel.rpc.cancelling import cancellations, raise_if_cancelled
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import ENVIRONMENT, TlsFiles, process_tls
from millwheel.rpc.principal import may_read
from millwheel.rpc.unknown_names import UnknownNameError

__all__ = [
    "abort",
    "answering",
    "as_request_error",
    "calling",
    "ended_without_reason",
    "from_rpc_error",
    "to_status",
]

_log = logging.getLogger(__name__)
_DOMAIN: Final = "millwheel.v1"
_REMEDY: Final = "remedy"
_LEADER: Final = "leader"

_MAX_TEXT_CHARACTERS: Final = 4_000
"""The most characters of one message, remedy or problem."""
_MAX_PROBLEM_BYTES: Final = 512 << 10
"""The most bytes of all problems: half of the metadata that a client accepts."""
_ENDED_WITHOUT_REASON: Final = "Internal error from Core"
"""gRPC's local message, without the server's reason, when the other side ends a call during a write to it."""

_HUNG_UP: Final = re.compile("closed|reset", re.IGNORECASE)
"""Matches a connection that the server closes at once. A server with TLS does this to a client without TLS."""
_TLS: Final = ", ".join(ENVIRONMENT)

Answer = TypeVar("Answer")


def to_status(error: RequestError) -> status_pb2.Status:
    """Return the status with details for ``error``, shortened to what every MillWheel client accepts."""
    metadata = {name: _cut(value) for name, value in ((_REMEDY, error.remedy), (_LEADER, error.leader)) if value}
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=_DOMAIN, metadata=metadata)
    status = status_pb2.Status(code=error.code.value, message=_cut(error.message))
    status.details.append(_packed(info))
    if error.problems:
        bad = error_details_pb2.BadRequest()
        for problem in _most(error.problems):
            bad.field_violations.add(field=problem.where, description=problem.message)
        status.details.append(_packed(bad))
    return status


def _cut(text: str) -> str:
    return (
        text
        if len(text) <= _MAX_TEXT_CHARACTERS
        else f"{text[:_MAX_TEXT_CHARACTERS]}… ({len(text):,} characters in all)"
    )


def _most(problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yield as many problems as fit, then the number of the remaining ones."""
    room = _MAX_PROBLEM_BYTES
    for number, problem in enumerate(problems):
        shown = Problem(_cut(problem.where), _cut(problem.message))
        room -= len(shown.where.encode()) + len(shown.message.encode())
        if room < 0:
            yield Problem("…", f"{len(problems) - number:,} more problems")
            return
        yield shown


def _packed(message: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


async def abort(context: grpc.aio.ServicerContext[object, object], error: RequestError) -> NoReturn:
    """End the call with ``error``."""
    if isinstance(error, UnknownNameError):
        error = error.shown_to(may_read)
    status = rpc_status.to_status(to_status(error))
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort returns never")


async def answering(context: grpc.aio.ServicerContext[object, object], work: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return the answer of ``work``. If it raises a RequestError, end the call with that status and its details.

    A failed store or coordinator gives UNAVAILABLE. Any other exception is a fault of the server and is logged.
    """
    answer_to(context)
    try:
        return await work()
    except Exception as error:
        await abort(context, as_request_error(error))


def as_request_error(error: Exception) -> RequestError:
    """Return the error that a caller receives for an exception in a server."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, DamagedValueError):
        return RequestError(FailureCode.DATA_LOSS, str(error), reason="VALUE_DAMAGED")
    if isinstance(error, CorruptValueError):
        return RequestError(
            FailureCode.DATA_LOSS,
            f"what is stored is damaged: {error}",
            "it is neither used nor overwritten: repair the store's disk or replica, or restore it from a snapshot",
            reason="VALUE_DAMAGED",
        )
    if isinstance(error, NotInstalledError):
        # Neither what is stored nor the server is at fault.
        what = "install it where this server runs, and repeat the call"
        return RequestError(FailureCode.FAILED_PRECONDITION, str(error), what, reason="NOT_INSTALLED")
    if isinstance(error, (StoreError, CoordinatorError)):
        what = "state store" if isinstance(error, StoreError) else "coordinator"
        return RequestError(FailureCode.UNAVAILABLE, f"the {what} failed: {error}", "see that it runs, and try again")
    _log.error("a call failed by a fault of the server", exc_info=error)
    return RequestError(
        FailureCode.INTERNAL, f"the server failed: {type(error).__name__}: {error}", "look at the server's log"
    )


def ended_without_reason(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the other side ended the call during a write to it, so that its reason was not read."""
    return error.code() is grpc.StatusCode.INTERNAL and _ENDED_WITHOUT_REASON in _details(error)


def from_rpc_error(error: grpc.aio.AioRpcError, address: str = "", masters: Sequence[str] = ()) -> RequestError:
    """Return a failed call as a RequestError with a remedy.

    Args:
        error: What gRPC raised.
        address: Names the server if it is unreachable.
        masters: The addresses of all masters that the caller knows. Empty: the server is no master.
    """
    code = _code(error)
    if ended_without_reason(error):
        # The next call receives the reason, unless it is ended during a write as well.
        what = f"{address or 'the server'} ended the call while it was written to"
        return RequestError(FailureCode.UNAVAILABLE, what, "try again")
    status = rpc_status.from_call(cast(grpc.Call, error)) if _has_details(error) else None
    if status is None:
        return _without_details(code, _details(error), address, masters)
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        if not detail.Unpack(info):
            detail.Unpack(bad)
    return RequestError(
        code,
        status.message,
        info.metadata.get(_REMEDY, ""),
        reason=info.reason,
        problems=[Problem(violation.field, violation.description) for violation in bad.field_violations],
        leader=info.metadata.get(_LEADER, ""),
    )


def _code(error: grpc.aio.AioRpcError) -> FailureCode:
    code = error.code()
    return FailureCode(code.value[0]) if code.value[0] else FailureCode.UNKNOWN


def _details(error: grpc.aio.AioRpcError) -> str:
    return str(error.details() or "no details")


def _has_details(error: grpc.aio.AioRpcError) -> bool:
    return "grpc-status-details-bin" in (error.trailing_metadata() or {})


def _without_details(code: FailureCode, details: str, address: str, masters: Sequence[str]) -> RequestError:
    place = address or "the server"
    if code is FailureCode.UNAVAILABLE:
        cause = _cause(details)
        remedy = how_to_start(masters)
        tls = process_tls()
        if tls is not None and (problem := _own_problem(tls)) is not None:
            return problem
        if tls is None and _HUNG_UP.search(cause):
            remedy = f"if it serves TLS, name its files by --tls-ca, --tls-cert and --tls-key, or {_TLS}; else {remedy}"
        return RequestError(code, f"cannot reach a MillWheel server at {place} ({cause})", remedy)
    if code is FailureCode.DEADLINE_EXCEEDED:
        return RequestError(code, f"{place} did not answer in time", "see whether it is overloaded, and try again")
    if code is FailureCode.UNIMPLEMENTED:
        return RequestError(
            code, f"{place} does not offer this call ({details})", "check that it is a MillWheel server of this version"
        )
    return RequestError(code, f"{place} failed: {details}", "look at the server's log")


def _own_problem(tls: TlsFiles) -> RequestError | None:
    # A late import: cryptography is not needed until a connection fails.
    from millwheel.rpc.own_certificate import own_certificate_problem

    return own_certificate_problem(tls)


def _cause(details: str) -> str:
    """Return the innermost of gRPC's nested messages, without the operating system's error number."""
    last = details.rsplit(": ", 1)[-1].rstrip("]")
    return re.sub(r" \(\d+\)$", "", last)


@asynccontextmanager
async def calling(address: str, masters: Sequence[str] = ()) -> AsyncIterator[None]:
    """Convert gRPC's exceptions in the block into RequestError. For blocks with client calls.

    The arguments are those of :func:`from_rpc_error`.
    """
    before = cancellations()
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise_if_cancelled(before)
        raise from_rpc_error(error, address, masters) from error
