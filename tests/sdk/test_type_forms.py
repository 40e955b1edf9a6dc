"""Every form of type works alike in ``validate``, in the harness, in what ``submit`` sends, and where it runs."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import typing
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union
from uuid import UUID

import msgspec
import pytest

import millwheel as mw
from millwheel import windows
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk import spec as spec_module
from millwheel.testing import TopologyHarness

T = TypeVar("T")
U = TypeVar("U")


class Plain(msgspec.Struct):
    v: int


class Box(msgspec.Struct, Generic[T]):
    v: T


class Both(msgspec.Struct, Generic[T, U], array_like=True, tag="both", frozen=True):
    one: T
    other: U


class Boxed(Box[int]):
    more: str = ""


class Node(msgspec.Struct, Generic[T]):
    v: T
    below: list[Node[T]] = []


@dataclass
class Data(Generic[T]):
    v: T


class Typed(TypedDict, Generic[T]):
    v: T


class Named(NamedTuple, Generic[T]):
    v: T


class Color(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1


Name = NewType("Name", str)
_NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)

FORMS: list[tuple[Any, Any]] = [
    (Plain, Plain(1)),
    (Box[int], Box(1)),
    (Box, Box("anything")),
    (Box[Box[str]], Box(Box("a"))),
    (Box[list[Plain]], Box([Plain(1)])),
    (Both[int, str], Both(1, "a")),
    (Both[Box[int], dict[str, int]], Both(Box(1), {"a": 1})),
    (Boxed, Boxed(1, "a")),
    (Node[int], Node(1, [Node(2)])),
    (Data[int], Data(1)),
    (Typed[int], {"v": 1}),
    (Named[int], Named(1)),
    (windows.Result[int], windows.Result("k", mw.Timestamp(1), mw.Timestamp(2), 3)),
    (list[windows.Result[int]], [windows.Result("k", mw.Timestamp(1), mw.Timestamp(2), 3)]),
    (dict[int, Box[float]], {1: Box(1.5)}),
    (dict[tuple[int, str], int], {(1, "a"): 2}),
    (tuple[int, ...], (1, 2)),
    (tuple[int, Box[str]], (1, Box("a"))),
    (set[int], {1}),
    (frozenset[str], frozenset("a")),
    (collections.Counter[str], collections.Counter("ab")),
    (collections.deque[int], collections.deque([1])),
    (collections.OrderedDict[str, int], collections.OrderedDict(a=1)),
    (typing.Dict[str, typing.List[int]], {"a": [1]}),  # noqa: UP006 - the old forms are accepted as well
    (Optional[int], 1),  # noqa: UP045
    (Union[int, str], "a"),  # noqa: UP007
    (int | Box[int], Box(1)),
    (Literal["a", 1], 1),
    (typing.Annotated[int, msgspec.Meta(ge=0)], 1),
    (typing.Mapping[str, int], {"a": 1}),
    (typing.Sequence[int], [1]),
    (Name, "n"),
    (Color, Color.RED),
    (Size, Size.SMALL),
    (dt.datetime, _NOON),
    (dt.timedelta, dt.timedelta(1)),
    (UUID, UUID(int=1)),
    (Decimal, Decimal("1.5")),
    (bytes, b"x"),
    (bytearray, bytearray(b"x")),
    (bool, True),
    (Any, {"a": [1]}),
    (object, {"a": [1]}),
    (list[object], [1, "a"]),
    (topology_pb2.KeySpec, topology_pb2.KeySpec(function="f")),
]


_COMPUTATION: Any = mw.Computation  # as a value, which takes other values as its arguments


def _topology(kind: Any) -> mw.Topology:
    state = kind if kind is topology_pb2.KeySpec or kind is Any else Optional[kind]  # noqa: UP045

    class Keep(_COMPUTATION[kind, state]):  # type: ignore[misc]
        """Remembers its last record, and passes it on."""

        def process_record(self, ctx: mw.Context[Any], record: mw.Record[Any]) -> None:
            ctx.state = record.value
            ctx.produce("out", record.value)

    topology = mw.Topology("forms")
    topology.source("in", kind)
    topology.add(Keep, inputs={"in": mw.key(lambda value: "k")}, outputs={"out": kind})
    return topology


@pytest.mark.paper(section="4.4")
@pytest.mark.parametrize(("kind", "value"), FORMS, ids=lambda one: str(one)[:40])
def test_a_type_works_in_validate_harness_and_submit(kind: Any, value: Any) -> None:
    topology = _topology(kind)
    assert topology.validate() == []
    spec = topology.to_spec(topology_pb2.CodeReference(digest="d", entry_point="m:a"))
    assert spec.code.entry_point == "m:a"
    assert [one.name for one in spec.streams] == ["forms/in", "forms/out"]
    assert spec.computations[0].state.fields
    harness = TopologyHarness(topology)
    harness.send("in", value, mw.Timestamp(1))
    harness.crash()
    assert (harness.values("out"), harness.state("keep", "k")) == ([value], value)


def test_a_generic_states_schema_has_its_arguments_fields() -> None:
    spec = _topology(Box[Box[str]]).to_spec()
    fields = {field.path: field.type for field in spec.computations[0].state.fields}
    assert fields == {"": "fields or none", "v": "fields", "v.v": "str"}


def test_what_cannot_be_described_is_a_problem_before_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    """`validate` and the harness find every problem that building a spec finds."""

    def broken(*_: object) -> None:
        raise AttributeError("__struct_config__")

    monkeypatch.setattr(spec_module, "state_schema", broken)
    topology = _topology(int)
    (problem,) = topology.validate()
    message = "it cannot be described to a cluster: AttributeError: __struct_config__"
    assert (problem.where, problem.message) == ("computation 'keep'", message)
    for use in (TopologyHarness, mw.Topology.to_spec):
        with pytest.raises(mw.TopologyError, match="__struct_config__"):
            use(topology)
