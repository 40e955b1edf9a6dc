"""Records of a table go to the interval of their key, with their ids."""

from __future__ import annotations

from array import array
from bisect import bisect_right

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millwheel.client.injector.column_division import DELIVERY_BYTES, DELIVERY_RECORDS, divided
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


@pytest.mark.parametrize(("key", "number"), [(b"", 0), (b"0", 1), (b"a", 2), (b"z", 3)])
def test_records_of_one_key_go_to_its_interval(key: bytes, number: int) -> None:
    columns = RecordColumns(pa.record_batch({"text": ["a", "z"]}), array("q", [1, 2]), key)
    ((found, part, ids),) = divided(columns, [b"0", b"a", b"b"], range(2))
    assert (found, len(part), ids) == (number, 2, range(2))


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize(("key", "starts"), [("key", []), (b"", [b"m"]), ("key", [b"m"])], ids=["one", "log", "hot"])
def test_what_is_not_divided_is_cut(key: str | bytes, starts: list[bytes]) -> None:
    """A merge or a log comes, and the part was made for four intervals."""
    count = 2 * DELIVERY_RECORDS + 1
    batch = pa.record_batch({"key": ["a"] * count, "number": pa.array(range(count), pa.int64())})
    found = list(divided(RecordColumns(batch, array("q", range(count)), key), starts, range(7, count + 7)))
    assert [(number, len(part)) for number, part, _ in found] == [(0, DELIVERY_RECORDS)] * 2 + [(0, 1)]
    assert [position for _, _, own in found for position in own] == [*range(7, count + 7)]
    assert [one for _, part, _ in found for one in part.batch["number"].to_pylist()] == [*range(count)]
    assert [time for _, part, _ in found for time in part.timestamps] == [*range(count)]
    assert all(part.batch.get_total_buffer_size() < 2 * part.batch.nbytes for _, part, _ in found), "buffers of its own"


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("starts", [[], [b"b", b"m"]], ids=["one", "three"])
def test_a_delivery_has_few_bytes_with_keys_of_one_interval(starts: list[bytes]) -> None:
    texts = ["x" * 600] * 6_000 + ["y" * (DELIVERY_BYTES + 1)] + ["z"]
    batch = pa.record_batch({"key": [*["a"] * (len(texts) - 1), "c"], "text": texts})
    found = list(divided(RecordColumns(batch, array("q", range(len(texts))), "key"), starts, range(len(texts))))
    assert sorted(position for _, _, own in found for position in own) == [*range(len(texts))]
    assert all(part.batch.nbytes <= DELIVERY_BYTES or len(part) == 1 for _, part, _ in found)
    assert max(len(part) for _, part, _ in found) > 500


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
