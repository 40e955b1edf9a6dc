"""Codecs chosen by type (sections 4.3, 4.4): values survive a round trip, and an error names those that cannot."""

from __future__ import annotations

import datetime as dt
import enum
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.codecs import Codec, ValueFormat, codec_for, state_codec_for
from millwheel.sdk.errors import UnsupportedTypeError, ValueDecodeError, ValueEncodeError


class Kind(enum.Enum):
    A = "a"


class Inner(msgspec.Struct):
    count: int
    name: str = ""


class Query(msgspec.Struct):
    text: str
    at: dt.datetime | None = None
    inner: list[Inner] = []
    kind: Kind = Kind.A


@dataclass
class Window:
    start: int
    counts: dict[str, int] = field(default_factory=dict)


class Typed(TypedDict):
    name: str


class Pair(NamedTuple):
    left: str
    right: int


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Custom:
    def __init__(self, text: str = "") -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and other.text == self.text

    __hash__ = None  # type: ignore[assignment]


CUSTOM = Codec[Custom](lambda value: value.text.encode(), lambda data: Custom(data.decode()))
UserId = NewType("UserId", str)
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)


@pytest.mark.paper(section="4.3")
@pytest.mark.parametrize(
    ("record_type", "value"),
    [
        (Query, Query("x", NOON, [Inner(1, "a"), Inner(2)])),
        (Window, Window(3, {"a": 1})),
        (Typed, {"name": "x"}),
        (Pair, Pair("a", 1)),
        (Cat | Dog, Dog("rex")),
        (dict[str, list[int]], {"a": [1, 2]}),
        (set[str], {"a"}),
        (tuple[int, str], (1, "a")),
        (int, 7),
        (float, 1.5),
        (bool, True),
        (str, "é"),
        (UserId, UserId("u")),
        (int | None, None),
        (dt.datetime, NOON),
        (UUID, UUID(int=5)),
        (Decimal, Decimal("1.50")),
        (Counter[str], Counter("aab")),
        (deque[int], deque([1, 2])),
        (OrderedDict[str, int], OrderedDict(b=1, a=2)),
        (dict[str, Counter[str]], {"w": Counter("abb")}),
        (Literal["a", "b"], "b"),
        (Annotated[str, msgspec.Meta(max_length=3)], "abc"),
        (Any, {"a": [1, None]}),
        (bytes, b"\0raw"),
        (bytearray, bytearray(b"x")),
        (topology_pb2.CodeReference, topology_pb2.CodeReference(digest="d")),
    ],
)
def test_values_come_out_as_they_went_in(record_type: Any, value: Any) -> None:
    codec = codec_for(record_type, "stream 's'")
    decoded = codec.decode(codec.checked(value))
    assert decoded == value
    assert type(decoded) is type(value)
    assert codec.encode(value) == codec.checked(value)


@given(st.builds(Query, st.text(), st.none() | st.datetimes(timezones=st.just(dt.UTC))))
def test_structs_round_trip(query: Query) -> None:
    codec = codec_for(Query, "stream 's'")
    assert codec.decode(codec.encode(query)) == query


@given(st.builds(Window, st.integers(-(2**63), 2**63 - 1), st.dictionaries(st.text(), st.integers(0, 2**64 - 1))))
def test_dataclass_states_round_trip_and_encode_alike(window: Window) -> None:
    codec = state_codec_for(Window | None, "computation 'c'")
    encoded = codec.encode(window)
    assert codec.decode(encoded) == window
    assert codec.encode(codec.decode(encoded)) == encoded


@pytest.mark.parametrize(
    ("record_type", "codec", "expected"),
    [
        (Query, None, ValueFormat.MSGPACK),
        (int, None, ValueFormat.MSGPACK),
        (bytes, None, ValueFormat.RAW),
        (topology_pb2.CodeReference, None, ValueFormat.PROTOBUF),
        (Custom, CUSTOM, ValueFormat.CUSTOM),
    ],
)
def test_the_format_follows_from_the_type(record_type: Any, codec: Any, expected: ValueFormat) -> None:
    assert codec_for(record_type, "stream 's'", codec).format is expected


def test_structs_are_maps_by_field_name_for_readers_without_code() -> None:
    assert msgspec.msgpack.decode(codec_for(Inner, "s").encode(Inner(2, "a"))) == {"count": 2, "name": "a"}


