"""What is produced without a context is what a hook produces through one (section 4.3)."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_VALUE_BYTES
from millwheel.model.time import MAX_TIMESTAMP, Timestamp
from millwheel.sdk.context import production_of
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
