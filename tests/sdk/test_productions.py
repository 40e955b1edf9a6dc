"""What is produced without a context is what a hook produces through one (section 4.3)."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_VALUE_BYTES
from millwheel.model.time import MAX_TIMESTAMP, Timestamp
from millwheel.sdk.context import production_of, productions_of
from millwheel.sdk.effects import Production, each_target
from millwheel.sdk.scope import OutputBinding, Scope

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


@pytest.mark.parametrize("room", [10_000, 500, 0])
@pytest.mark.parametrize("at", [1_700_000_000_000_000, 5])
@pytest.mark.parametrize("values", [[b"a"] * 3, [b"a", 7, b"c"], [b"a", bytearray(b"b")], [bytes(MAX_VALUE_BYTES + 1)]])
@pytest.mark.parametrize("targets", [TARGETS, ()])
def test_many_productions_are_those_of_each(values: list[Any], at: int, room: int, targets: Any) -> None:
    """Or there is none, and none is counted: then each is produced by itself."""
    scopes = [
        Scope(
            "test", {"out": OutputBinding("out", encode, lambda value: targets)}, int, int, False, any_timestamp=False
        )
        for _ in range(2)
    ]
    keys = [b"key-%d" % number for number in range(len(values))]
    made = productions_of(scopes[0], "out", Timestamp(at))(keys, values, None, room)
    one = production_of(scopes[1], "out", Timestamp(at))
    if made is None:
        assert not scopes[0].produced_bytes
        assert at == 5 or room < 1_000 or {type(value) for value in values} != {bytes} or len(values[0]) > 1
        return
    assert scopes[0].produced_bytes < room
    one_by_one = [one(key, value) for key, value in zip(keys, values, strict=True)]
    columns = zip(made.values, each_target(made.targets, len(values)), strict=False)
    assert [[Production(made.stream, value, made.timestamp, to)] for value, to in columns] == one_by_one
    assert (made.keys, scopes[0].produced_bytes) == (keys, scopes[1].produced_bytes)
