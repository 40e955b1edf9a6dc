"""What is produced without a context is what a hook produces through one (section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_VALUE_BYTES
from millwheel.model.time import MAX_TIMESTAMP, Timestamp
from millwheel.sdk.context import production_of, productions_of
from millwheel.sdk.effects import Production, each_target
from millwheel.sdk.scope import FixedRoute, OutputBinding, Scope, route_of_all

TARGETS = ((IncarnationId("one.1"), b"k"), (IncarnationId("sink.1"), b""))


def encode(value: Any) -> Any:
    if value == 7:
        raise ValueError("a value that is not encoded")
    return value


def outcome(value: Any, stream: str, at: Timestamp, by_context: bool) -> Any:
    """The productions and their counted bytes, or the error. ``by_context``: a derived stream needs a context."""
    binding = OutputBinding("out", encode, lambda value: TARGETS)
    if by_context:
        binding.derived = ((OutputBinding("none", encode, lambda value: ()), lambda value: ()),)
    scope = Scope("test", {"out": binding}, int, int, False, any_timestamp=False)
    try:
        return production_of(scope, stream, at)(b"key", value), scope.produced_bytes
    except Exception as error:
        return type(error), str(error), scope.produced_bytes


@pytest.mark.parametrize("at", [1_700_000_000_000_000, 5, MAX_TIMESTAMP + 1])
@pytest.mark.parametrize("stream", ["out", "elsewhere"])
@pytest.mark.parametrize("value", [b"", b"some", bytearray(b"buffer"), bytes(MAX_VALUE_BYTES + 1), 7])
def test_a_production_without_a_context_is_the_same(value: Any, stream: str, at: int) -> None:
    assert outcome(value, stream, Timestamp(at), False) == outcome(value, stream, Timestamp(at), True)


def scope_of(keyed: Sequence[IncarnationId], fixed: Any = ()) -> Scope:
    """An output with ``keyed`` consumers, whose keys are in the values, and with ``fixed`` ones."""
    binding = OutputBinding(
        "out", encode, lambda value: (*((one, extracted(value)) for one in keyed), *fixed),
        route_of_all([(one, extracted) for one in keyed], fixed),
    )  # fmt: skip
    return Scope("test", {"out": binding}, int, int, False, any_timestamp=False)


def extracted(value: Any) -> bytes:
    return bytes(value)[:1] * 2


@pytest.mark.guarantee("G1", section="4.2")
def test_fewer_values_than_keys_are_no_productions() -> None:
    """The encoded ones may be complete. A consumer's keys are found in values, and each result needs one."""
    keys, encoded = [b"a", b"b", b"c"], [b"x", b"y", b"z"]
    scope = scope_of([IncarnationId("one.1")])
    several = productions_of(scope, "out", Timestamp(1_700_000_000_000_000))
    assert several is not None
    assert several(keys, encoded[:2], encoded, 10_000) is None
    assert several(keys, [], encoded, 10_000) is None
    assert several(keys, encoded, encoded[:2], 10_000) is None
    assert not scope.produced_bytes
    made = several(keys, encoded, encoded, 10_000)
    assert made is not None
    assert made.targets == (("one.1", [b"xx", b"yy", b"zz"]),)


@pytest.mark.parametrize("why", ["derived", "time", "stream", "none"])
def test_what_needs_a_context_is_never_produced_together(why: str) -> None:
    """So it is known before anything is made or encoded for it."""
    scope = scope_of([IncarnationId("one.1")])
    if why == "derived":
        scope.outputs["out"].derived = ((OutputBinding("none", encode, lambda value: ()), lambda value: ()),)
    at = MAX_TIMESTAMP + 1 if why == "time" else 1_700_000_000_000_000
    several = productions_of(scope, "elsewhere" if why == "stream" else "out", Timestamp(at))
    assert (several is None) == (why != "none")


def test_values_are_not_needed_for_a_log() -> None:
    scope = scope_of([])
    scope.outputs["out"].route = FixedRoute(TARGETS)
    several = productions_of(scope, "out", Timestamp(1_700_000_000_000_000))
    assert several is not None
    made = several([b"a"], [], [b"x"], 10_000)
    assert made is not None
    assert (made.values, made.targets) == ([b"x"], TARGETS)


@pytest.mark.parametrize("room", [10_000, 500, 0])
@pytest.mark.parametrize("at", [1_700_000_000_000_000, 5])
@pytest.mark.parametrize("values", [[b"a"] * 3, [b"a", 7, b"c"], [b"a", bytearray(b"b")], [bytes(MAX_VALUE_BYTES + 1)]])
@pytest.mark.parametrize("keyed", [[], [IncarnationId("one.1")], [IncarnationId("one.1"), IncarnationId("two.1")]])
@pytest.mark.parametrize("fixed", [(), TARGETS[1:]])
def test_many_productions_are_those_of_each(values: list[Any], at: int, room: int, keyed: Any, fixed: Any) -> None:
    """Or there is none, and none is counted: then each is produced by itself."""
    scopes = [scope_of(keyed, fixed) for _ in range(2)]
    keys = [b"key-%d" % number for number in range(len(values))]
    several = productions_of(scopes[0], "out", Timestamp(at))
    assert several is not None
    made = several(keys, values, None, room)
    one = production_of(scopes[1], "out", Timestamp(at))
    if made is None:
        assert not scopes[0].produced_bytes
        assert room < 1_000 or {type(value) for value in values} != {bytes} or len(values[0]) > 1
        return
    assert scopes[0].produced_bytes < room
    one_by_one = [one(key, value) for key, value in zip(keys, values, strict=True)]
    columns = zip(made.values, each_target(made.targets, len(values)), strict=False)
    assert [[Production(made.stream, value, made.timestamp, to)] for value, to in columns] == one_by_one
    assert (made.keys, scopes[0].produced_bytes) == (keys, scopes[1].produced_bytes)
