"""The JSON of the console's answers: protobuf's own form, and equal answers are made once."""

from __future__ import annotations

import gzip
import json
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from millwheel.rpc.v1 import catalog_pb2, interval_pb2
from millwheel.server.console.answers import KeptAnswers, to_json
from millwheel.server.console.calls import CALLS

_DEEPEST = 4
_SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(0, 9),
}


def fill(message: Message, draw: st.DrawFn, depth: int = 0) -> None:
    """Give some fields of a message, and of those in it, any value."""
    for field in message.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            getattr(message, field.name).update({draw(scalar(key)): draw(scalar(value))})
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if depth < _DEEPEST:
                inner = getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)
                inner.SetInParent()
                fill(inner, draw, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(scalar(field), max_size=2)))
        else:
            setattr(message, field.name, draw(scalar(field)))


def scalar(field: Any) -> st.SearchStrategy[Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return st.binary(max_size=5) if field.type == FieldDescriptor.TYPE_BYTES else st.text(max_size=5)
    return _SCALARS[field.cpp_type]


@given(st.data())
def test_answers_have_the_json_form_of_protobuf(data: st.DataObject) -> None:
    kinds = [*(call.response for call in CALLS.values()), catalog_pb2.TopologyRecord]
    message = data.draw(st.sampled_from(kinds))()
    data.draw(st.composite(lambda draw: fill(message, draw))())
    expected = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    assert to_json(message) == expected
    assert json.loads(msgspec.json.encode(to_json(message))) == expected


def test_an_equal_answer_is_not_encoded_again() -> None:
    kept = KeptAnswers()
    message = large("a")
    first, is_zipped = kept.content(message, zips=True)
    assert is_zipped
    assert json.loads(gzip.decompress(first)) == to_json(message)
    assert kept.content(large("a"), zips=True)[0] is first
    assert kept.content(large("b"), zips=True)[0] is not first
    assert kept.content(message, zips=False) == (gzip.decompress(first), False)


def test_kept_answers_are_few() -> None:
    kept = KeptAnswers()
    first, _ = kept.content(large("first"), zips=True)
    for number in range(8):
        kept.content(large(f"{number}"), zips=True)
    assert kept.content(large("first"), zips=True)[0] is not first


def test_a_small_answer_is_not_compressed() -> None:
    content, is_zipped = KeptAnswers().content(interval_pb2.ListIntervalsResponse(), zips=True)
    assert (content, is_zipped) == (b'{"intervals":[],"next_page_token":""}', False)


def large(name: str) -> Message:
    """An answer that is large enough to be compressed."""
    message = interval_pb2.ListIntervalsResponse()
    for number in range(100):
        message.intervals.add(topology=name).interval.sequencer = number
    return message
