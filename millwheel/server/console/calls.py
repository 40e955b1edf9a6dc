"""The API's calls: unary calls of the master's services, as JSON.

The calls and the form of requests and responses come from the protos. ``permission.py`` says which calls are offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from millwheel.client.control import ControlClient
from millwheel.rpc.access.requirements import MethodAccess
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import cluster_pb2, control_pb2, injection_pb2, interval_pb2, key_pb2, letter_pb2, stream_pb2
from millwheel.server.console.permission import offered_access

__all__ = ["CALLS", "HTTP_STATUS", "ApiCall", "described_error"]

_FILES: Final = (control_pb2, injection_pb2, interval_pb2, key_pb2, stream_pb2, letter_pb2, cluster_pb2)

_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "TopologyService/GetTopology": ("name",),
    "TopologyService/ValidateTopology": ("spec",),
    "ClusterService/ExplainHold": ("topology", "computation"),
    "InjectionService/GetBatchCursor": ("query",),
    "KeyService/GetKey": ("topology", "computation"),
    "KeyService/ListComputationKeys": ("topology", "computation"),
    "KeyService/ListComputationTimers": ("topology", "computation"),
    "StreamService/ReadStream": ("stream",),
    "LetterHandlingService/ListLetters": ("topology",),
    "LetterHandlingService/GetLetter": ("topology", "id"),
    "LetterHandlingService/PlanLetterHandling": ("topology",),
    "LetterHandlingService/ReplayLetters": ("topology", "ids", "log"),
    "LetterHandlingService/DiscardLetters": ("topology", "ids", "log"),
    "IntervalService/GetInterval": ("interval",),
    "IntervalService/MoveInterval": ("interval", "request_id"),
    "IntervalService/SplitInterval": ("interval", "request_id"),
    "IntervalService/MergeIntervals": ("interval", "request_id"),
}
"""The fields of requests that must have a value."""

HTTP_STATUS: Final = {
    FailureCode.INVALID_ARGUMENT: 400,
    FailureCode.FAILED_PRECONDITION: 400,
    FailureCode.UNAUTHENTICATED: 401,
    FailureCode.PERMISSION_DENIED: 403,
    FailureCode.NOT_FOUND: 404,
    FailureCode.ALREADY_EXISTS: 409,
    FailureCode.ABORTED: 409,
    FailureCode.RESOURCE_EXHAUSTED: 429,
    FailureCode.UNIMPLEMENTED: 501,
    FailureCode.UNAVAILABLE: 503,
    FailureCode.DEADLINE_EXCEEDED: 504,
}
"""The HTTP status of a failure, as google.rpc.Code has it. Any other failure: 500."""

_TYPES: Final = {
    FieldDescriptor.CPPTYPE_INT32: "int32",
    FieldDescriptor.CPPTYPE_INT64: "int64",
    FieldDescriptor.CPPTYPE_UINT32: "uint32",
    FieldDescriptor.CPPTYPE_UINT64: "uint64",
    FieldDescriptor.CPPTYPE_DOUBLE: "double",
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_BOOL: "bool",
    FieldDescriptor.CPPTYPE_ENUM: "enum",
}


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One call of the API: its address below ``/api/v1/``, and what it requires."""

    path: str
    rpc: str
    request: type[Message]
    response: type[Message]
    access: MethodAccess

    async def make(self, client: ControlClient, given: dict[str, Any]) -> Message:
        """Make the call.

        Args:
            client: A client of a master. It continues at the leader.
            given: The request, in protobuf's JSON form. The names are those of the protos, or in camelCase.

        Returns:
            The response.

        Raises:
            RequestError: The request has no such form (INVALID_ARGUMENT), or the call failed.
        """
        request = self.request()
        try:
            json_format.ParseDict(given, request)
        except json_format.ParseError as error:
            raise RequestError(
                FailureCode.INVALID_ARGUMENT,
                f"the request is no {request.DESCRIPTOR.name}: {error}",
                "GET /api/v1 lists the fields of each call",
                reason="REQUEST_MALFORMED",
            ) from error
        self._check_required(request)
        return await client.call(self.rpc, request, self.response)

    def _check_required(self, request: Message) -> None:
        given = {field.name for field, _ in request.ListFields()}
        missing = [name for name in _REQUIRED.get(self.path, ()) if name not in given]
        if missing:
            names = ", ".join(f"`{name}`" for name in missing)
            raise RequestError(
                FailureCode.INVALID_ARGUMENT,
                f"{self.path} needs {names}",
                "GET /api/v1 lists the fields of each call, and those that it needs",
                reason="FIELD_MISSING",
            )

    def from_query(self, query: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """Return the request that a query string gives. A repeated field takes each of its values."""
        fields = {field.name: field for field in self.request.DESCRIPTOR.fields}
        given: dict[str, Any] = {}
        for name, value in query:
            field = fields.get(name)
            if field is not None and field.is_repeated:
                given.setdefault(name, []).append(value)
            elif field is not None and field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
                given[name] = {"true": True, "false": False}.get(value, value)
            else:
                given[name] = value
        return given

    def describe(self) -> dict[str, Any]:
        """Return the entry of this call in the list of all calls."""
        fields = {field.name: _type(field) for field in self.request.DESCRIPTOR.fields}
        return {
            "path": f"/api/v1/{self.path}",
            "request": fields,
            "required": list(_REQUIRED.get(self.path, ())),
            "response": self.response.DESCRIPTOR.full_name,
            "changes": self.access.changes,
            "roles": [sorted(rule.roles) for rule in self.access.rules],
        }


def _type(field: Any) -> str:
    """Return the type of a field. Its class depends on how protobuf was built."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        name = field.message_type.full_name
    elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        name = "bytes" if field.type == FieldDescriptor.TYPE_BYTES else "string"
    else:
        name = _TYPES[field.cpp_type]
    return f"repeated {name}" if field.is_repeated else name


def _call(method: MethodDescriptor, access: MethodAccess) -> ApiCall:
    service = method.containing_service
    return ApiCall(
        f"{service.name}/{method.name}",
        f"/{service.full_name}/{method.name}",
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        access,
    )


CALLS: Final[Mapping[str, ApiCall]] = {
    call.path: call
    for file in _FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if (access := offered_access(method)) is not None
    for call in [_call(method, access)]
}
"""The calls by their paths."""


def described_error(error: RequestError) -> dict[str, Any]:
    """Return an error as an object. It has the form of the command line's, with ``code`` instead of ``exit_code``."""
    return {
        "error": {
            "code": error.code.name,
            "reason": error.reason,
            "message": error.message,
            "remedy": error.remedy,
            "problems": [{"where": one.where, "message": one.message} for one in error.problems],
        }
    }
