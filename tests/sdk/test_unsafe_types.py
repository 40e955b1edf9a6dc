"""Types for which a decoder of msgspec ends the process are refused, and no others."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, NewType, TypeVar

import msgspec
import pytest
from msgspec import Meta

import millwheel as mw
from millwheel import windows
from millwheel.sdk.codecs import codec_for, state_codec_for
from millwheel.sdk.errors import TopologyError, UnsupportedTypeError
from millwheel.sdk.record_schema import record_schema
from millwheel.sdk.schema_decoder import schema_decoder
from tests.patience import patience

Count = Annotated[int, Meta(ge=0)]
Named = NewType("Named", Count)
Pair = tuple[int, int]
T = TypeVar("T")


class Place(NamedTuple):
    x: int
    y: int


@dataclass
class Reading:
    values: list[Pair | Count]


class Either(msgspec.Struct, Generic[T]):
    value: Pair | T


class Tree(msgspec.Struct, Generic[T]):
    children: list[Tree[T]]
    leaf: T


UNSAFE: list[tuple[Any, str]] = [
    (Pair | Count, "$"),
    (tuple[int] | Named | None, "$"),
    (Pair | Annotated[float, Meta(multiple_of=2)], "$"),
    (Pair | Annotated[str, Meta(min_length=1)], "$"),
    (Pair | dict[str, int] | Annotated[bytes, Meta(max_length=9)], "$"),
    (dict[str, Pair | Annotated[dict[str, int], Meta(max_length=9)]], r"$[]"),
    (Reading, "$.values[]"),
    (deque[Pair | Count], "$[]"),
    (Either[Count], "$.value"),
    (Tree[Pair | Count], "$.leaf"),
    (Annotated[Pair | int, Meta(ge=0)], "$"),
]
SAFE = """
import msgspec
from msgspec import Meta
from typing import Annotated, Literal, NamedTuple
Count = Annotated[int, Meta(ge=0)]
class Place(NamedTuple):
    x: Count
    y: int
for kind in (
    tuple[int, int] | int, tuple[Count, int] | str, tuple[int, ...] | Count, tuple[()] | Count, Place | Count,
    list[Count] | Count, tuple[int, int] | Annotated[str, Meta(pattern="a")], tuple[int, int] | Literal[1, 2],
    tuple[int, int] | Annotated[int, Meta(title="count")], Annotated[tuple[int, int] | int, Meta(title="any")],
):
    from millwheel.sdk.codecs import codec_for
    codec_for(kind, "s")
    for _ in range(300):
        decoder = msgspec.msgpack.Decoder(kind)
        for data in (b"\\x01", b"\\x92\\x01\\x02", b"\\xa1a"):
            try:
                decoder.decode(data)
            except msgspec.ValidationError:
                pass
"""


@pytest.mark.parametrize(("kind", "path"), UNSAFE)
def test_a_type_that_crashes_msgspec_is_refused(kind: Any, path: str) -> None:
    """A bound beside a tuple in a union ended the worker with a segmentation fault, again and again."""
    for make in (codec_for, state_codec_for):
        with pytest.raises(UnsupportedTypeError, match="which crashes msgspec") as raised:
            make(kind, "stream 's'")
        assert f"the union at `{path}` has a tuple" in str(raised.value)


def test_validation_names_a_type_that_crashes_msgspec() -> None:
    topology = mw.Topology("t")
    topology.source("s", Reading)
    with pytest.raises(TopologyError, match="which crashes msgspec"):
        topology.to_spec()


def test_types_like_those_that_crash_msgspec_do_not() -> None:
    subprocess.run([sys.executable, "-c", SAFE], check=True, timeout=patience(60))


def test_a_schema_that_crashes_msgspec_has_no_decoder() -> None:
    """A version that refused no such type may have stored it."""
    schema = record_schema(Place | Count)
    assert schema is not None
    pair = next(described for described in schema.types if described.kind == "union")
    assert len(pair.parts) == 2
    schema.types[pair.parts[0]].kind = "tuple"
    schema.types[pair.parts[0]].parts[:] = [pair.parts[1]]
    with pytest.raises(UnsupportedTypeError, match="crashes msgspec"):
        schema_decoder(schema)


def test_a_row_of_results_that_crashes_msgspec_is_refused() -> None:
    topology = mw.Topology("t")
    counted = topology.source("s", Either[int]).key_by(lambda value: "k").window(windows.tumbling(mw.seconds(1)))
    with pytest.raises(UnsupportedTypeError, match="crashes msgspec"):
        counted.aggregate("counts", Reading, values=mw.agg.count())
