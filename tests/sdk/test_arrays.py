"""NumPy's arrays and scalars in values and states. What cannot be read again is refused when it is written (4.4)."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import millwheel as mw
from millwheel import agg
from millwheel.sdk.codecs import codec_for, state_codec_for
from millwheel.sdk.errors import UnsupportedTypeError
from millwheel.sdk.ranking import rank_bytes
from millwheel.sdk.round_trip import difference
from millwheel.sdk.spreading import bytes_of
from millwheel.testing import TopologyHarness

NOON = mw.Timestamp(1_700_000_000_000_000)


class Sample(msgspec.Struct):
    sensor: str
    values: NDArray[np.float64]
    gain: np.float32 = np.float32(1)
    count: np.int16 = np.int16(0)
    good: np.bool_ = np.True_


class Model(msgspec.Struct):
    total: NDArray[np.float64] = msgspec.field(default_factory=lambda: np.zeros(2))
    seen: int = 0
    last: float = 0.0


class Grown(mw.GrowingState):
    samples: mw.ListState[NDArray[np.float64]]
    weights: NDArray[np.float64] | None = None


class Learn(mw.Computation[Sample, Model]):
    def process_record(self, ctx: mw.Context[Model], record: mw.Record[Sample]) -> None:
        ctx.state.total += record.value.values
        ctx.state.seen += 1
        ctx.state.last = np.mean(record.value.values)  # type: ignore[assignment]  # it is a float64
        ctx.produce("totals", Sample(ctx.key, ctx.state.total))


class Grow(mw.Computation[Sample, Grown]):
    def process_record(self, ctx: mw.Context[Grown], record: mw.Record[Sample]) -> None:
        ctx.state.samples.append(record.value.values)
        ctx.state.weights = record.value.values * 2


DTYPES = ["?", "i1", "u8", "<f2", "f4", ">f8", "c16", "M8[us]", "U3", "S2"]
shapes = st.lists(st.integers(0, 3), max_size=3)


@given(dtype=st.sampled_from(DTYPES), shape=shapes, seed=st.integers(0, 99))
def test_an_array_is_read_as_it_was(dtype: str, shape: list[int], seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 2, shape)
    array = np.asarray(numbers if np.dtype(dtype).kind in "USM" else numbers / 2).astype(dtype)
    if np.dtype(dtype).kind == "f" and array.size:
        array.flat[0] = np.nan
    for kind in (np.ndarray, NDArray[Any], list[np.ndarray]):
        codec = codec_for(kind, "stream 'arrays'")
        value: Any = [array] if kind == list[np.ndarray] else array
        back: Any = codec.decode(codec.verify(value))
        read = back[0] if kind == list[np.ndarray] else back
        assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())
        read.fill(read.dtype.type())  # it is the reader's own
        assert state_codec_for(kind | None, "c").verify(value) == codec.encode(value)


@given(number=st.floats(width=32) | st.integers(-100, 100))
def test_a_scalar_is_read_as_it_was(number: float) -> None:
    kinds = [np.float64, np.float32] if isinstance(number, float) else [np.int8, np.int64, np.float64]
    for kind in kinds:
        codec = codec_for(kind, "stream 'numbers'")
        back = codec.decode(codec.verify(kind(number)))
        assert type(back) is kind
        assert back == number or number != number


REFUSED: list[tuple[Any, Any, str]] = [
    (NDArray[np.float64], np.zeros(2, np.float32), "the array has dtype float32, not float64"),
    (NDArray[np.integer], np.zeros(2), "the array has dtype float64, not integer"),
    (np.ndarray, np.array([object()]), "an array of dtype object cannot be encoded"),
    (np.ndarray, np.zeros(1, [("a", "i4")]), "cannot be encoded"),
    (list[float], np.zeros(3), "carries list"),
    (list[list[float]], [np.zeros(3)], "could not be read again"),
    (list[np.int8], [np.int64(300)], "could not be read again"),
    (list[np.float32], [np.float64(0.1)], "0.1 is no float32"),
    (list[np.int64], [True], "True is no int64"),
    (list[np.bool_], [1], "1 is no bool"),
]


@pytest.mark.parametrize(("kind", "value", "message"), REFUSED)
def test_what_is_of_another_type_is_refused(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(mw.ValueEncodeError, match=message):
        codec_for(kind, "stream 'arrays'").verify(value)


@pytest.mark.parametrize("kind", [np.longdouble, np.datetime64, np.generic, np.random.Generator])
def test_a_type_that_cannot_be_stored_is_refused(kind: type) -> None:
    with pytest.raises(UnsupportedTypeError, match="is no type known"):
        codec_for(kind, "stream 'arrays'")


@pytest.mark.guarantee("G12", section="4.4")
def test_states_with_arrays_outlive_a_crash() -> None:
    topology = mw.Topology("sensors")
    samples = topology.source("samples", Sample).key_by("sensor")
    samples.process("learn", Learn, {"totals": Sample})
    samples.process("grow", Grow, {})
    samples.aggregate("sums", total=agg.sum(lambda sample: float(sample.values.sum()), float))
    harness = TopologyHarness(topology)
    for number in range(3):
        harness.send("samples", Sample("a", np.array([number, 1.5])), timestamp=NOON)
        harness.crash()
    model, grown = harness.state("learn", "a"), harness.state("grow", "a")
    assert (model.total.tolist(), model.seen, model.last) == ([3.0, 4.5], 3, 1.75)
    assert [one.tolist() for one in grown.samples] == [[0, 1.5], [1, 1.5], [2, 1.5]]
    assert grown.weights.tolist() == [4, 3]
    assert harness.values("totals")[-1].values.tolist() == [3.0, 4.5]
    assert [one.total for one in harness.values("sums")] == [1.5, 4.0, 7.5]


class Summed(mw.Computation[Sample, NDArray[np.float64] | None]):
    def process_record(self, ctx: mw.Context[NDArray[np.float64] | None], record: mw.Record[Sample]) -> None:
        ctx.state = record.value.values if ctx.state is None else ctx.state + record.value.values


def test_a_state_in_order_may_be_an_array() -> None:
    topology = mw.Topology("t")
    topology.source("samples", Sample).key_by("sensor").ordered_by_time().process("sums", Summed, {})
    harness = TopologyHarness(topology)
    for _ in range(2):
        harness.send("samples", Sample("a", np.ones(3)), NOON)
    harness.finish()
    assert harness.state("sums", "a").state.tolist() == [2, 2, 2]


NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (np.float32, np.float32(NAN)),
        (float, np.float64(NAN)),
        (list[np.float32], [np.float32(NAN), np.float32(1)]),
        (deque[float], deque([1.0, NAN])),
        (deque[NDArray[np.float64]], deque([np.ones(2), np.array([NAN])])),
        (deque[deque[np.float32]], deque([deque([np.float32(NAN)])])),
    ],
)
def test_nan_and_arrays_are_read_in_any_container(kind: Any, value: Any) -> None:
    codec, of_states = codec_for(kind, "stream 's'"), state_codec_for(kind | None, "computation 'c'")
    for encoded, decode in ((codec.verify(value), codec.decode), (of_states.verify(value), of_states.decode)):
        back = decode(encoded)
        assert repr(back) == repr(kind(value) if kind is float else value)


@pytest.mark.parametrize(("value", "other"), [(np.float32(NAN), 1.0), (1.0, NAN), (np.array(NAN), NAN), ("nan", NAN)])
def test_nan_equals_nothing_but_nan(value: Any, other: Any) -> None:
    assert difference(value, other) is not None


def test_a_state_that_is_changed_to_another_dtype_is_refused() -> None:
    codec = state_codec_for(Model, "computation 'learn'")
    assert codec.decode(codec.verify(Model(np.array([1.0, np.nan])))).total.shape == (2,)
    with pytest.raises(mw.ValueEncodeError, match=r"the array has dtype int64, not float64"):
        codec.verify(Model(np.array([1, 2])))


def test_arrays_have_an_order_and_a_hash() -> None:
    long, other = np.arange(5_000), np.arange(5_000)
    other[2_500] = 0
    assert rank_bytes([long]) != rank_bytes([other])
    assert bytes_of(Sample("a", np.zeros(2))) == bytes_of(Sample("a", np.zeros(2)))


def test_nothing_imports_numpy() -> None:
    program = "import sys, millwheel, millwheel.testing; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
