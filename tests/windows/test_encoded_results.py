"""Results that are encoded by columns are those that the codec of their stream encodes (4.3, 4.6)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from millwheel.sdk.codecs import codec_for
from millwheel.sdk.compiled import compile_computation
from millwheel.windows.packed_results import packer_of
from millwheel.windows.result import Result, encoder_of


class Totals(msgspec.Struct):
    n: int
    mean: float | None


KINDS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(),
    float | None: st.none() | st.floats(),
    str: st.text(max_size=300),
    Totals: st.builds(Totals, st.integers(-5, 5), st.none() | st.floats()),
}
times = st.integers(MIN_TIMESTAMP, MAX_TIMESTAMP)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(
    st.data(), st.lists(st.text("ab\x00~") | st.sampled_from([1, 31, 32, 255, 256, 70_000]), max_size=6), times, times
)
def test_results_are_encoded_as_their_codec_does(
    kind: Any, data: st.DataObject, keys: list[Any], start: int, end: int
) -> None:
    texts = [key if isinstance(key, str) else "k" * key for key in keys]
    values = [data.draw(KINDS[kind]) for _ in keys]
    encode = encoder_of(kind, lambda accumulator: accumulator[0])
    assert encode is not None
    made = encode([key.encode() for key in texts], Timestamp(start), Timestamp(end), [(value,) for value in values])
    codec = codec_for(Result[kind], "stream 's'")
    results = [Result(key, Timestamp(start), Timestamp(end), value) for key, value in zip(texts, values, strict=True)]
    assert made == [codec.verify(result) for result in results]


numbers = (
    st.integers(-(2**63), 2**63 - 1) | st.integers(-40, 300) | st.sampled_from([2**16, -(2**15) - 1, 2**32, -(2**31)])
)


@pytest.mark.parametrize("kind", [int, float])
@given(st.data(), st.lists(st.text("ab\x00~", min_size=1, max_size=3) | st.just("k" * 40), min_size=1, max_size=30))
def test_packed_results_are_those_of_the_codec(kind: Any, data: st.DataObject, texts: list[str]) -> None:
    values = [data.draw(numbers if kind is int else st.floats()) for _ in texts]
    start, end = Timestamp(data.draw(times)), Timestamp(data.draw(times))
    of = [key.encode() for key in texts], start, end, [(value,) for value in values]
    encode = encoder_of(kind, lambda accumulator: accumulator[0])
    pack = packer_of(kind, lambda accumulator: accumulator[0])
    assert encode is not None
    assert pack is not None
    packed = pack(*of)
    if packed is None:  # more groups than are worth it
        assert len(texts) > 24
    else:
        assert packed.tolist() == encode(*of)


@pytest.mark.parametrize(
    ("keys", "value"),
    [([b"k"], 2**63), ([b"k"], True), ([b"k"], 1.0), ([b""], 1), (["ä".encode()], 1), ([b"k" * 250], 1), ([], 1)],
)
def test_other_results_are_not_packed(keys: list[bytes], value: Any) -> None:
    pack = packer_of(int, lambda accumulator: accumulator)
    assert pack is not None
    assert pack(keys, Timestamp(0), Timestamp(10), [value] * len(keys)) is None


def test_results_that_are_no_numbers_are_not_packed() -> None:
    assert packer_of(str, str) is None
    assert packer_of(float | None, float) is None


@pytest.mark.parametrize(("key", "value"), [(b"k", True), (b"k", 1.0), (b"k", None), (b"\xff", 1), ("ä".encode(), 1)])
def test_other_results_are_left_to_the_codec(key: bytes, value: Any) -> None:
    encode = encoder_of(int, lambda accumulator: accumulator)
    assert encode is not None
    assert encode([b"a", key], Timestamp(0), Timestamp(10), [5, value]) is None


def test_types_without_an_exact_test_are_left_to_the_codec() -> None:
    assert encoder_of(int | str, int) is None


@pytest.mark.parametrize(
    ("kind", "codec", "by_columns"),
    [
        (Result[int], None, True),
        (Result[int], mw.Codec(msgspec.json.encode, msgspec.json.Decoder(Result[int]).decode), False),
    ],
)
@pytest.mark.parametrize("verify", [True, False])
def test_a_stream_with_another_form_has_its_own_encoding(kind: Any, codec: Any, by_columns: bool, verify: bool) -> None:
    topology = mw.Topology("t")
    topology.source("in", tuple[str, str])
    topology.stream("out", kind, codec=codec)
    made = windows.Aggregate(windows.tumbling(mw.seconds(1)), agg.count(), output="out")
    topology.add(made, name="c", inputs={"in": mw.key(lambda value: value[0])}, outputs={"out": kind})
    compiled = compile_computation(topology, "c", verify=verify).windows
    assert compiled is not None
    assert (compiled.encode_columns is not None, compiled.encode is not None) == (by_columns, verify)
    assert (compiled.pack_columns is not None) is by_columns