def test_protobuf_maps_encode_deterministically() -> None:
    from millwheel.rpc.v1 import catalog_pb2

    names = [str(number) for number in range(100)]
    one = catalog_pb2.TopologyRecord(incarnations=dict.fromkeys(names, IncarnationId("")))
    other = catalog_pb2.TopologyRecord(incarnations=dict.fromkeys(reversed(names), IncarnationId("")))
    codec = codec_for(catalog_pb2.TopologyRecord, "s")
    assert codec.encode(one) == codec.encode(other)


@pytest.mark.paper(section="4.4")
def test_a_codec_of_ones_own_is_used_as_it_is() -> None:
    codec = codec_for(Custom, "stream 's'", CUSTOM)
    assert codec.encode(Custom("x")) == b"x"
    assert codec.decode(b"x") == Custom("x")
    state = state_codec_for(Custom, "computation 'c'", Codec(CUSTOM.encode, CUSTOM.decode, lambda: Custom("new")))
    assert state.new() == Custom("new")


@pytest.mark.parametrize(
    ("record_type", "data", "message"),
    [
        (
            Query,
            msgspec.msgpack.encode({"text": "a", "inner": [{"count": "b"}]}),
            "stream 'queries': {'text': 'a', 'inner': [{'count': 'b'}]} is no Query: "
            "Expected `int`, got `str` - at `$.inner[0].count`",
        ),
        (Query, b"\x80", "stream 'queries': {} is no Query: Object missing required field `text`"),
        (Inner, b"", "stream 'queries': b'' is no Inner: Input data was truncated"),
        (
            dict[str, int],
            b"\x81\xa1a\xc0",
            "stream 'queries': {'a': None} is no dict[str, int]: Expected `int`, got `None` - at `$[...]`",
        ),
        (
            topology_pb2.CodeReference,
            b"\xff",
            "stream 'queries': b'\\xff' is no CodeReference: Error parsing message with type "
            "'millwheel.v1.CodeReference': Wire format was corrupt",
        ),
    ],
)
def test_decode_errors_name_stream_type_and_place(record_type: Any, data: bytes, message: str) -> None:
    with pytest.raises(ValueDecodeError) as raised:
        codec_for(record_type, "stream 'queries'").decode(data)
    assert str(raised.value) == message


def test_decode_errors_of_a_codec_of_ones_own_are_named_too() -> None:
    with pytest.raises(ValueDecodeError, match=r"stream 's': b'\\xff' is no Custom: 'utf-8' codec can't decode"):
        codec_for(Custom, "stream 's'", CUSTOM).decode(b"\xff")


@pytest.mark.parametrize(
    ("record_type", "value", "message"),
    [
        (Inner, Window(1), "stream 's' carries Inner, not Window: Window(start=1, counts={})"),
        (int, True, "stream 's' carries int, not bool: True"),
        (int, "1", "stream 's' carries int, not str: '1'"),
        (bytes, 3, "stream 's' carries bytes, not int: 3"),
        (str | None, 3, "stream 's' carries str | None, not int: 3"),
        (dict[str, int], [1], "stream 's' carries dict[str, int], not list: [1]"),
        (topology_pb2.CodeReference, Inner(1), "stream 's' carries CodeReference, not Inner: Inner(count=1, name='')"),
        (
            topology_pb2.CodeReference,
            topology_pb2.KeySpec(function="f"),
            "stream 's' carries CodeReference, not KeySpec: function: \"f\"\n",
        ),
        (
            dict[str, Any],
            {"a": 1j},
            "stream 's': a value of dict[str, Any] cannot be encoded: "
            "objects of type complex cannot be encoded as MessagePack: {'a': 1j}",
        ),
    ],
)
def test_productions_of_the_wrong_type_fail_where_they_are_made(record_type: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueEncodeError) as raised:
        codec_for(record_type, "stream 's'").checked(value)
    advice = "; give it a value of the declared type, or declare the type that it has"
    assert str(raised.value) == message + advice * ("carries" in message)


def test_states_of_the_wrong_type_are_never_stored() -> None:
    codec = state_codec_for(int, "computation 'c'")
    with pytest.raises(ValueEncodeError, match="computation 'c', state carries int, not str: 'seven'; give it a value"):
        codec.encode("seven")


