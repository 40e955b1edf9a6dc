"""Values in one buffer are what they are as objects, in each stored and sent form."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.rpc.packed_values import PackedValues, joined_values, sizes_of, stored_form
from millwheel.rpc.v1 import subscription_pb2 as wire

short = st.binary(max_size=4) | st.sampled_from([b"x" * 127, b"x" * 128, b"x" * 255])
lists = st.lists(short, max_size=20)
encode = msgspec.msgpack.Encoder(enc_hook=stored_form).encode


@given(lists, st.integers(-25, 25), st.integers(-25, 25), st.sampled_from([None, 1, 2, -1]))
def test_packed_values_are_a_sequence(values: list[bytes], first: int, end: int, step: int | None) -> None:
    packed = PackedValues.pack(values)
    some = packed[first:end:step]
    assert some == values[first:end:step]
    assert (some.tolist(), list(packed), len(packed)) == (values[first:end:step], values, len(values))
    assert [packed[at] for at in range(-len(values), len(values))] == values + values
    assert (some.size, some.sizes()) == (sum(map(len, some)), list(map(len, some)))
    assert list(sizes_of(some)) == list(sizes_of(list(some)))
    assert some.longest == max(map(len, some)) if some else True
    with pytest.raises(IndexError):
        packed[len(values)]


@given(lists, st.data())
def test_packed_values_are_stored_and_sent_as_others(values: list[bytes], data: st.DataObject) -> None:
    first, end = sorted(data.draw(st.tuples(*[st.integers(0, len(values))] * 2)))
    some, packed = values[first:end], PackedValues.pack(values)[first:end]
    assert encode([1, packed]) == msgspec.msgpack.encode([1, some])
    assert packed.owned() == some
    field = packed.as_field(wire.SubscribeResponse.VALUES_FIELD_NUMBER)
    if field is None:
        assert max(map(len, some)) > 127
    else:
        assert field == wire.SubscribeResponse(values=some).SerializeToString()


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_arrays_of_any_length_are_stored(count: int) -> None:
    assert encode(PackedValues.pack([b"a"] * count)) == msgspec.msgpack.encode([b"a"] * count)


@given(st.lists(st.tuples(st.booleans(), st.lists(short | st.just(b"x" * 256), max_size=6)), max_size=5))
def test_joined_values_keep_their_order(given_parts: list[tuple[bool, list[bytes]]]) -> None:
    parts: list[Any] = [
        PackedValues.pack([b"before", *part])[1:] if packed and max(map(len, part), default=0) <= 255 else part
        for packed, part in given_parts
    ]
    assert list(joined_values(parts)) == [value for _, part in given_parts for value in part]


def test_values_stay_packed_if_most_of_them_are() -> None:
    packed = PackedValues.pack([b"a", b"b", b"c"])
    assert isinstance(joined_values([packed, [b"d"], packed[1:]]), PackedValues)
    assert isinstance(joined_values([packed, [b"d"] * 4]), list)
    assert isinstance(joined_values([packed, [b"d" * 256]]), list)


def test_other_objects_have_no_stored_form() -> None:
    with pytest.raises(TypeError, match="a object has no stored form"):
        encode(object())
