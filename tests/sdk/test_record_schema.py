"""The schema of a record type accepts and refuses what the type does (section 4.2)."""

from __future__ import annotations

import datetime as dt
import enum
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from types import NoneType
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.codecs import Codec, codec_for
from millwheel.sdk.errors import ValueDecodeError
from millwheel.sdk.record_schema import record_schema
from millwheel.sdk.schema_decoder import schema_decoder

T = TypeVar("T")
Values = st.SearchStrategy[Any]
Kind = tuple[Any, Values]
"""A type, and correct values as an injector without the type has them."""


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 10


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Lenient(enum.Enum):
    KNOWN = "known"

    @classmethod
    def _missing_(cls, value: object) -> Lenient | None:
        return cls.KNOWN if value == "known as well" else None


class Node(msgspec.Struct):
    count: int
    next: Node | None = None
    more: list[Node] = []


@dataclass
class Branch:
    left: Branch | None = None
    leaves: dict[str, Branch] = field(default_factory=dict)


class Folder(TypedDict):
    name: str
    inside: NotRequired[list[Folder]]


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    name: str


class Zero(msgspec.Struct, tag=0, tag_field="kind"):
    a: int


class One(msgspec.Struct, tag=1, tag_field="kind"):
    b: str


class Box(msgspec.Struct, Generic[T]):
    item: T


class Total(msgspec.Struct, array_like=True, kw_only=True):
    a: int = 0
    b: str


class Exact(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    user_name: str
    at_most: Annotated[int, msgspec.Meta(ge=0, le=5)] = 0


class Place(NamedTuple):
    x: int
    y: str = ""


class Frozen(msgspec.Struct, frozen=True):
    n: int


PLAIN = (
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats(width=16) | st.text("ab1", max_size=3)
    | st.binary(max_size=2) | st.sampled_from(["red", "2024-02-29", "1.5", "Cat"])
)  # fmt: skip
ANYTHING = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
)
INTS = st.integers(-(2**63), 2**64 - 1)
AWARE = st.datetimes(timezones=st.just(dt.UTC))
SCALARS: list[Kind] = [
    (int, INTS),
    (bool, st.booleans()),
    (float, st.floats() | st.integers(-9, 9)),
    (str, st.text(max_size=3)),
    (bytearray, st.binary(max_size=3)),
    (NoneType, st.none()),
    (Any, ANYTHING),
    (dt.datetime, st.datetimes() | AWARE),
    (dt.date, st.dates()),
    (dt.time, st.times()),
    (dt.timedelta, st.timedeltas(min_value=dt.timedelta(days=-900), max_value=dt.timedelta(days=900))),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, places=2) | st.just(7)),
    (Colour, st.sampled_from(["red", "blue"])),
    (Level, st.sampled_from([0, 10])),
    (Rights, st.sampled_from([1, 2, 3])),
    (Lenient, st.sampled_from(["known", "known as well"])),
    (Literal["a", 1, None], st.sampled_from(["a", 1, None])),
    (Annotated[int, msgspec.Meta(ge=0, lt=10)], st.integers(0, 9)),
    (Annotated[int, msgspec.Meta(multiple_of=5)], st.integers(-9, 9).map(lambda number: 5 * number)),
    (Annotated[float, msgspec.Meta(gt=0.5)], st.floats(1, 9)),
    (Annotated[str, msgspec.Meta(pattern="^a+$")], st.text("a", min_size=1)),
    (Annotated[str, msgspec.Meta(min_length=1, max_length=2)], st.text("ab", min_size=1, max_size=2)),
    (Annotated[dt.datetime, msgspec.Meta(tz=True)], AWARE),
    (Annotated[dt.datetime, msgspec.Meta(tz=False)], st.datetimes()),
    (Annotated[str, msgspec.Meta(description="a word")], st.text(max_size=3)),
]
CLASSES: list[Kind] = [
    (Node, st.just({"count": 1, "next": {"count": 2}, "more": [{"count": 3, "next": None}]})),
    (Branch, st.just({"left": {"left": {}}, "leaves": {"a": {"leaves": {}}}})),
    (Folder, st.just({"name": "a", "inside": [{"name": "b", "inside": []}]})),
    (Cat | Dog, st.sampled_from([{"type": "Cat"}, {"type": "Dog", "name": "rex"}])),
    (Zero | One, st.sampled_from([{"kind": 0, "a": 1}, {"kind": 1, "b": "x"}])),
    (Box[int], st.just({"item": 1})),
    (Box[list[str]], st.just({"item": ["a"]})),
    (Total, st.just([1, "b"])),
    (Exact, st.just({"userName": "a", "atMost": 5})),
    (Place, st.sampled_from([[1], [1, "b"]])),
    (set[Frozen], st.just([{"n": 1}, {"n": 1}])),
    (dict[int, Place], st.just({1: [2]})),
    (Counter[str], st.just({"a": 1})),
    (OrderedDict[str, int], st.just({"a": 1})),
    (deque[int], st.just([1, 2])),
    (frozenset[Place], st.just([[1], [1, "b"]])),
    (dict[Colour, Exact], st.just({"red": {"userName": "a"}})),
]


