"""What is on the wire and in the coordinator: a line for each field and call, and sample messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from millwheel.rpc.v1 import (
    catalog_pb2,
    cluster_pb2,
    common_pb2,
    control_pb2,
    dead_letter_pb2,
    delivery_pb2,
    handover_pb2,
    injection_pb2,
    inspection_pb2,
    interval_pb2,
    key_pb2,
    letter_pb2,
    snapshot_pb2,
    state_pb2,
    stream_pb2,
    subscription_pb2,
    topology_pb2,
    watermark_pb2,
)

from .forms import StoredForm

FILES: Final[tuple[FileDescriptor, ...]] = tuple(
    module.DESCRIPTOR
    for module in (
        catalog_pb2,
        cluster_pb2,
        common_pb2,
        control_pb2,
        dead_letter_pb2,
        delivery_pb2,
        handover_pb2,
        injection_pb2,
        inspection_pb2,
        interval_pb2,
        key_pb2,
        letter_pb2,
        snapshot_pb2,
        state_pb2,
        stream_pb2,
        subscription_pb2,
        topology_pb2,
        watermark_pb2,
    )
)

_TYPES: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}
_MAX_DEPTH: Final = 4
"""A sample message has messages in messages to this depth. Some types have themselves as a field."""


def lines() -> Iterator[str]:
    """One line for each field, enum value and call. What a receiver must know of it is in the line."""
    for file in FILES:
        for message in _messages(file.message_types_by_name.values()):
            for field in message.fields:
                yield f"{message.full_name} {field.number}: {field.name} {_kind(field)}"
        for enum in _enums(file):
            for value in enum.values:
                yield f"{enum.full_name} {value.number}: {value.name}"
        for service in file.services_by_name.values():
            for call in service.methods:
                asked = f"{'stream ' * call.client_streaming}{call.input_type.full_name}"
                answered = f"{'stream ' * call.server_streaming}{call.output_type.full_name}"
                yield f"{service.full_name} {call.name}: {asked} -> {answered}"


def reserved_numbers() -> set[str]:
    """The numbers that no field and no value may have again, each with its message or enum, as lines begin."""
    found: set[str] = set()
    for file in FILES:
        for message in _messages(file.message_types_by_name.values()):
            copy = DescriptorProto()
            message.CopyToProto(copy)
            found.update(
                f"{message.full_name} {number}" for one in copy.reserved_range for number in range(one.start, one.end)
            )
        for enum in _enums(file):
            values = EnumDescriptorProto()
            enum.CopyToProto(values)
            found.update(
                f"{enum.full_name} {number}"
                for one in values.reserved_range
                for number in range(one.start, one.end + 1)
            )
    return found


def _messages(given: Any) -> Iterator[Descriptor]:
    for message in given:
        yield message
        yield from _messages(message.nested_types)


def _enums(file: FileDescriptor) -> Iterator[EnumDescriptor]:
    yield from file.enum_types_by_name.values()
    for message in _messages(file.message_types_by_name.values()):
        yield from message.enum_types


def _kind(field: FieldDescriptor) -> str:
    label = "repeated " if field.is_repeated else "optional " if field.has_presence else ""
    of = field.message_type or field.enum_type
    where = f" in {field.containing_oneof.name}" if field.containing_oneof is not None else ""
    return f"{label}{of.full_name if of is not None else _TYPES[field.type]}{where}"


def sample(message: Descriptor, depth: int = 0) -> Message:
    """A message with every field. Of fields of which only one can be set, it has the first."""
    made = GetMessageClass(message)()
    decided: set[str] = set()
    for field in message.fields:
        of = field.containing_oneof
        if of is not None and of.name in decided:
            continue
        if field.message_type is not None and depth == _MAX_DEPTH:
            continue
        if of is not None:
            decided.add(of.name)
        _fill(made, field, depth)
    return made


def _fill(made: Message, field: FieldDescriptor, depth: int) -> None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        given = sample(kind, depth + 1)
        value = kind.fields_by_name["value"]
        held = getattr(made, field.name)
        if value.message_type is None:
            held[given.key] = given.value  # type: ignore[attr-defined]  # each entry of a map has both
        else:
            held[given.key].CopyFrom(given.value)  # type: ignore[attr-defined]
    elif kind is not None:
        inner = sample(kind, depth + 1)
        if field.is_repeated:
            getattr(made, field.name).append(inner)
        else:
            getattr(made, field.name).CopyFrom(inner)
    elif field.is_repeated:
        getattr(made, field.name).append(_scalar(field))
    else:
        setattr(made, field.name, _scalar(field))


def _scalar(field: FieldDescriptor) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return field.name if field.type == FieldDescriptor.TYPE_STRING else field.name.encode()
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_ENUM:
            assert field.enum_type is not None
            return field.enum_type.values[1].number  # a value that is added changes no sample
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return 0.5
        case _:
            return 100 + field.number


def _form(message: Descriptor) -> StoredForm:
    kind: Any = GetMessageClass(message)
    return StoredForm(
        f"message/{message.name}",
        sample(message),
        lambda value: value.SerializeToString(deterministic=True),
        kind.FromString,
    )


FORMS: Final = tuple(
    _form(message)
    for name, message in sorted(catalog_pb2.DESCRIPTOR.message_types_by_name.items())
    if name.endswith("Record")
) + tuple(
    _form(message)
    for message in (
        delivery_pb2.DeliverRequest.DESCRIPTOR,
        delivery_pb2.DeliverResponse.DESCRIPTOR,
        subscription_pb2.SubscribeRequest.DESCRIPTOR,
        subscription_pb2.SubscribeResponse.DESCRIPTOR,
        watermark_pb2.ReportRequest.DESCRIPTOR,
        watermark_pb2.ReportResponse.DESCRIPTOR,
    )
)
