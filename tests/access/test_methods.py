"""The protos state for each method who may call it, and where the topology is in the request."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from millwheel.rpc.access.requirements import access_of

PROTOS = Path(__file__).parents[2] / "proto" / "millwheel" / "v1"

AMONG_PROCESSES = {
    "FreezeJournals",
    "PinJournals",
    "ThawJournals",
    "UnpinJournals",
    "DownloadPackage",
    "ExpectInjectors",
    "GetWorkerLoad",
    "PrepareOpen",
    "PrepareRelease",
    "RemoveGroup",
}
"""What only the daemons call."""
BY_INJECTORS_TOO = {"AcceptSequencer", "Deliver", "Report"}
"""What daemons call for all senders, and injectors for themselves."""
FOR_OPERATORS = {"MarkLetters"}
FOR_READERS = {"EnsureStreamLog", "Subscribe"}
"""What operators and readers call, and the master for those whose roles it has checked. Its calls are not audited."""


def methods() -> dict[str, MethodDescriptor]:
    """All methods, by their paths."""
    found = {}
    for path in sorted(PROTOS.glob("*.proto")):
        file: Any = import_module(f"millwheel.rpc.v1.{path.stem}_pb2")
        for service in file.DESCRIPTOR.services_by_name.values():
            found.update({f"/{service.full_name}/{method.name}": method for method in service.methods})
    return found


METHODS = methods()


def test_the_protos_have_methods() -> None:
    assert len(METHODS) > 40


@pytest.mark.parametrize("path", METHODS)
def test_each_method_states_who_may_call_it(path: str) -> None:
    access = access_of(path)
    assert access is not None, f"{path} has no option (access)"
    assert access.rules
    assert all(rule.roles for rule in access.rules)
    safe = METHODS[path].GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS
    assert not (safe and access.changes), "a call without side effects changes nothing"


@pytest.mark.parametrize("path", METHODS)
def test_the_paths_of_each_method_exist(path: str) -> None:
    access, method = access_of(path), METHODS[path]
    assert access is not None
    for rule in access.rules:
        for _, place in rule.paths:
            assert _type_at(method.input_type, place) == FieldDescriptor.TYPE_STRING, place
    for _, name, place in access.kept:
        assert method.output_type.fields_by_name[name].is_repeated
        assert _type_at(method.output_type, (name, *place)) == FieldDescriptor.TYPE_STRING
    assert all(name in method.output_type.fields_by_name for name in access.hidden)


def _type_at(message: Any, place: tuple[str, ...]) -> int:
    for name in place[:-1]:
        message = message.fields_by_name[name].message_type
    return int(message.fields_by_name[place[-1]].type)


def test_no_client_may_call_what_daemons_call() -> None:
    process = {
        path.rpartition("/")[2]: rule.roles
        for path in METHODS
        if (access := access_of(path)) is not None
        for rule in access.rules
        if "process" in rule.roles
    }
    assert {name for name, roles in process.items() if roles == {"process"}} == AMONG_PROCESSES
    assert {name for name, roles in process.items() if roles == {"process", "inject"}} == BY_INJECTORS_TOO
    assert {name for name, roles in process.items() if roles == {"process", "operate"}} == FOR_OPERATORS
    assert {name for name, roles in process.items() if roles == {"process", "read"}} == FOR_READERS
    assert process.keys() == AMONG_PROCESSES | BY_INJECTORS_TOO | FOR_OPERATORS | FOR_READERS


def test_an_unknown_method_has_no_access() -> None:
    assert access_of("/millwheel.v1.TopologyService/Nothing") is None
    assert access_of("/other.Service/Method") is None
