"""Every stored value carries a format version and a checksum."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.envelope import (
    DEFLATED_FORMAT,
    FORMAT_VERSION,
    HEADER_BYTES,
    MAX_DEFLATED_BYTES,
    PIECE_BYTES,
    deflating,
    inflating,
    pack_header,
    unwrap,
    wrap,
    wrap_deflated,
)
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
    value = bytes((DEFLATED_FORMAT + 1,)) + wrap(b"x")[1:]
    with pytest.raises(CorruptValueError, match=f"format {DEFLATED_FORMAT + 1}"):
        unwrap(value, "here")
    assert len(wrap(b"")) == HEADER_BYTES


@given(st.binary(max_size=40), st.integers(0, 9_000))
def test_a_deflated_value_is_the_same_payload(part: bytes, times: int) -> None:
    payload = part * times
    value = wrap_deflated(payload)
    assert unwrap(value, "here") == payload
    assert value == wrap_deflated(payload)
    assert len(value) <= len(wrap(payload))


@pytest.mark.parametrize("size", [24_575, 24_576, 100_000])
def test_only_what_becomes_clearly_smaller_is_deflated(size: int) -> None:
    noise, text = random.Random(size).randbytes(size), bytes(size)
    assert wrap_deflated(noise) == wrap(noise)
    assert wrap_deflated(text)[0] == (DEFLATED_FORMAT if size >= 24_576 else FORMAT_VERSION)
    late_noise = text[:5_000] + noise
    assert wrap_deflated(late_noise) == wrap(late_noise)


def _run(steps: Generator[None, None, bytes]) -> tuple[bytes, int]:
    """The result, and how often it has stopped."""
    stops = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, stops
        stops += 1


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize(("size", "stops"), [(PIECE_BYTES, 0), (PIECE_BYTES + 1, 1), (10 * PIECE_BYTES, 9)])
def test_a_large_payload_is_deflated_and_inflated_in_pieces(size: int, stops: int) -> None:
    payload = b"abcdefgh" * (size // 8) + b"." * (size % 8)
    value = wrap_deflated(payload)
    assert _run(deflating(payload)) == (value, stops)
    assert _run(inflating(value, "here")) == (payload, stops)


def _stated(length: int, content: bytes) -> bytes:
    deflated = struct.pack("<I", length) + content
    return pack_header(DEFLATED_FORMAT, zlib.crc32(deflated)) + deflated


@pytest.mark.parametrize(
    "value",
    [
        _stated(9, zlib.compress(bytes(10))),
        _stated(11, zlib.compress(bytes(10))),
        _stated(10, zlib.compress(bytes(10)) + b"more"),
        _stated(10, zlib.compress(bytes(10))[:-1]),
        _stated(10, b"no stream"),
        _stated(0, zlib.compress(b"")),
        _stated(MAX_DEFLATED_BYTES + 1, zlib.compress(bytes(MAX_DEFLATED_BYTES + 1))),
        pack_header(DEFLATED_FORMAT, zlib.crc32(b"no")) + b"no",
    ],
)
def test_a_deflated_value_has_the_bytes_that_it_states(value: bytes) -> None:
    with pytest.raises(CorruptValueError, match="deflated"):
        unwrap(value, "here")


def test_what_a_length_bounds_takes_no_more_memory() -> None:
    """A small value could be very long. No more than its stated length is read."""
    bomb = _stated(100, zlib.compress(bytes(MAX_DEFLATED_BYTES)))
    with pytest.raises(CorruptValueError, match="the 100 bytes"):
        unwrap(bomb, "here")
