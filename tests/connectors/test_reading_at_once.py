"""The records of a read are produced at once, with the same effects as one by one (5.2; G1, G7)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors.reading import MAX_BYTES
from millwheel.model.limits import MAX_VALUE_BYTES
from tests.connectors.given import Numbers, World, at, bad, running

NOW = at(0)
FAR = mw.Timestamp(NOW + mw.days(400))
OUT_OF_ORDER = mw.seconds(5)
LARGE = "x" * (MAX_VALUE_BYTES + 1)


class Given(NamedTuple):
    """A record of a split, and what becomes of it."""

    value: Any
    time: mw.Timestamp | None
    fault: str
    """What is said of it as a bad record. Empty: it is none."""


RECORDS = st.one_of(
    st.builds(lambda text, second: Given(text, at(second), ""), st.text(max_size=3), st.integers(-50, 50)),
    st.sampled_from([
        Given("no time", None, ""),
        Given("far", FAR, "is more than a year ahead"),
        Given("old", mw.Timestamp(0), "is before 1980"),
        Given(17, at(1), "carries str, not int"),
        Given(LARGE, at(2), "1,048,5"),
        Given(bad("a"), None, "it is no number"),
    ]),
)  # fmt: skip


def outcome(records: list[Given], most: int, *, derived: bool) -> tuple[Any, ...]:
    """What is read with so many records in a read."""
    source: Any = Numbers(World({"a": [(one.value, one.time) for one in records]}, final=False), most)
    topology = mw.Topology("shop")
    stream = topology.source("words", str, source, out_of_order=OUT_OF_ORDER, bad="unfit")
    if derived:
        stream.map(str.upper, str).named("loud")
    with running(topology, now=NOW, any_timestamp=False) as harness:
        state = harness.state("words-reader", "a")
        produced = [(one.value, one.timestamp) for one in harness.produced("words")]
        loud = harness.values("loud") if derived else []
        return produced, harness.values("unfit"), loud, state.watermark, state.records, state.position


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G7")
@settings(max_examples=40)
@given(records=st.lists(RECORDS, max_size=8), derived=st.booleans())
def test_a_read_is_as_its_records_one_by_one(records: list[Given], derived: bool) -> None:
    at_once = outcome(records, 100, derived=derived)
    assert at_once == outcome(records, 1, derived=derived)
    produced, unfit, loud, watermark, count, position = at_once
    fine = [(one.value, one.time or NOW) for one in records if not one.fault]
    faults = [one.fault for one in records if one.fault]
    assert produced == fine
    assert len(unfit) == len(faults)
    assert all(fault in one.error for fault, one in zip(faults, unfit, strict=True))
    assert loud == ([value.upper() for value, _ in fine] if derived else [])
    assert watermark == max((time - OUT_OF_ORDER for _, time in fine), default=mw.MIN_TIMESTAMP)
    assert count == position == len(records)


@pytest.mark.guarantee("G13")
def test_a_read_of_many_bytes_is_not_encoded_whole() -> None:
    """Regression: records that share what is large in them were all encoded before their bytes were counted."""
    encoded: list[str] = []

    def encode(text: str) -> bytes:
        encoded.append(text)
        return text.encode()

    source: Any = Numbers(World({"a": [("x" * 100_000, at(1))] * 1_000}), 1_000)
    topology = mw.Topology("shop")
    topology.source("words", str, source, codec=mw.Codec(encode, bytes.decode))
    with pytest.raises(mw.UsageError, match="is the limit"), running(topology):
        pass
    fit = MAX_BYTES // 100_000 + 1
    assert fit < len(encoded) < 3 * fit


def second_of(row: dict[str, Any]) -> mw.Timestamp:
    """The time of a row, which it takes out of the row."""
    return at(float(row.pop("t")))


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize(
    ("unfit", "fault"),
    [
        (None, ""),
        ({"v": 3}, "KeyError: 't'"),
        ({"t": "soon", "v": 3}, "ValueError: could not convert string to float: 'soon'"),
        ({"t": 3, "v": "three"}, "Expected `int`, got `str`"),
        (bad("a"), "it is no number"),
    ],
)
def test_a_time_is_asked_for_once(unfit: Any, fault: str, derived: bool) -> None:
    """Regression: records beside a bad one, and those of streams with derived ones, were asked twice."""
    for most in (1, 100):
        rows = [{"t": 1, "v": 1}, *([] if unfit is None else [unfit]), {"t": 2, "v": 2}]
        copies: list[Any] = [(dict(row) if isinstance(row, dict) else row, None) for row in rows]
        topology = mw.Topology("shop")
        source: Any = Numbers(World({"a": copies}), most)
        stream = topology.source("rows", dict[str, int], source, timestamp=second_of, bad="unfit")
        if derived:
            stream.map(len, int).named("sizes")
        with running(topology) as harness:
            produced = [(one.value, one.timestamp) for one in harness.produced("rows")]
            assert produced == [({"v": 1}, at(1)), ({"v": 2}, at(2))]
            assert [fault in one.error for one in harness.values("unfit")] == [True] * (unfit is not None)


def test_a_bad_record_is_none_of_a_stream_of_all_types() -> None:
    source: Any = Numbers(World({"a": [("fine", at(1)), (bad("a"), at(2))]}), 100)
    topology = mw.Topology("shop")
    topology.source("words", object, source, bad="unfit")
    with running(topology, now=NOW) as harness:
        assert (harness.values("words"), len(harness.values("unfit"))) == (["fine"], 1)
