"""Every stored value carries a format version and a checksum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.envelope import FORMAT_VERSION, HEADER_BYTES, unwrap, wrap
from millwheel.store.contract import CorruptValueError


@given(st.binary(max_size=300))
def test_what_was_wrapped_is_unwrapped(payload: bytes) -> None:
    assert unwrap(wrap(payload), "here") == payload


@given(st.binary(max_size=40), st.data())
def test_a_flipped_bit_is_noticed_and_named(payload: bytes, data: st.DataObject) -> None:
    value = bytearray(wrap(payload))
    value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptValueError) as error:
        unwrap(bytes(value), "entry 7 of journal j")
    assert error.value.where == "entry 7 of journal j"


@given(st.binary(max_size=40), st.integers(0, 44))
def test_a_truncated_value_is_noticed(payload: bytes, keep: int) -> None:
    value = wrap(payload)
    if keep < len(value):
        with pytest.raises(CorruptValueError):
            unwrap(value[:keep], "here")


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(CorruptValueError, match="missing"):
        unwrap(None, "here")


def test_a_newer_format_is_refused_by_its_number() -> None:
    value = bytes((FORMAT_VERSION + 1,)) + wrap(b"x")[1:]
    with pytest.raises(CorruptValueError, match=f"format {FORMAT_VERSION + 1}"):
        unwrap(value, "here")
    assert len(wrap(b"")) == HEADER_BYTES
