"""Records of a table go to the interval of their key, with their ids."""

from __future__ import annotations

from array import array
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")

from millwheel.client.injector.dividing import divided
from millwheel.rpc.columns import RecordColumns

BOUNDS = st.lists(st.binary(min_size=1, max_size=2), unique=True, max_size=20).map(sorted)
KEYS = st.lists(st.text(max_size=2) | st.sampled_from(["é", "z", "\U0001f600"]), max_size=50)


@given(KEYS, BOUNDS, st.integers(0, 2**64 - 100), st.booleans())
def test_each_record_goes_to_the_interval_of_its_key(keys: list[str], starts: list[bytes], first: int, run: bool) -> None:
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
