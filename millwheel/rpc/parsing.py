"""Refuses invalid messages and unknown methods with an error that has details.

When a deserializer raises, gRPC for Python answers UNKNOWN and logs a traceback. Here the deserializer returns a marker
for a message that cannot be parsed. The marker ends the call before a service sees it. Generated services raise
NotImplementedError for methods that a role does not implement; this becomes UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from inspect import isasyncgenfunction
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from millwheel.rpc.errors import abort
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.gate import Interceptor

__all__ = ["Parsing", "wrapped"]


class _Unparsed:
    """Marks a message that could not be parsed."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


class Parsing(Interceptor):
    """Wraps every handler of a server."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the call's handler, wrapped so that its service receives valid messages only."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler  # type: ignore[no-any-return]
        return wrapped(handler, _WRAPPERS, handler_call_details.method, _parser(handler.request_deserializer))


def wrapped(
    handler: Any, wrappers: Mapping[str, Callable[[str, Any], Any]], method: str, request_deserializer: Any
) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of the same kind of call.

    Args:
        handler: The former handler.
        wrappers: By the kind of call: returns the new behaviour, given the method and the former behaviour.
        method: The name of the method.
        request_deserializer: That of the new handler.
    """
    kind = next(one for one in wrappers if getattr(handler, one) is not None)
    make: Callable[..., grpc.RpcMethodHandler[Any, Any]] = getattr(grpc, f"{kind}_rpc_method_handler")
    behave = wrappers[kind](method, getattr(handler, kind))
    return make(behave, request_deserializer, handler.response_serializer)


def _parser(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parsed(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            return _Unparsed(str(error))

    return parsed


def _one_to_one(name: str, behave: Any) -> Any:
    async def call(request: Any, context: Any) -> Any:
        if type(request) is _Unparsed:
            await abort(context, _refusal(name, request))
        try:
            return await behave(request, context)
        except NotImplementedError:
            await abort(context, _absence(name))

    return call


def _one_to_many(name: str, behave: Any) -> Any:
    """Services yield their responses. The library's health service writes them to the context instead."""
    return partial(_responses, name, behave) if isasyncgenfunction(behave) else _one_to_one(name, behave)


def _many_to_one(name: str, behave: Any) -> Any:
    async def call(requests: AsyncIterator[Any], context: Any) -> Any:
        whole = _ReadableMessages(name, requests)
        try:
            response = await behave(whole, context)
        except RequestError as error:
            await abort(context, error)
        except NotImplementedError:
            await abort(context, _absence(name))
        if whole.failure is not None:
            await abort(context, whole.failure)
        return response

    return call


def _many_to_many(name: str, behave: Any) -> Any:
    async def call(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        whole = _ReadableMessages(name, requests)
        try:
            async for response in _responses(name, behave, whole, context):
                yield response
        except RequestError as error:
            await abort(context, error)
        if whole.failure is not None:
            await abort(context, whole.failure)

    return call


async def _responses(name: str, behave: Any, request: Any, context: Any) -> AsyncIterator[Any]:
    """Yield the service's responses."""
    if type(request) is _Unparsed:
        await abort(context, _refusal(name, request))
    try:
        async with aclosing(behave(request, context)) as responses:
            async for response in responses:
                yield response
    except NotImplementedError:
        await abort(context, _absence(name))


_WRAPPERS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "unary_unary": _one_to_one,
    "unary_stream": _one_to_many,
    "stream_unary": _many_to_one,
    "stream_stream": _many_to_many,
}


class _ReadableMessages:
    """The messages up to the first one that cannot be parsed.

    That message ends the call when its service has sent its last response. The reader gets a RequestError. A reader in
    a separate task may not raise it further, so it is kept in ``failure``.
    """

    def __init__(self, name: str, requests: AsyncIterator[Any]) -> None:
        self.failure: RequestError | None = None
        self._name = name
        self._requests = requests
        self._messages: AsyncIterator[Any] | None = None

    def __aiter__(self) -> _ReadableMessages:
        return self

    async def __anext__(self) -> Any:
        if self.failure is not None:
            raise self.failure
        if self._messages is None:
            # Only when the first message is read: gRPC requires that a started iterator is read.
            self._messages = aiter(self._requests)
        request = await anext(self._messages)
        if type(request) is _Unparsed:
            self.failure = _refusal(self._name, request)
            raise self.failure
        return request


def _absence(name: str) -> RequestError:
    return RequestError(
        FailureCode.UNIMPLEMENTED,
        f"this server does not offer {name}",
        "ask the role that does: docs/operations.md lists who serves what",
        reason="METHOD_UNKNOWN",
    )


def _refusal(name: str, request: _Unparsed) -> RequestError:
    return RequestError(
        FailureCode.INVALID_ARGUMENT,
        f"{name}: what was sent is no such message: {request.why}",
        "send a message of the version of the protocol that this server speaks",
        reason="MESSAGE_INVALID",
    )
