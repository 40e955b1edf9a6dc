"""Keys of maps and elements of sets: equal ones have one encoding, also after an update (section 4.4)."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.master.migrating import state_problem
from millwheel.sdk.errors import UnsupportedTypeError
from millwheel.sdk.growing.codec import any_state_codec
from tests.sdk.growing.test_collections import topology


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Omitting(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    zone: str = "eu-west"


class InheritedOmitting(Omitting, frozen=True):
    number: int = 1


@dataclass(frozen=True)
class Noted:
    name: str
    note: str = field(default="", compare=False)


@dataclass(frozen=True)
class Defaulted:
    name: str
    zone: str = "eu-west"


@dataclass(frozen=True)
class Caseless:
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Caseless) and self.name.lower() == other.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())


class CaselessStruct(msgspec.Struct, frozen=True):
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CaselessStruct) and self.name.lower() == other.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())


def keyed_by(key: Any) -> Callable[[], Any]:
    """A class of states whose map has such keys."""
    return type("Keyed", (mw.GrowingState,), {"__annotations__": {"items": mw.MapState[key, int]}})


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (Level | bool, "equal values of int | bool may be"),
        (Omitting, "Keyed.items: Omitting cannot be a key, because equal values of Omitting, which has omit_defaults,"),
        (tuple[int, InheritedOmitting], "equal values of InheritedOmitting, which has omit_defaults, may be"),
        (Noted, "equal values of Noted, whose field 'note' is not compared, may be"),
        (Defaulted, "equal values of Defaulted, whose field 'zone' has a default and no slot (slots=True), may be"),
        (Caseless, "equal values of Caseless, which defines __eq__, may be"),
        (CaselessStruct | None, "equal values of CaselessStruct, which defines __eq__, may be"),
    ],
)
def test_a_type_whose_equal_values_differ_in_bytes_is_no_key(key: Any, message: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=re.escape(message)):
        any_state_codec(keyed_by(key), "computation 'c'")


class Region(msgspec.Struct, frozen=True):
    name: str
    zone: str = "eu-west"
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True)
class Slotted:
    name: str
    zone: str = "eu-west"
    numbers: tuple[int, ...] = field(default_factory=tuple)


@dataclass(frozen=True)
class Unslotted:
    name: str
    numbers: tuple[int, ...] = field(default_factory=tuple)


class Listed(msgspec.Struct, frozen=True, array_like=True):
    name: str
    zone: str = "eu-west"


class Place(NamedTuple):
    name: str
    zone: str = "eu-west"


KEYS = [Region, Slotted, Unslotted, Listed, Place, Omitting, Noted, Defaulted]
PARTS = {"zone": "eu-west", "numbers": [], "colour": "red", "note": "n"}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: str(key.__name__))
@given(data=st.data())
def test_equal_keys_are_one_key_or_their_type_is_refused(key: Any, data: st.DataObject) -> None:
    """Keys come from records, with their fields in any order and with or without defaults, or a hook makes them."""
    try:
        state = keyed_by(key)()
    except UnsupportedTypeError:
        return
    names = [name for name in PARTS if name in key.__annotations__]
    model: dict[Any, int] = {}
    for number in range(data.draw(st.integers(2, 5))):
        name = data.draw(st.sampled_from("xy"))
        stored: Any = {one: PARTS[one] for one in data.draw(st.permutations(names)) if data.draw(st.booleans())}
        stored = [name, *stored.values()][:2] if key in (Listed, Place) else {**stored, "name": name}
        record = msgspec.msgpack.encode(stored)
        made = key(name) if data.draw(st.booleans()) else msgspec.msgpack.decode(record, type=key)
        state.items[made] = model[made] = number
    assert dict(state.items) == model
    assert len(state.items) == len(model)


class Named(msgspec.Struct, frozen=True):
    name: str
    zone: str


class ZoneFirst(msgspec.Struct, frozen=True):
    zone: str
    name: str


class Tagged(Named, frozen=True, tag="named"):
    pass


class TaggedElsewhere(Named, frozen=True, tag="named", tag_field="kind"):
    pass


class SetOfNames(mw.GrowingState):
    names: mw.SetState[tuple[Named, int]]


class SetOfOtherNames(mw.GrowingState):
    names: mw.SetState[tuple[ZoneFirst, int]]


NAMED = "fields (name: str, zone: str)"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (keyed_by(Named), keyed_by(Named), ""),
        (
            keyed_by(Named),
            keyed_by(Region),
            f"field 'items[key]' was {NAMED}, and is fields (name: str, zone: str, col",
        ),
        (keyed_by(Named), keyed_by(ZoneFirst), f"field 'items[key]' was {NAMED}, and is fields (zone: str, name: str)"),
        (keyed_by(Tagged), keyed_by(TaggedElsewhere), f"{NAMED} tagged 'named' in 'type', and is {NAMED}"),
        (keyed_by(str), keyed_by(str | None), "field 'items[key]' was str, and is none or str"),
        (keyed_by(bytes), keyed_by(str), "field 'items[key]' was bytes, and is str"),
        (SetOfNames, SetOfOtherNames, f"field 'names[]' was tuple of {NAMED}, int, and is tuple of fields (zone"),
    ],
)
def test_an_update_that_encodes_keys_otherwise_is_refused(old: Any, new: Any, problem: str) -> None:
    then, now = (topology(one).to_spec().computations[0] for one in (old, new))
    found = state_problem(then, now)
    assert problem in found
    assert bool(problem) is bool(found)
