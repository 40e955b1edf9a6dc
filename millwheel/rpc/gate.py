"""The gate of a server that cannot serve yet: UNAVAILABLE with the reason (grpc.health.v1 reports NOT_SERVING)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc

from millwheel.rpc.errors import abort
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["Gate", "Interceptor"]

# Only type checkers can subscript this class; at run time it takes no arguments.
if TYPE_CHECKING:
    Interceptor: TypeAlias = grpc.aio.ServerInterceptor[Any, Any]
else:
    Interceptor = grpc.aio.ServerInterceptor

_ALWAYS: Final = ("/grpc.health.v1.", "/grpc.reflection.")


class Gate(Interceptor):
    """Refuses all calls except health and reflection until it is open."""

    def __init__(self) -> None:
        self.is_open = False
        self.waits_for = "it is starting"
        """Why the gate is closed."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the call's handler, or one that refuses the call."""
        if self.is_open or handler_call_details.method.startswith(_ALWAYS):
            return await continuation(handler_call_details)

        async def refuse(_: AsyncIterator[Any], context: Any) -> None:
            await abort(context, self._refusal())

        # A stream handler fits every kind of call, and this one reads no messages.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _refusal(self) -> RequestError:
        return RequestError(
            FailureCode.UNAVAILABLE,
            f"this server does not serve yet: {self.waits_for}",
            "it goes on by itself: try again, or ask another",
            reason="NOT_READY",
        )
