"""The interceptor that asks of each call who makes it, and whether the policy lets them.

A call with one request is checked before its handler runs. A stream is checked when it opens. Messages of a stream that
name topologies are checked too, but a process of the cluster is not asked again. Open streams are checked again by
:meth:`Authorization.watch`.

Invariant: no handler runs, and no message reaches it, before the principal was allowed everything that it names. A
method without the option ``access`` is refused. ``tests/access`` shows both for every method of the protos.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from inspect import isasyncgenfunction
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import Message

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.access.audit import audit, summary
from millwheel.rpc.access.callers import Caller, Callers
from millwheel.rpc.access.credentials import of_connection
from millwheel.rpc.access.filtering import filtered, sees_all
from millwheel.rpc.access.open_calls import OpenCalls
from millwheel.rpc.access.page_tokens import PageTokens
from millwheel.rpc.access.policy import AccessPolicy
from millwheel.rpc.access.refusal_lines import RefusalLines, RefusedCall
from millwheel.rpc.access.requirements import PUBLIC, MethodAccess, access_of
from millwheel.rpc.errors import abort
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.gate import Interceptor
from millwheel.rpc.parsing import wrapped
from millwheel.rpc.principal import ANONYMOUS, Principal, set_principal, set_readable

__all__ = ["RECHECK_SECONDS", "Authorization", "PolicySource"]

_READ: Final = frozenset({"read"})
RECHECK_SECONDS: Final = 2.0
"""Seconds between two looks at the policy and at the open streams. A revoked credential is refused after that time."""


class PolicySource(Protocol):
    """Has the present policy."""

    @property
    def current(self) -> AccessPolicy:
        """The policy."""

    def reload(self) -> None:
        """Read it again if it has changed. A policy with errors is not taken."""


class Authorization(Interceptor):
    """Admits the calls of a server by a policy."""

    def __init__(self, source: PolicySource) -> None:
        self._source = source
        self._callers = Callers(lambda: self._source.current)
        self._open = OpenCalls()
        self._refusals = RefusalLines()
        self.pages = PageTokens()
        self.topology_of: Callable[[IncarnationId], Awaitable[str | None]] = _unknown
        """Returns the topology of an incarnation. A daemon sets it when its coordinator is open."""
        self.describe: Callable[[str], dict[str, object] | None] = _nothing
        """Returns what the audit log shows of a topology before and after a change. The master sets it."""

    async def watch(self) -> None:
        """Follow the policy, end the streams that it no longer allows, and report refusals that got no line yet.

        Runs until it is cancelled.
        """
        try:
            while True:
                await asyncio.sleep(RECHECK_SECONDS)
                self._source.reload()
                await self._open.recheck()
                self._report_suppressed()
        finally:
            self._report_suppressed(at_end=True)

    def _report_suppressed(self, *, at_end: bool = False) -> None:
        for refusal, number in self._refusals.due(time.monotonic(), all_kinds=at_end):
            principal, peer, method, outcome, reason = refusal
            audit(principal, peer, method, outcome, reason=reason, left_out=number)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the call's handler, which runs only for callers whom the policy lets."""
        handler: Any = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(PUBLIC):
            return handler  # type: ignore[no-any-return]
        access = access_of(method)
        guarded = _Guarded(self, access, method)
        wrappers = {
            "unary_unary": lambda _, behave: guarded.one(behave),
            "stream_unary": lambda _, behave: guarded.many_to_one(behave),
            "unary_stream": lambda _, behave: guarded.one_to_many(behave),
            "stream_stream": lambda _, behave: guarded.many_to_many(behave),
        }
        return wrapped(handler, wrappers, method, handler.request_deserializer)

    # For servers of HTTPS: the console, and gateways.

    @property
    def policy(self) -> AccessPolicy:
        """The present policy."""
        return self._source.current

    async def authenticate(self, certificate: bytes | None, header: str, required: bool = True) -> Principal:
        """Return who makes a request over HTTPS. The arguments are those of ``Callers.of_http``."""
        return await self._callers.of_http(certificate, header, required)

    def refuse_revoked(self, principal: Principal) -> None:
        """Raise RequestError if the credential of a session is revoked or has expired."""
        if (error := self._source.current.refusal(principal, time.time())) is not None:
            raise error

    def note_request(
        self,
        what: str,
        peer: str,
        outcome: str,
        principal: Principal = ANONYMOUS,
        reason: str = "",
        service: str = "console",
    ) -> None:
        """Write a line of the audit log for a login, or for a request over HTTPS that ``service`` itself refuses."""
        refusal = RefusedCall(principal, peer, f"{service}/{what}", outcome, reason)
        if outcome == "OK":
            audit(principal, peer, refusal.method, outcome)
        else:
            self._refused(refusal)

    # For the guarded methods.

    async def caller(self, context: Any, access: MethodAccess | None, method: str, is_stream: bool = False) -> Caller:
        """Return who makes a call. It ends the call if the credential is wrong.

        A stream of requests is ended at once if no message of it could be admitted.
        """
        shown, peer = ANONYMOUS, str(context.peer())
        try:
            shown = of_connection(context.auth_context())
            principal = shown = await self._callers.principal(context, shown)
            peer = self._callers.peer(context)
            if access is None:
                raise _refused(principal, method, "no role may call it", "METHOD_WITHOUT_ROLE")
            caller = Caller(principal, access, self._source, peer)
            if is_stream:
                caller.refuse_without_role()
        except RequestError as error:
            self._refused(RefusedCall(shown, peer, method, error.code.name, error.reason))
            await abort(context, error)
        set_principal(principal)
        set_readable(lambda topology: self.policy.holds(principal, _READ, topology))
        return caller

    async def admit(self, context: Any, caller: Caller, request: Any) -> None:
        """End the call unless the caller holds the roles for what a request names."""
        if not isinstance(request, Message):
            return  # it cannot be parsed: the next interceptor refuses it
        try:
            await caller.admit(request, self.topology_of)
            if caller.access.kept:
                self.pages.unseal(request, sees_all(caller))
        except RequestError as error:
            self._refuses(caller, error, request=summary(request))
            await abort(context, error)

    def held(self, context: Any, caller: Caller) -> Any:
        """Hold an open stream: it ends when its caller may no longer make it."""
        return self._open.held(context, lambda: self._recheck(caller))

    def _recheck(self, caller: Caller) -> RequestError | None:
        error = caller.recheck(time.time())
        if error is not None:
            self._refuses(caller, error)
        return error

    def _refuses(self, caller: Caller, error: RequestError, **values: object) -> None:
        """Note the refusal of a call whose caller is known."""
        refusal = RefusedCall(caller.principal, caller.peer, caller.access.method, error.code.name, error.reason)
        topologies = tuple(sorted(one for one in caller.topologies if one))
        self._refused(refusal, topologies=topologies, **values)

    def _refused(self, refusal: RefusedCall, **values: Any) -> None:
        """Write a line of the audit log for a refusal, or count it."""
        if self._refusals.takes(refusal, time.monotonic()):
            principal, peer, method, outcome, reason = refusal
            audit(principal, peer, method, outcome, reason=reason, **values)

    def audited(self, caller: Caller, outcome: str, **values: object) -> None:
        """Write a line of the audit log."""
        topologies = tuple(sorted(one for one in caller.topologies if one))
        audit(caller.principal, caller.peer, caller.access.method, outcome, topologies=topologies, **values)

    def described(self, caller: Caller) -> dict[str, object]:
        """Return what the audit log shows of the topologies that a call names."""
        found = {one: self.describe(one) for one in sorted(one for one in caller.topologies if one)}
        return {name: values for name, values in found.items() if values is not None}


