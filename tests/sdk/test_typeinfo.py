"""The SDK reads annotations: names, fields, and which types fit each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NewType, TypedDict

import msgspec
import pytest

from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.typeinfo import Field, accepts, field_of, type_name


class Animal(msgspec.Struct):
    legs: int


class Cat(Animal):
    lives: int = 9


class Open(TypedDict):
    name: str


@dataclass
class Point:
    x: int
    near: Point | None = None


UserId = NewType("UserId", str)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, "int"),
        (None, "None"),
        (Any, "Any"),
        (object, "Any"),
        (Cat | None, "Cat | None"),
        (dict[str, list[int]], "dict[str, list[int]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Literal["a", 1], "Literal['a', 1]"),
        (Annotated[int, "meta"], "int"),
        (UserId, "UserId"),
        (topology_pb2.KeySpec, "KeySpec"),
    ],
)
def test_types_are_named_as_a_person_writes_them(annotation: Any, expected: str) -> None:
    assert type_name(annotation) == expected


@pytest.mark.parametrize(
    ("wanted", "given", "expected"),
    [
        (Cat, Cat, True),
        (Animal, Cat, True),
        (Cat, Animal, False),
        (Cat | int, int, True),
        (Cat | int, int | Cat, True),
        (Cat, Cat | int, False),
        (Any, Cat, True),
        (Cat, Any, False),
        (dict, dict[str, int], True),
        (dict[str, int], dict[str, int], True),
        (dict[str, int], dict[str, str], False),
        (Mapping, dict[str, int], True),
        (int, bool, False),
        (int | None, int, True),
        (int, int | None, False),
        (str, UserId, True),
        (UserId, str, False),
        (Annotated[int, "meta"], int, True),
        (dict, Open, True),
        (Open, dict, False),
        (Literal["a"], str, False),
    ],
)
def test_a_consumer_takes_a_stream_if_every_value_is_of_its_type(wanted: Any, given: Any, expected: bool) -> None:
    assert accepts(wanted, given) is expected


@pytest.mark.parametrize(
    ("annotation", "name", "expected"),
    [
        (Cat, "legs", Field(False, int, "legs")),
        (Cat | None, "lives", Field(False, int, "lives")),
        (Cat | Animal, "legs", Field(False, int | int, "legs")),
        (Cat | Animal, "lives", "legs"),
        (Cat, "wings", "legs, lives"),
        (Point, "near", Field(False, Point | None, "near")),
        (Open, "name", Field(True, str, "name")),
        (dict[str, int], "whatever", Field(True, int, "whatever")),
        (topology_pb2.InputSpec, "feedback", Field(False, bool, "feedback")),
        (topology_pb2.InputSpec, "key", Field(False, topology_pb2.KeySpec, "key")),
        (topology_pb2.KeySpec, "fields", Field(False, list[Any], "fields")),
        (Any, "x", None),
        (str, "x", ""),
        (Cat | Open, "name", "legs, lives"),
    ],
)
def test_fields_are_those_of_the_type(annotation: Any, name: str, expected: Any) -> None:
    assert field_of(annotation, name) == expected
