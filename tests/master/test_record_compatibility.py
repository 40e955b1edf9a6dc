"""A type that is accepted for a stream decodes all records of the type before it (sections 4.1, 4.2)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, Union

import msgspec
import pytest
from hypothesis import event, given, reject
from hypothesis import strategies as st

from millwheel.master.record_compatibility import stream_difference, unreadable_parts
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.codecs import codec_for
from millwheel.sdk.errors import ValueEncodeError
from millwheel.sdk.record_schema import record_schema

Change = tuple[Any, Any]


def out(name: str = "Out", /, *fields: Any, **options: Any) -> Any:
    return msgspec.defstruct(name, fields, **options)


class Point(NamedTuple):
    x: int


class Place(NamedTuple):
    x: int
    y: int = 0


@dataclass
class Plain:
    x: int


class Row(TypedDict):
    x: int
    y: NotRequired[str]


class Red(enum.Enum):
    RED = "red"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Rights(enum.Flag):
    READ = 1


class Others(enum.Flag):
    READ = 1


class Node(msgspec.Struct):
    x: int
    next: Node | None = None


class Link(msgspec.Struct):
    x: int
    next: Link | None = None
    more: list[Link] = []


class Broken(msgspec.Struct):
    x: int
    next: Broken | None = None
    more: int = 0
    last: list[Broken] | None = None


X, Y = ("x", int), ("y", str)
CAT, DOG = out("Cat", X, tag=True), out("Dog", Y, tag=True)
WIDER_CAT = out("Cat", X, ("y", str, ""), tag=True)
ACCEPTED: dict[str, Change] = {
    "the same": (out("Out", X), out("Out", X)),
    "another class": (out("Out", X), out("Other", X)),
    "a dataclass": (out("Out", X), Plain),
    "a typed dict": (Plain, Row),
    "a new field with a default": (out("Out", X), out("Out", X, ("y", str, ""))),
    "a field in front": (out("Out", X), out("Out", ("y", str, ""), X, kw_only=True)),
    "a default for a field": (out("Out", X), out("Out", ("x", int, 0))),
    "a last field by place": (out("Out", X, array_like=True), out("Out", X, ("y", str, ""), array_like=True)),
    "a named tuple": (Point, Place),
    "a field may be None": (out("Out", X), out("Out", ("x", int | None))),
    "a union's new member": (CAT, CAT | DOG),
    "a union's members in another order": (CAT | DOG, DOG | CAT),
    "a union's member with a field": (CAT | DOG, WIDER_CAT | DOG),
    "more values of an enum": (Red, Colour),
    "an enum as a literal": (Red, Literal["red", 1]),
    "anything": (dict[str, list[int]], Any),
    "any object": (out("Out", X), out("Out", ("x", object))),
    "a field inside a list": (list[out("A", X)], list[out("B", X, ("y", str, ""))]),  # type: ignore[misc]
    "a type that contains itself": (Node, Link),
    "a weaker constraint": (Annotated[int, msgspec.Meta(ge=2, le=5)], Annotated[int, msgspec.Meta(ge=1)]),
    "two kinds of int": (int | Annotated[int, msgspec.Meta(ge=3)],) * 2,
    "no constraint": (Annotated[str, msgspec.Meta(pattern="a")], str),
}
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "another type": (
        out("Out", ("since", datetime)),
        out("Out", ("since", int)),
        "field 'since' is written as datetime and read as int",
    ),
    "a new field": (out("Out", X), out("Out", X, Y), "field 'y' is new and has no default"),
    "a field without its default": (out("O", ("x", int, 0)), out("O", X), "field 'x' has no default any more"),
    "a field that is gone": (out("Out", X, ("y", str, "")), out("Out", X), "field 'y' is written and not read"),
    "another scalar": (int, str, "its value is written as int and read as str"),
    "no None any more": (out("O", ("x", int | None)), out("O", X), "field 'x' is written as none and read as int"),
    "another tag": (CAT, DOG, "its value is written as object tagged 'Cat' and read as object tagged 'Dog'"),
    "another tag field": (out("A", X, tag="a"), out("A", X, tag="a", tag_field="kind"), "written as object tagged"),
    "by place": (out("O", X), out("O", X, array_like=True), "its value is written as object and read as object"),
    "other places": (Point, out("O", Y, X, array_like=True), "field 'y' is read where 'x' was written"),
    "a union's lost member": (CAT | DOG, CAT, "its value is written as object tagged 'Dog'"),
    "fewer values of an enum": (Colour, Red, "its value is written as one of 'red', 'blue' and read as one of 'red'"),
    "something of anything": (Any, int, "its value is written as Any and read as int"),
    "a stronger constraint": (int, Annotated[int, msgspec.Meta(ge=2)], "its value is read with ge=2, which was not"),
    "a constraint of one member": (int, int | Annotated[int, msgspec.Meta(ge=2)], "its value is read with ge=2"),
    "an int that was written as a float": (
        float,
        float | Literal[1],
        "its value is written as float and read as float",
    ),
    "keys of a dict": (dict[str, int], dict[int, int], "field '[]' is written as str and read as int"),
    "a tuple's length": (tuple[int, int], tuple[int], r"written as tuple[int, int] and read as tuple[int]"),
    "inside a list": (
        out("O", ("a", list[Plain])),
        out("O", ("a", list[out("P", ("x", str))])),  # type: ignore[misc]
        "field 'a[].x' is written as int and read as str",
    ),
    "inside a type that contains itself": (Link, Broken, "field 'more' is written as list[object] and read as int"),
    "another class of the user": (list[Rights], list[Others], "field '[]' is written as Rights and read as Others"),
}


def differences(then: Any, now: Any, *, keep_fields: bool = True) -> list[str]:
    written, read = record_schema(then), record_schema(now)
    assert written is not None
    assert read is not None
    return unreadable_parts(written, read, keep_fields=keep_fields)


@pytest.mark.paper(section="4.1")
@pytest.mark.parametrize("change", ACCEPTED)
def test_a_type_that_reads_the_old_records_is_accepted(change: str) -> None:
    assert differences(*ACCEPTED[change]) == []


@pytest.mark.paper(section="4.1")
@pytest.mark.parametrize("change", REFUSED)
def test_a_type_that_reads_not_all_old_records_is_refused(change: str) -> None:
    then, now, difference = REFUSED[change]
    assert difference in "; ".join(differences(then, now))


@pytest.mark.paper(section="4.2")
def test_a_reader_ignores_fields_unless_its_type_forbids_it() -> None:
    then = out("Out", X, Y)
    assert differences(then, Row | None, keep_fields=False) == []
    assert differences(then, out("Out", X), keep_fields=False) == []
    strict = out("Out", X, forbid_unknown_fields=True)
    assert differences(then, strict, keep_fields=False) == ["field 'y' is written and not read"]


def test_a_damaged_schema_reads_nothing() -> None:
    whole = record_schema(int)
    assert whole is not None
    damaged = [
        specs.RecordSchema(types=[specs.TypeSchema(kind="list", parts=[7])]),
        specs.RecordSchema(types=[specs.TypeSchema(kind="union", parts=[0])]),
        specs.RecordSchema(types=[specs.TypeSchema(kind="int", options=b"\xc1")]),
        specs.RecordSchema(types=[specs.TypeSchema(kind="int", options=b"\x81\xa1\xec\x01")]),
        specs.RecordSchema(types=[specs.TypeSchema(kind="any", options=b"\x81\xa1\xec\x01")]),
        specs.RecordSchema(types=[specs.TypeSchema(kind="literal")]),
    ]
    for one in damaged:
        assert unreadable_parts(one, whole, keep_fields=True)
        streams = [specs.StreamSpec(name="in", record_type="T", schema=schema) for schema in (one, whole)]
        assert stream_difference(*streams, replaces=True)
        assert stream_difference(*reversed(streams), replaces=True)


def test_types_that_share_parts_are_compared_once() -> None:
    then = now = out("Last", X)
    for _ in range(60):
        then, now = out("A", ("a", then), ("b", then)), out("B", ("a", now), ("b", now))
    assert differences(then, now) == []


Natural = Annotated[int, msgspec.Meta(ge=0)]
Large = Annotated[int, msgspec.Meta(ge=3)]
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-9, 9),
    Natural: st.integers(0, 9),
    Large: st.integers(3, 9),
    float: st.sampled_from([0.5, -1, 7]),
    bool: st.booleans(),
    None: st.none(),
    str: st.sampled_from(["", "a", "red"]),
    Red: st.sampled_from(Red),
    Colour: st.sampled_from(Colour),
    Literal[1]: st.just(1),
    Literal[1, 2]: st.sampled_from([1, 2]),
    Any: st.sampled_from([1, "a", None, [1]]),
}
UNION: Any = Union
LIST: Any = list
TUPLE: Any = tuple
DICT: Any = dict
SCALARS = st.sampled_from(list(VALUES))
Versions = tuple[Any, st.SearchStrategy[Any], Any]
"""A type, its values, and another type, which often differs little or not at all."""


@st.composite
def structs(draw: st.DrawFn, inner: st.SearchStrategy[Versions]) -> Versions:
    fields: tuple[list[Any], list[Any]] = ([], [])
    values: dict[str, st.SearchStrategy[Any]] = {}
    for name in draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3)):
        then, made, now = draw(inner)
        kept = draw(st.sampled_from(["both", "both", "both", "old", "new"]))
        for kind, among, missing in ((then, fields[0], "new"), (now, fields[1], "old")):
            if kept != missing:
                default = [None] if draw(st.booleans()) else []
                among.append((name, kind, *default))
        if kept != "new":
            values[name] = made
    options = draw(struct_options())
    changed = options if draw(st.integers(0, 3)) else draw(struct_options())
    old, new = (
        msgspec.defstruct("Out", one, kw_only=True, **chosen)
        for one, chosen in zip(fields, (options, changed), strict=True)
    )
    return old, st.fixed_dictionaries(values).map(lambda given: old(**given)), new


def struct_options() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "tag": st.sampled_from([None, None, "A", "B"]),
            "array_like": st.sampled_from([False, False, True]),
            "forbid_unknown_fields": st.booleans(),
            "omit_defaults": st.booleans(),
        }
    )


@st.composite
def unions(draw: st.DrawFn, inner: st.SearchStrategy[Versions]) -> Versions:
    members: list[Versions] = []
    for one in draw(st.lists(inner, min_size=2, max_size=3)):
        if all(apart(one[side], other[side]) for other in members for side in (0, 2)):
            members.append(one)
    old = members[: draw(st.integers(1, len(members)))]
    then: Any = UNION[tuple(one[0] for one in old)]
    now: Any = UNION[tuple(one[2] for one in members)]
    return then, st.one_of([one[1] for one in old]), now


def apart(one: Any, other: Any) -> bool:
    """Whether both may be in a union. msgspec refuses others.

    A tuple of a fixed length is left out: beside a constrained int, msgspec 0.22 writes past the union's memory.
    """
    tags = [getattr(getattr(kind, "__struct_config__", None), "tag", None) for kind in (one, other)]
    if None not in tags and tags[0] != tags[1]:
        return bool(one.__struct_config__.array_like == other.__struct_config__.array_like)
    groups = [wire_groups(kind) for kind in (one, other)]
    return not groups[0] & groups[1] and (groups[0] | groups[1]).isdisjoint({"any", "tuple"})


def wire_groups(kind: Any) -> set[str]:
    info = msgspec.inspect.type_info(kind)
    return set().union(*map(wire_group, info.types if isinstance(info, msgspec.inspect.UnionType) else [info]))


def wire_group(info: msgspec.inspect.Type) -> set[str]:
    name = type(info).__name__.removesuffix("Type").lower()
    if name in {"enum", "literal"}:
        values = info.values if isinstance(info, msgspec.inspect.LiteralType) else (info.cls.__name__,)  # type: ignore[attr-defined]
        return {type(value).__name__ for value in values}
    if name == "struct":
        return {name, "array" if getattr(info, "array_like", False) else "map"}
    return {{"list": "array", "dict": "map"}.get(name, name)}


def containers(inner: st.SearchStrategy[Versions]) -> st.SearchStrategy[Versions]:
    lists = inner.map(lambda one: (LIST[one[0]], st.lists(one[1], max_size=2), LIST[one[2]]))
    pairs = inner.map(lambda one: (TUPLE[one[0], int], st.tuples(one[1], st.just(1)), TUPLE[one[2], int]))
    dicts = inner.map(lambda one: (DICT[str, one[0]], st.dictionaries(st.just("k"), one[1]), DICT[str, one[2]]))
    return lists | pairs | dicts | structs(inner) | unions(inner)


SAME = SCALARS.map(lambda kind: (kind, VALUES[kind], kind))
OTHERS = st.tuples(SCALARS, SCALARS).map(lambda kinds: (kinds[0], VALUES[kinds[0]], kinds[1]))
VERSIONS = st.recursive(SAME | OTHERS, containers, max_leaves=4)


@pytest.mark.paper(section="4.1")
@given(VERSIONS, st.booleans(), st.data())
def test_what_is_accepted_decodes(versions: Versions, keep_fields: bool, data: st.DataObject) -> None:
    then, values, now = versions
    assert differences(then, then) == []
    accepted = not differences(then, now, keep_fields=keep_fields)
    event(f"accepted: {accepted}")
    if accepted:
        try:
            encoded = codec_for(then, "s").verify(data.draw(values))
        except ValueEncodeError:  # -1 as a float beside an int of at least 0: no value of the union
            reject()
        codec_for(now, "s").decode(encoded)