class _Guarded:
    """The wrappers of one method."""

    def __init__(self, guard: Authorization, access: MethodAccess | None, method: str) -> None:
        self._guard = guard
        self._access = access
        self._method = method

    def one(self, behave: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            caller = await self._guard.caller(context, self._access, self._method)
            await self._guard.admit(context, caller, request)
            if not caller.is_audited:
                return filtered(caller, await behave(request, context), self._guard.pages)
            return await self._recorded(context, caller, request, behave)

        return call

    def many_to_one(self, behave: Any) -> Any:
        async def call(requests: AsyncIterator[Any], context: Any) -> Any:
            caller = await self._guard.caller(context, self._access, self._method, is_stream=True)
            checked = self._checked(requests, context, caller)
            if not caller.is_audited:
                return await behave(checked, context)
            return await self._recorded(context, caller, checked, behave)

        return call

    def one_to_many(self, behave: Any) -> Any:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            caller = await self._guard.caller(context, self._access, self._method)
            await self._guard.admit(context, caller, request)
            with self._guard.held(context, caller):
                async with aclosing(behave(request, context)) as responses:
                    async for response in responses:
                        yield response

        async def writes(request: Any, context: Any) -> None:
            caller = await self._guard.caller(context, self._access, self._method)
            await self._guard.admit(context, caller, request)
            with self._guard.held(context, caller):
                await behave(request, context)

        return call if isasyncgenfunction(behave) else writes

    def many_to_many(self, behave: Any) -> Any:
        async def call(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            caller = await self._guard.caller(context, self._access, self._method, is_stream=True)
            checked = self._checked(requests, context, caller)
            with self._guard.held(context, caller):
                async with aclosing(behave(checked, context)) as responses:
                    async for response in responses:
                        yield response

        return call

    def _checked(self, requests: AsyncIterator[Any], context: Any, caller: Caller) -> AsyncIterator[Any]:
        """Return the messages of a stream, each checked before the handler sees it. A process is not asked again."""
        return requests if caller.is_process else _CheckedMessages(self._guard, context, caller, requests)

    async def _recorded(self, context: Any, caller: Caller, request: Any, behave: Any) -> Any:
        """Run a handler, with a line in the audit log."""
        asked = summary(request) if isinstance(request, Message) else {}
        before = self._guard.described(caller)
        try:
            response = await behave(request, context)
        except BaseException:
            code = context.code()
            name = grpc.StatusCode(code).name if code else "CANCELLED"
            self._guard.audited(caller, name, request=asked, before=before)
            raise
        after, answer = self._guard.described(caller), summary(response)
        self._guard.audited(caller, "OK", request=asked, before=before, after=after, answer=answer)
        return response


class _CheckedMessages:
    """The messages of a stream. A refused one ends the call before the handler sees it."""

    def __init__(self, guard: Authorization, context: Any, caller: Caller, requests: AsyncIterator[Any]) -> None:
        self._guard = guard
        self._context = context
        self._caller = caller
        self._requests = requests
        self._messages: AsyncIterator[Any] | None = None
        self._is_open = False

    def __aiter__(self) -> _CheckedMessages:
        return self

    async def __anext__(self) -> Any:
        if self._messages is None:
            # Only when the first message is read: gRPC requires that a started iterator is read.
            self._messages = aiter(self._requests)
        request = await anext(self._messages)
        if not self._is_open or not self._caller.access.first_message:
            if not self._caller.has_admitted(request):
                await self._guard.admit(self._context, self._caller, request)
            if not self._is_open and self._caller.is_audited and isinstance(request, Message):
                self._guard.audited(self._caller, "OPENED", request=summary(request))
            self._is_open = True
        return request


def _refused(principal: Principal, method: str, why: str, reason: str) -> RequestError:
    return RequestError(FailureCode.PERMISSION_DENIED, f"{principal.name} may not call {method}: {why}", reason=reason)


async def _unknown(_: IncarnationId) -> str | None:
    return None


def _nothing(_: str) -> dict[str, object] | None:
    return None
