"""Records of a table go to the interval of their key, with their ids."""

from __future__ import annotations

from array import array
from bisect import bisect_right

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millwheel.client.injector.dividing import DELIVERY_RECORDS, divided
from millwheel.rpc.columns import RecordColumns

BOUNDS = st.lists(st.binary(min_size=1, max_size=2), unique=True, max_size=20).map(sorted)
KEYS = st.lists(st.text(max_size=2) | st.sampled_from(["é", "z", "\U0001f600"]), max_size=50)


@example(["a", "m", "n", "z"], [b"m", b"n"], 7, True)
@given(KEYS, BOUNDS, st.integers(0, 2**64 - 100), st.booleans())
def test_each_record_goes_to_the_interval_of_its_key(
    keys: list[str], starts: list[bytes], first: int, run: bool
) -> None:
    """By comparison with few bounds, and by a search with many, also where a bound is no text."""
    batch = pa.record_batch({"key": pa.array(keys, pa.string()), "number": pa.array(range(len(keys)), pa.int64())})
    columns = RecordColumns(batch, array("q", range(len(keys))), "key")
    ids = range(first, first + len(keys)) if run else [b"%d" % number for number in range(len(keys))]
    places = [bisect_right(starts, key.encode()) for key in keys]
    found = {number: (part, list(own)) for number, part, own in divided(columns, starts, ids)}
    assert set(found) == (set(places) if starts else {0})
    for number, (part, own) in found.items():
        rows = [row for row, place in enumerate(places) if place == number] if starts else list(range(len(keys)))
        assert part.batch.column("number").to_pylist() == list(part.timestamps) == rows
        assert own == [ids[row] for row in rows]


@pytest.mark.guarantee("G13")
def test_no_delivery_is_larger_with_keys_of_one_interval() -> None:
    count = 2 * DELIVERY_RECORDS + 1
    batch = pa.record_batch({"key": ["z"] * (count - 1) + ["a"]})
    columns = RecordColumns(batch, array("q", range(count)), "key")
    found = [(number, len(part), list(own)) for number, part, own in divided(columns, [b"m"], range(count))]
    assert [one[:2] for one in found] == [(0, 1), (1, DELIVERY_RECORDS), (1, DELIVERY_RECORDS)]
    assert [position for _, _, own in found for position in own] == [count - 1, *range(count - 1)]
    alone = RecordColumns(batch.slice(0, count - 1), array("q", range(count - 1)), "key")
    assert [len(part) for _, part, _ in divided(alone, [b"m"], range(count - 1))] == [DELIVERY_RECORDS] * 2
