"""A value that could not be decoded again is refused where it is made, for every declared type (4.3, 4.4)."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.connectors.reading import SplitState
from millwheel.connectors.writing import Written
from millwheel.model.time import TimeInt
from millwheel.operators.count_windows import Open
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.codecs import Codec, codec_for, state_codec_for
from millwheel.sdk.errors import UnsupportedTypeError, ValueEncodeError
from millwheel.sdk.exact_types import exact_test
from millwheel.windows.computation import Panes

T = TypeVar("T")


class Level(enum.IntEnum):
    LOW = 1


class Kind(enum.Enum):
    A = "a"
    B = "b"


class Leaf(msgspec.Struct):
    x: float = 0.0
    n: int = 0


class Wider(Leaf):
    more: str = ""


class Strict(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    a: Annotated[int, msgspec.Meta(ge=0)] = 0
    b: bytes = b""


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    name: str = ""


class Old(msgspec.Struct, tag=True):
    age: int = 0

    def __post_init__(self) -> None:
        if self.age < 0:
            raise ValueError("not born")


class Box(msgspec.Struct, Generic[T], eq=False):
    item: T


EVENTS: list[Any] = [msgspec.defstruct(f"Event{number}", [("at", int)], tag=True) for number in range(120)]
WIDE: Any = reduce(or_, EVENTS)
"""A union that was too large for an exact test."""


@dataclass
class Window:
    start: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class Row(TypedDict, total=False):
    name: str


class Pair(NamedTuple):
    left: str
    right: int


# As values, which take other values as their arguments.
_LIST: Any = list
_TUPLE: Any = tuple
_DICT: Any = dict
_SET: Any = set
_FROZENSET: Any = frozenset
_BOX: Any = Box

_INTS = st.integers(-(2**63), 2**64 - 1)
_TEXT = st.text(max_size=3)
_LEAVES = st.builds(Leaf, st.floats(), _INTS)

_TYPED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, _INTS),
    (float, st.floats()),
    (bool, st.booleans()),
    (str, _TEXT),
    (bytes | None, st.none() | st.binary(max_size=3)),
    (WIDE, st.sampled_from(EVENTS).flatmap(lambda event: st.builds(event, _INTS))),
    (Level, st.just(Level.LOW)),
    (Kind, st.sampled_from(Kind)),
    (Literal["a", 3], st.sampled_from(["a", 3])),
    (dt.datetime, st.datetimes() | st.datetimes(timezones=st.just(dt.UTC))),
    (dt.date, st.dates()),
    (dt.timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Decimal, st.decimals()),
    (Leaf, _LEAVES),
    (Strict, st.builds(Strict, st.integers(0, 9), st.binary(max_size=3))),
    (Cat | Dog, st.builds(Cat, _INTS) | st.builds(Dog, _TEXT)),
    (Box[int], st.builds(Box, _INTS)),
    (Window, st.builds(Window, _INTS, st.dictionaries(_TEXT, _INTS, max_size=2))),
    (Row, st.fixed_dictionaries({}, optional={"name": _TEXT})),
    (Pair, st.builds(Pair, _TEXT, _INTS)),
    (int | str | None, st.none() | _TEXT | _INTS),
]

_SCALARS = [(one, values) for one, values in _TYPED if one in (int, str, bool, Level)]


def _containers(inner: tuple[Any, st.SearchStrategy[Any]]) -> list[tuple[Any, st.SearchStrategy[Any]]]:
    kind, values = inner
    return [
        (_LIST[kind], st.lists(values, max_size=2)),
        (_TUPLE[kind, ...], st.lists(values, max_size=2).map(tuple)),
        (_TUPLE[kind, int], st.tuples(values, _INTS)),
        (_BOX[kind], st.builds(Box, values)),
        *((_DICT[key, kind], st.dictionaries(keys, values, max_size=2)) for key, keys in _SCALARS),
    ]


_HASHABLE = [(_SET[kind], st.sets(values, max_size=2)) for kind, values in _SCALARS] + [
    (_FROZENSET[kind], st.frozensets(values, max_size=2)) for kind, values in _SCALARS
]
_PAIRS = st.sampled_from([*_TYPED, *_HASHABLE])
_NESTED = st.recursive(_PAIRS, lambda inner: inner.flatmap(lambda one: st.sampled_from(_containers(one))), max_leaves=3)
_ANYTHING = st.sampled_from([Wider(1.0, 2, "c"), (1, 2), [1], {1}, {"a": 1}, {1: 2}, 1.5, True, None, b"x", 2**63])
_STRAY = _NESTED.flatmap(lambda pair: pair[1]) | _ANYTHING


def _alike(one: Any, other: Any) -> bool:
    """Equality by parts, as a reader sees it: NaN equals NaN, and classes without equality go by their fields."""
    if isinstance(one, Box) and isinstance(other, Box):
        return _alike(one.item, other.item)
    if isinstance(one, Leaf) and type(one) is type(other):
        return _alike([one.x, one.n], [other.x, other.n])
    if isinstance(one, list | tuple) and isinstance(other, type(one)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, float | Decimal) and type(one) is type(other) and "nan" in repr(one).lower():
        return repr(one) == repr(other)
    return bool(one == other)


def _readable(kind: Any, value: Any) -> bool:
    try:
        return _alike(value, msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind))
    except (msgspec.MsgspecError, TypeError, OverflowError, ValueError):
        return False


def _accepted(kind: Any, value: Any) -> bool:
    try:
        codec_for(kind, "stream 's'").verify(value)
    except ValueEncodeError:
        return False
    return True


@pytest.mark.guarantee("G2", section="4.3")
@given(_NESTED.flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1])))
def test_what_is_of_its_declared_type_is_accepted(typed: tuple[Any, Any]) -> None:
    kind, value = typed
    assert _accepted(kind, value)


@pytest.mark.guarantee("G2", section="4.3")
@given(_NESTED, _STRAY)
def test_what_is_accepted_is_exactly_what_can_be_read_again(pair: tuple[Any, Any], value: Any) -> None:
    kind = pair[0]
    assert not _accepted(kind, value) or _readable(kind, value)


@pytest.mark.guarantee("G2", section="4.3")
@given(_NESTED, _STRAY)
def test_one_stray_part_is_refused_unless_it_can_be_read_again(pair: tuple[Any, Any], stray: Any) -> None:
    kind = pair[0]
    for whole, value in ((_LIST[kind], [stray]), (_DICT[str, kind], {"k": stray}), (_BOX[kind], Box(stray))):
        assert _accepted(whole, value) == _readable(whole, value), (whole, value)


class Tree(msgspec.Struct):
    left: Tree | None = None


class Even(msgspec.Struct):
    n: int = 0

    def __post_init__(self) -> None:
        if self.n % 2:
            raise ValueError("odd")


class Covered(Leaf):
    x = property(lambda self: 0.0)


@given(_NESTED, _STRAY)
def test_what_an_exact_test_passes_can_be_read_again(pair: tuple[Any, Any], stray: Any) -> None:
    kind = pair[0]
    for whole, value in (
        (kind, stray),
        (_LIST[kind], [stray]),
        (_DICT[str, kind], {"k": stray}),
        (_BOX[kind], Box(stray)),
    ):
        exact = exact_test(whole)
        assert exact is None or not exact(value) or not _encodable(value) or _readable(whole, value), (whole, value)


def _encodable(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except (TypeError, OverflowError, ValueError):
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "value", "wrong"),
    [
        (int, 1, True),
        (dict[int, int], {1: 2}, {1: 2.0}),
        (dict[tuple[int, str], list[float]], {(1, "a"): [1.5]}, {(1, "a", 2): [1.5]}),
        (tuple[int, ...], (1, 2), [1, 2]),
        (list[tuple[int, bytes | None]], [(1, None), (2, b"x")], [(1, "x")]),
        (Leaf, Leaf(1.5, 2), Wider(1.5, 2)),
        (dict[str, Box[Leaf | None]], {"a": Box(Leaf())}, {"a": Box(1)}),
        (Cat | Dog, Dog("Rex"), Dog(9)),  # type: ignore[arg-type]
        (Cat | Dog, Cat(9), Cat("Rex")),  # type: ignore[arg-type]
        (Cat | Dog, Cat(9), None),
        (list[Cat | Dog | None], [Cat(9), None, Dog("Rex")], [Cat(9), Leaf()]),
        (WIDE, EVENTS[-1](1), EVENTS[-1]("x")),
        (WIDE, EVENTS[0](1), Cat(9)),
        (WIDE, EVENTS[0](1), None),
        (list[WIDE | None], [EVENTS[7](1), None], [EVENTS[7](1), EVENTS[8](None)]),
    ],
)
def test_an_exact_test_knows_its_type(kind: Any, value: Any, wrong: Any) -> None:
    exact = exact_test(kind)
    assert exact is not None
    assert exact(value)
    assert not exact(wrong)


@pytest.mark.parametrize(
    "kind",
    [
        *(
            Any,
            Tree,
            Even,
            Strict,
            Level,
            Cat | Old,
            Leaf | int,
            int | str | None,
            set[int],
            list,
            dict[Leaf, int],
            Row,
            Window,
        ),
        Covered,
        msgspec.defstruct("Keyword", [("class", int)]),
        msgspec.defstruct("Ligature", [("\ufb01x", int)]),
    ],
)
def test_what_only_its_decoder_knows_has_no_exact_test(kind: Any) -> None:
    assert exact_test(kind) is None


@pytest.mark.parametrize("kind", [Panes[int], Open[int], SplitState[int], Written, list[tuple[TimeInt, str]]])
def test_states_of_the_library_have_an_exact_test(kind: Any) -> None:
    """Also with times in them. Without one, each write of a state would be decoded again."""
    assert exact_test(kind) is not None


def test_an_exact_test_is_compiled_once_for_a_type() -> None:
    assert exact_test(list[int]) is exact_test(list[int])
    assert exact_test(list[Annotated[int, ["not", "hashable"]]]) is None


class Liar(dict[int, int]):
    __class__ = dict  # type: ignore[assignment]


def test_an_exact_test_looks_at_the_class_that_the_encoder_sees() -> None:
    exact = exact_test(dict[int, int])
    assert exact is not None
    assert not exact(Liar({1: 2}))


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (dict[int, int], {"a": 1}, "Expected `int`, got `str` - at `key` in `$`"),
        (dict[str, int], {"a": "1"}, "Expected `int`, got `str` - at `$[...]`"),
        (dict[str, int], {"a": True}, "Expected `int`, got `bool` - at `$[...]`"),
        (Leaf, Leaf("text"), "Expected `float`, got `str` - at `$.x`"),  # type: ignore[arg-type]
        (list[int], [1.0], "Expected `int`, got `float`"),
        (list[list[int]], [[1], (2,)], "tuple (2,) would be read as list [2] - at `$[1]`"),
        (list[str], [UUID(int=1)], "would be read as str '00000000-0000-0000-0000-000000000001' - at `$[0]`"),
        (list[float], [2**63 - 1], "int 9223372036854775807 would be read as float 9.223372036854776e+18 - at `$[0]`"),
        (Leaf, Wider(1.0, 1, "lost"), "would be read as Leaf Leaf(x=1.0, n=1) - at `$`"),
        (Strict, Strict(-1), "Expected `int` >= 0 - at `$[0]`"),
        (Box[int], Box("x"), "Expected `int`, got `str` - at `$.item`"),
        (Window, Window(counts={"a": None}), "Expected `int`, got `None`"),  # type: ignore[dict-item]
        (Row, {"name": 3}, "Expected `str`, got `int` - at `$.name`"),
        (Pair, Pair("a", "b"), "Expected `int`, got `str` - at `$[1]`"),  # type: ignore[arg-type]
        (list[Cat | Dog], [Leaf()], "Object missing required field `type`"),
        (dict[str, Any], {"a": object}, "cannot be encoded"),
    ],
)
def test_a_refusal_names_path_value_and_declared_type(kind: Any, value: Any, why: str) -> None:
    with pytest.raises(ValueEncodeError) as raised:
        codec_for(kind, "computation 'c', stream 's'").verify(value)
    assert str(raised.value).startswith("computation 'c', stream 's': ")
    assert why in str(raised.value)
    assert repr(value)[:20] in str(raised.value)


@pytest.mark.parametrize("kind", [Any, object, dict[str, Any], dict])
def test_values_of_any_reach_a_streams_readers_as_plain_values(kind: Any) -> None:
    codec = codec_for(kind, "stream 's'")
    assert codec.decode(codec.verify({"a": (1, Leaf(1.0, 2))})) == {"a": [1, {"x": 1.0, "n": 2}]}


@pytest.mark.paper(section="4.4")
def test_what_stands_for_any_in_a_state_must_come_back_as_it_is() -> None:
    codec = state_codec_for(dict[str, Any], "computation 'c'")
    assert codec.decode(codec.verify({"a": [1, None]})) == {"a": [1, None]}
    with pytest.raises(ValueEncodeError, match=r"state: this dict could not .* tuple \(1, 2\) would be read as list"):
        codec.verify({"a": (1, 2)})
    with pytest.raises(ValueEncodeError, match=r"Leaf .* would be read as dict .* at `\$\['a'\]`"):
        codec.verify({"a": Leaf()})


def test_a_codec_of_ones_own_is_asked_to_decode_what_it_encoded() -> None:
    def decode(data: bytes) -> int:
        if data == b"13":
            raise ValueError("bad luck")
        return int(data)

    own = Codec[int](lambda value: str(value).encode(), decode, int)
    for codec in (codec_for(int, "s", own), state_codec_for(int, "c", own)):
        assert codec.verify(12) == b"12"
        with pytest.raises(ValueEncodeError, match="could not be read again as int: bad luck"):
            codec.verify(13)


def test_messages_and_bytes_need_no_equality() -> None:
    reference = topology_pb2.CodeReference(digest="d")
    codec = codec_for(topology_pb2.CodeReference, "s")
    assert codec.decode(codec.verify(reference)) == reference
    assert codec_for(bytes, "s").verify(b"x") == b"x"


class Reading(msgspec.Struct):
    at: float = "never"  # type: ignore[assignment]


class Listed(msgspec.Struct):
    items: list[int] = ()  # type: ignore[assignment]


@pytest.mark.paper(section="4.4")
@pytest.mark.parametrize("kind", [Reading, Listed])
def test_a_state_default_of_another_type_is_refused(kind: Any) -> None:
    with pytest.raises(UnsupportedTypeError, match="default"):
        state_codec_for(kind, "computation 'c'")


class Odd(msgspec.Struct):
    x: int = 0

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")


def test_a_class_whose_equality_raises_goes_by_its_fields() -> None:
    codec = codec_for(Odd, "s")
    assert codec.decode(codec.verify(Odd(3))).x == 3


@pytest.mark.parametrize("kind", [Leaf, list[Leaf], int, Any, bytes, dict[str, float | None]])
@pytest.mark.parametrize(
    "values", [[], [Leaf(1.0, 2)] * 3, [[Leaf(1.0, 2)], [Leaf(1, 2)]], [1, True, 2**70], [b"", "x"]]
)
def test_many_values_are_encoded_and_refused_as_each_is(kind: Any, values: list[Any]) -> None:
    codec = codec_for(kind, "stream 's'")

    def outcome(encode: Any) -> Any:
        try:
            return encode()
        except Exception as error:
            return type(error), str(error)

    assert outcome(lambda: codec.verify_all(values)) == outcome(lambda: [codec.verify(value) for value in values])
