"""States outlive the versions of the code that stored them (section 4.4)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration as ProtoDuration
from google.protobuf.timestamp_pb2 import Timestamp as ProtoTimestamp
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.master.migrating import state_problem
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.compiled import compile_computation
from millwheel.sdk.schema import state_schema


class Old(msgspec.Struct):
    times: int = 0
    words: dict[str, int] = {}


class New(msgspec.Struct):
    total: int = 0


def topology(state: Any, **attributes: Any) -> mw.Topology:
    def process_record(self: Any, ctx: Any, record: Any) -> None:
        """Nothing."""

    bases = (mw.Computation[str, state],)
    space = {"process_record": process_record, "__orig_bases__": bases, **attributes}
    made = mw.Topology("t")
    made.source("words", str)
    made.add(type("Count", (mw.Computation,), space)(), inputs={"words": mw.key(str)})
    return made


def codec(state: Any, **attributes: Any) -> Any:
    return compile_computation(topology(state, **attributes), "count").state


def to_new(self: Any, stored: mw.StoredState) -> New:
    assert stored.plain() == {"times": stored.read(Old).times, "words": {}}
    return New(stored.read(Old).times + stored.version)


def test_a_state_of_an_earlier_version_is_migrated_when_read() -> None:
    old, new = codec(Old), codec(New, state_version=2, migrate=to_new)
    stored = old.encode(Old(7))
    assert stored == msgspec.msgpack.encode(Old(7)), "the first version stores nothing beside the state"
    assert new.decode(stored) == New(8)
    assert new.decode(new.encode(New(8))) == New(8), "once written it is a state of the new version"
    third = codec(New, state_version=300, migrate=lambda self, stored: New(stored.version))
    assert third.decode(new.encode(New(8))) == New(2)
    assert third.decode(third.encode(New(5))) == New(5)
    with pytest.raises(mw.MillwheelError, match="its state is of version 300, and this code knows 2: run newer code"):
        new.decode(third.encode(New(1)))


def test_migrate_that_returns_nothing_does_not_wipe_the_state() -> None:
    stored = codec(Old).encode(Old(7))
    with pytest.raises(mw.MillwheelError, match="migrate returned None for a state of version 1, and not New"):
        codec(New, state_version=2, migrate=lambda self, stored: None).decode(stored)
    assert codec(New | None, state_version=2, migrate=lambda self, stored: None).decode(stored) is None


@given(st.binary(max_size=8), st.sampled_from([1, 2, 127, 128, 255, 256, 70_000]))
def test_any_bytes_are_distinguished_from_an_envelope(data: bytes, version: int) -> None:
    first = codec(bytes)
    assert first.decode(first.encode(data)) == data
    assert bool(first.encode(data)) == bool(data), "a state that encodes to nothing is none"
    if version > 1:
        later = codec(bytes, state_version=version, migrate=lambda self, stored: stored.data + b"!")
        assert later.decode(later.encode(data)) == data or not data
        assert later.decode(first.encode(data)) == data + b"!"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"state_version": 2}, "its state_version is 2, and nothing says how earlier states are read: define migrate"),
        ({"migrate": to_new}, "it defines migrate, and its state_version is 1, so nothing would call it"),
        ({"state_version": 0}, "state_version must be a whole number from 1, not 0"),
        ({"state_version": "2"}, "state_version must be a whole number from 1, not '2'"),
        ({"state_version": True}, "state_version must be a whole number from 1, not True"),
    ],
)
def test_a_version_without_a_migration_is_a_mistake(attributes: dict[str, Any], message: str) -> None:
    (problem,) = topology(New, **attributes).validate()
    assert message in problem.message


@dataclass
class Inner:
    low: int = 0
    high: int = 0


@dataclass
class Whole:
    name: str = ""
    parts: list[Inner] = field(default_factory=list)


@dataclass
class MoreInner:
    low: int = 0
    high: int = 0
    middle: float = 0.5


@dataclass
class WithMoreInside:
    name: str = ""
    parts: list[MoreInner] = field(default_factory=list)


@dataclass
class WithNew:
    name: str = ""
    parts: list[Inner] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    whole: Inner | None = None


class Needed(msgspec.Struct):
    high: int
    low: int = 0


@dataclass
class WithNeededInside:
    name: str = ""
    parts: list[Needed] = field(default_factory=list)


@dataclass
class Renamed:
    title: str = ""
    parts: list[Inner] = field(default_factory=list)


@dataclass
class Retyped:
    name: int = 0
    parts: list[Inner] = field(default_factory=list)


@dataclass
class Mapped:
    name: str = ""
    parts: dict[str, Inner] = field(default_factory=dict)


class Same(TypedDict, total=False):
    name: str
    parts: list[Inner]


class Pair(NamedTuple):
    a: int = 0
    b: int = 0


class Swapped(NamedTuple):
    b: int = 0
    a: int = 0


class Tree(msgspec.Struct):
    value: int = 0
    branches: list[Tree] = []


def problem(old: Any, new: Any, codecs: tuple[Any, Any] = (None, None), versions: tuple[int, int] = (1, 1)) -> str:
    one, other = (
        specs.ComputationSpec(state_type=kind.__name__, state=state_schema(kind, used, version))
        for kind, used, version in zip((old, new), codecs, versions, strict=True)
    )
    return state_problem(one, other)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Whole, Whole),
        (Whole, WithNew),
        (Whole, WithMoreInside),
        (Whole, Same),
        (Tree, Tree),
        (Old, Old),
        (bytes, bytes),
        (type(None), Whole),
        (ProtoTimestamp, ProtoTimestamp),
    ],
)
def test_what_reads_as_before_needs_no_migration(old: Any, new: Any) -> None:
    assert problem(old, new) == ""


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        (Whole, Renamed, "field 'name' is gone"),
        (Whole, Retyped, "field 'name' was str, and is int"),
        (Whole, Mapped, "field 'parts' was list of fields, and is dict of str, fields"),
        (Whole, WithNeededInside, "field 'parts[].high' may be missing, and has no default now"),
        (WithNew, Whole, "field 'seen' is gone"),
        (Whole, type(None), "the whole was fields, and is none"),
        (int, str, "the whole was int, and is str"),
        (Pair, Swapped, "field 'a (at 0)' is gone"),
        (Literal["a", "b"], Literal["a"], "the whole was one of 'a', 'b', and is one of 'a'"),
        (Whole, bytes, "it was encoded as msgpack, and is as raw now"),
        (ProtoTimestamp, ProtoDuration, ""),
    ],
)
def test_what_would_be_misread_is_refused_with_both_types_named(old: Any, new: Any, shown: str) -> None:
    class Named:
        """Literals have no name of their own."""

    if not hasattr(old, "__name__"):
        one, other = (specs.ComputationSpec(state_type="L", state=state_schema(kind, None, 1)) for kind in (old, new))
        assert shown in state_problem(one, other)
        return
    found = problem(old, new)
    assert shown in found
    if shown:
        assert f"its state is a {new.__name__}, and a {old.__name__} is stored" in found
        assert "set state_version = 2 and define migrate(self, stored)" in found
    assert problem(old, new, versions=(1, 2)) == "", "a migration is declared"


def test_a_version_never_goes_back() -> None:
    assert "states of version 3 are stored: set state_version = 4" in problem(Old, Old, versions=(3, 2))


def test_a_codec_of_ones_own_answers_for_its_bytes() -> None:
    own: mw.Codec[Any] = mw.Codec(repr, eval, Old)  # type: ignore[arg-type]
    assert problem(Old, Old, (own, own)) == ""
    assert "it was encoded as msgpack, and is as custom now" in problem(Old, Old, (None, own))


def test_the_schema_has_no_names_that_are_not_stored() -> None:
    assert topology(Old).to_spec().computations[0].state.fields[1].path == "times"
    first, again = (topology(Old).to_spec().SerializeToString(deterministic=True) for _ in range(2))
    assert first == again