def test_floats_take_ints_and_subclasses_pass() -> None:
    class Detailed(Inner):
        detail: str = ""

    assert codec_for(float, "s").decode(codec_for(float, "s").checked(1)) == 1.0
    assert codec_for(Inner, "s").decode(codec_for(Inner, "s").checked(Detailed(1, "a", "b"))) == Inner(1, "a")


@pytest.mark.parametrize(
    ("record_type", "message"),
    [
        (Custom, "Custom cannot be encoded: Custom is no type known"),
        (complex, "complex cannot be encoded: complex is no type known"),
        (dict[str, Custom], "dict[str, Custom] cannot be encoded: Custom (at `$[]`) is no type known"),
        (
            msgspec.defstruct("Holder", [("items", list[Custom])]),
            "Holder cannot be encoded: Custom (at `$.items[]`) is no type known",
        ),
        (
            Inner | Query,
            "Inner | Query cannot be encoded: If a type union contains multiple Struct types, all Struct types must be "
            "tagged (via `tag` or `tag_field` kwarg) - type `test_codecs.Inner | test_codecs.Query` is not supported",
        ),
    ],
)
def test_types_that_cannot_be_encoded_are_refused_with_the_place(record_type: Any, message: str) -> None:
    advice = (
        "; use msgspec.Struct, dataclasses, typed dicts, containers and scalars, protobuf messages, bytes, "
        "or give it a codec=millwheel.Codec(encode, decode)"
    )
    with pytest.raises(UnsupportedTypeError) as raised:
        codec_for(record_type, "stream 's'")
    assert str(raised.value).replace("tests.sdk.", "") == message + advice


class Tree(msgspec.Struct):
    children: list[Tree] = []


def test_recursive_types_are_walked_once() -> None:
    codec = codec_for(Tree, "s")
    tree = Tree([Tree(), Tree([Tree()])])
    assert codec.decode(codec.encode(tree)) == tree


@pytest.mark.paper(section="4.4")
@pytest.mark.parametrize(
    ("state_type", "expected"),
    [
        (int, 0),
        (float, 0.0),
        (str, ""),
        (bytes, b""),
        (dict[str, int], {}),
        (list[int], []),
        (set[str], set()),
        (Counter[str], Counter()),
        (type(None), None),
        (Inner | None, None),
        (dt.datetime | None, None),
        (Tree, Tree()),
        (UserId, ""),
        (topology_pb2.KeySpec, topology_pb2.KeySpec()),
    ],
)
def test_a_key_without_state_gets_the_types_default(state_type: Any, expected: Any) -> None:
    codec = state_codec_for(state_type, "computation 'c'")
    first, second = codec.new(), codec.new()
    assert first == expected
    assert first is not second or not isinstance(first, dict | list | set)


class WithFactory(msgspec.Struct):
    texts: list[str] = []
    id: str = msgspec.field(default_factory=str)


class WithEnd(msgspec.Struct):
    text: str

    def __post_init__(self) -> None:
        self.text = self.text.lower()


@dataclass
class DataWithEnd:
    text: str

    def __post_init__(self) -> None:
        self.text = self.text.lower()


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize(
    ("record_type", "repeatable"),
    [
        (int, True),
        (Any, True),
        (dict[str, list[int]], True),
        (dt.datetime | None, True),
        (Query, True),
        (Typed, True),
        (WithFactory, False),
        (WithEnd, False),
        (DataWithEnd, False),
        (list[WithFactory | None], False),
        (tuple[int, WithEnd], False),
        (deque[WithFactory], False),
        (bytes, False),
        (topology_pb2.KeySpec, False),
    ],
)
def test_values_that_equal_bytes_make_are_equal(record_type: Any, repeatable: bool) -> None:
    assert codec_for(record_type, "stream 's'").repeatable is repeatable


@pytest.mark.paper(section="4.4")
@pytest.mark.parametrize(
    ("state_type", "why"),
    [
        (Inner, "TypeError: Missing required argument 'count'"),
        (Typed, "ValidationError: Object missing required field `name`"),
        (dt.datetime, "TypeError: function missing required argument 'year' (pos 1)"),
        (Literal["a"], "TypeError: Cannot instantiate typing.Literal"),
    ],
)
def test_a_state_type_without_default_is_refused(state_type: Any, why: str) -> None:
    with pytest.raises(UnsupportedTypeError) as raised:
        state_codec_for(state_type, "computation 'c'")
    assert str(raised.value).startswith("the state type ")
    assert f"has no default that can be stored ({why}): make it constructible without arguments" in str(raised.value)