def containers(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    """Types that contain those of ``inner``."""

    @st.composite
    def made(draw: st.DrawFn) -> Kind:
        return draw(st.sampled_from(MAKERS))([draw(inner) for _ in range(draw(st.integers(1, 3)))])

    return made()


def a_list(kinds: list[Kind]) -> Kind:
    return list[kinds[0][0]], st.lists(kinds[0][1], max_size=3)  # type: ignore[misc]


def a_short_list(kinds: list[Kind]) -> Kind:
    return Annotated[list[kinds[0][0]], msgspec.Meta(max_length=2)], st.lists(kinds[0][1], max_size=2)  # type: ignore[misc]


def a_tuple(kinds: list[Kind]) -> Kind:
    return tuple[tuple(kind for kind, _ in kinds)], st.tuples(*(values for _, values in kinds)).map(list)  # type: ignore[misc]


def any_tuple(kinds: list[Kind]) -> Kind:
    return tuple[kinds[0][0], ...], st.lists(kinds[0][1], max_size=3)  # type: ignore[misc]


def a_dict(kinds: list[Kind]) -> Kind:
    return dict[str, kinds[0][0]], st.dictionaries(st.text("ab", max_size=2), kinds[0][1], max_size=3)  # type: ignore[misc]


def numbered(kinds: list[Kind]) -> Kind:
    return dict[int, kinds[0][0]], st.dictionaries(st.integers(0, 9), kinds[0][1], max_size=3)  # type: ignore[misc]


def optional(kinds: list[Kind]) -> Kind:
    return kinds[0][0] | None, kinds[0][1] | st.none()


def a_struct(kinds: list[Kind]) -> Kind:
    fields = [(f"f{number}", kind) for number, (kind, _) in enumerate(kinds)]
    made = msgspec.defstruct("Made", [*fields, ("last", str, "")], rename={"f0": "first one"})
    return made, by_field(["first one", "f1", "f2"], kinds, {"last": st.text(max_size=2)})


def a_dataclass(kinds: list[Kind]) -> Kind:
    made = make_dataclass("Made", [(f"f{number}", kind) for number, (kind, _) in enumerate(kinds)])
    return made, by_field(["f0", "f1", "f2"], kinds, {})


def a_typed_dict(kinds: list[Kind]) -> Kind:
    required = {f"f{number}": kind for number, (kind, _) in enumerate(kinds)}
    made = TypedDict("Made", {**required, "last": NotRequired[str]})  # type: ignore[misc]
    return made, by_field(["f0", "f1", "f2"], kinds, {"last": st.text(max_size=2)})


def by_field(names: list[str], kinds: list[Kind], more: dict[str, Values]) -> Values:
    return st.fixed_dictionaries({name: values for name, (_, values) in zip(names, kinds, strict=False)}, optional=more)


MAKERS: list[Callable[[list[Kind]], Kind]] = [
    a_list, a_short_list, a_tuple, any_tuple, a_dict, numbered, optional, a_struct, a_dataclass, a_typed_dict,
]  # fmt: skip
KINDS = st.recursive(st.sampled_from(SCALARS + CLASSES), containers, max_leaves=5)


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> Any:
    """A value with one part replaced, left out, or added."""
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(list(value)))
        match draw(st.integers(0, 3)):
            case 0:
                return {name: part for name, part in value.items() if name != key}
            case 1:
                return {**value, draw(st.text("ab", max_size=2)): draw(PLAIN)}
        return {**value, key: draw(damaged(value[key]))}
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        at = draw(st.integers(0, len(value) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                return value[:at]
            case 1:
                return [*value, draw(PLAIN)]
        return [*value[:at], draw(damaged(value[at])), *value[at + 1 :]]
    return draw(ANYTHING)


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[Any, Any]:
    """A type, and a value that fits it, or nearly fits."""
    kind, values = draw(KINDS)
    value = draw(values)
    for _ in range(draw(st.integers(0, 2))):
        value = draw(damaged(value))
    return kind, value


def check_of(kind: Any) -> Callable[[bytes], Any]:
    """The decoder of a type's schema, after the schema was encoded and decoded."""
    schema = record_schema(kind)
    assert schema is not None
    sent = specs.RecordSchema.FromString(schema.SerializeToString())
    return schema_decoder(sent) or (lambda data: None)


def takes(decode: Callable[[bytes], Any], data: bytes) -> bool:
    try:
        decode(data)
    except (ValueError, TypeError, ValueDecodeError):
        return False
    return True


@pytest.mark.paper(section="4.2")
@given(typed_values())
def test_a_schema_takes_what_its_type_takes_and_nothing_else(typed: tuple[Any, Any]) -> None:
    kind, value = typed
    data = msgspec.msgpack.encode(value)
    expected = takes(codec_for(kind, "stream 's'").decode, data)
    found = takes(check_of(kind), data)
    assert found or not expected  # no correct record is refused
    if not _is_loose(kind):
        assert found == expected


def _is_loose(kind: Any) -> bool:
    """Whether a schema of the type accepts more than the type."""
    return any(name in repr(msgspec.inspect.type_info(kind)) for name in ("Lenient", "Rights", "CustomType"))


@given(st.data())
def test_right_values_of_every_kind_are_taken(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(SCALARS + CLASSES))
    encoded = msgspec.msgpack.encode(data.draw(values))
    assert takes(codec_for(kind, "stream 's'").decode, encoded)
    assert takes(check_of(kind), encoded)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Exact, {"userName": 1}, r"Expected `str`, got `int` - at `\$.userName`"),
        (Exact, {"atMost": 1}, "missing required field `userName`"),
        (Node, {"count": 1, "more": [{"count": 1, "next": {}}]}, r"field `count` - at `\$.more\[0\].next`"),
        (Colour, "green", "Invalid enum value 'green'"),
        (Place, [1, "a", 2], "at most length 2"),
        (Annotated[dt.datetime, msgspec.Meta(tz=True)], dt.datetime(2024, 1, 1), "timezone"),
        (Annotated[int, msgspec.Meta(ge=0)], -1, "Expected `int` >= 0"),
        (Counter[str], {"a": "b"}, "Expected `int`, got `str`"),
    ],
)
def test_errors_name_the_place_as_it_is_encoded(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_of(kind)(msgspec.msgpack.encode(value))


def test_types_that_need_code_have_no_schema() -> None:
    assert record_schema(specs.CodeReference) is None
    assert record_schema(bytes) is None
    assert record_schema(int, Codec[int](lambda number: b"", lambda data: 0)) is None


def test_a_type_too_large_for_the_routing_has_no_schema() -> None:
    fields = [(f"f{number}", int) for number in range(998)]
    largest = msgspec.defstruct("Largest", [*fields, ("last", int)])
    assert record_schema(largest) is not None
    assert record_schema(msgspec.defstruct("Larger", [*fields, ("last", list[int])])) is None


def test_a_kind_of_a_later_version_is_any_value() -> None:
    schema = record_schema(Box[int])
    assert schema is not None
    schema.types[1].kind = "quaternion"
    decode = schema_decoder(schema)
    assert decode is not None
    assert takes(decode, msgspec.msgpack.encode({"item": [1, 2, 3, 4]}))
    assert not takes(decode, msgspec.msgpack.encode({}))


def test_a_spec_has_the_schema_of_each_stream_with_a_known_type() -> None:
    class Count(mw.Computation[Exact, int]):
        def process_record(self, ctx: mw.Context[int], record: mw.Record[Exact]) -> None:
            ctx.produce("counts", record.value)

    made = mw.Topology("schemas")
    made.source("names", Exact)
    made.add(Count, inputs={"names": mw.key("user_name")}, outputs={"counts": Exact})
    streams = {stream.name: stream for stream in made.to_spec().streams}
    assert streams["schemas/names"].schema == record_schema(Exact)
    assert streams["schemas/counts"].schema == record_schema(Exact)
