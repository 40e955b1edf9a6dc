"""Records as columns of Arrow: their form in a delivery, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.client.injector.tables import plain_table
from millwheel.rpc.column_keys import longest_in
from millwheel.rpc.columns import RecordColumns, bytes_of, extremes_of, has_columns, longest_of
from millwheel.rpc.deliveries import decode_delivery, record_count
from millwheel.rpc.nullable_column import NullableColumn
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.sdk.errors import UsageError
from millwheel.sdk.keys import encode_key
from tests.patience import patience

ROWS: list[dict[str, Any]] = [
    {"text": f"cat-{number}", "raw": b"\xff", "size": number, "share": number / 4, "odd": number % 2 == 1}
    for number in range(600)
]
TIMES = array("q", range(600))


def columns(first: int = 0, end: int = 600) -> RecordColumns:
    """A slice, whose buffers have values before and behind it."""
    return RecordColumns(pa.RecordBatch.from_pylist(ROWS).slice(first, end - first), TIMES[first:end], "text")


def request(message: wire.RecordColumns) -> wire.DeliverRequest:
    ids = wire.PositionIds(sequence="s/p/0", first=3, complete=True)
    return wire.DeliverRequest(columns=message, positions=ids)


@pytest.mark.parametrize(("first", "end"), [(0, 600), (0, 1), (0, 300), (3, 4), (13, 300), (599, 600)])
def test_columns_arrive_as_they_were_sent(first: int, end: int) -> None:
    sent = request(columns(first, end).to_wire())
    delivery = decode_delivery(wire.DeliverRequest.FromString(sent.SerializeToString()), None)
    assert list(map(msgspec.msgpack.decode, delivery.values)) == ROWS[first:end]
    assert list(delivery.keys) == [row["text"].encode() for row in ROWS[first:end]]
    assert list(delivery.timestamps) == list(range(first, end))
    assert sum(map(len, sent.columns.buffers)) <= columns(first, end).batch.nbytes + 8
    assert record_count(sent) == end - first == len(delivery.ids.positions)  # type: ignore[union-attr]


@pytest.mark.guarantee("G9", section="4.3")
@pytest.mark.parametrize("names", [["text", "n"], ["", "two words"], ['a"b', "n"], ["back\\slash", "\n"], []])
def test_a_value_is_the_mapping_of_its_row(names: list[str]) -> None:
    """Each owner sends the same bytes for a row, also one of another release. msgspec's structs have not all names."""
    rows = [dict(zip(names, (f"cat-{number}", number or None), strict=False)) for number in range(600)]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(list(zip(names, (pa.string(), pa.int64()), strict=False))))
    found = RecordColumns(pa.record_batch({"x": range(600)}).select([]) if not names else batch, TIMES, b"")
    encoded = [msgspec.msgpack.encode(row) for row in rows]
    assert list(found) == encoded
    for some in (slice(None), slice(250, 513), slice(256, 512), slice(600, 700), slice(9, 3), slice(500, 2, -7)):
        assert found[some] == encoded[some]
    assert [found[at] for at in (0, 255, 256, 599)] == [encoded[at] for at in (0, 255, 256, 599)]


@pytest.mark.parametrize("key", [b"", b"0", "\N{CAT}".encode()])
def test_one_key_of_all_records_arrives(key: bytes) -> None:
    sent = RecordColumns(pa.record_batch({"text": ["a", "b"]}), array("q", [1, 2]), key)
    found = RecordColumns.from_wire(wire.RecordColumns.FromString(sent.to_wire().SerializeToString()))
    for keys in (sent.keys(), found.keys()):
        assert (list(keys), keys[1], keys.extremes()) == ([key] * 2, key, (key, key))
        assert (keys.longest, keys.has_texts, keys.column) == (len(key), True, None)
    assert (found.key, sent.keyed("text").keys()[1]) == (key, b"b")


some = st.fixed_dictionaries(
    {
        "n": st.integers(-(1 << 63), (1 << 63) - 1),
        "whole": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "share": st.none() | st.floats(allow_nan=False),
        "odd": st.none() | st.booleans(),
        "text": st.none() | st.text(max_size=3),
        "raw": st.none() | st.binary(max_size=3),
    }
)
KINDS = pa.schema(
    [("n", pa.int64()), ("whole", pa.int64()), ("share", pa.float64()), ("odd", pa.bool_()), ("text", pa.string()),
     ("raw", pa.binary())]
)  # fmt: skip


@given(st.lists(some, min_size=1, max_size=20), st.integers(0, 3))
def test_nulls_and_keys_of_integers_arrive_as_sent(rows: list[dict[str, Any]], before: int) -> None:
    batch = pa.RecordBatch.from_pylist([*rows[:1] * before, *rows], KINDS).slice(before)
    sent = RecordColumns(batch, array("q", range(len(rows))), "n")
    message = sent.to_wire()
    found = decode_delivery(request(wire.RecordColumns.FromString(message.SerializeToString())), None)
    assert list(map(msgspec.msgpack.decode, found.values)) == rows
    assert list(found.keys) == [encode_key(row["n"]) for row in rows] == list(sent.keys())
    assert len(message.with_nulls) == sum(None in [row[name] for row in rows] for name in KINDS.names)
    assert isinstance(found.values, RecordColumns)
    for records in (sent, found.values):
        for name in KINDS.names[:-1]:
            column = records.column(name, np.arange(len(rows)))
            nulls = isinstance(column, NullableColumn)
            items = column.items.tolist() if nulls else column.tolist()
            valid = column.valid.tolist() if nulls else [True] * len(rows)
            one_by_one = [one if there else None for one, there in zip(items, valid, strict=True)]
            assert one_by_one == [row[name] for row in rows]


def test_columns_without_a_key_have_empty_keys() -> None:
    assert columns(0, 3).keyed(b"").keys().tolist() == [b"", b"", b""]


class Unfit:
    """Finds a library that does not fit the system."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """As Python's own finders do."""
        if name == "pyarrow":
            raise ImportError(f"lib{name}.so: cannot open shared object file")


@pytest.mark.guarantee("G8")
def test_a_library_that_cannot_be_loaded_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error would end the reading of a sender's call, or an interval at each of its owners."""
    monkeypatch.delitem(sys.modules, "pyarrow")
    monkeypatch.setattr(sys, "meta_path", [Unfit(), *sys.meta_path])
    try:
        has_columns.cache_clear()
        assert not has_columns()
        with pytest.raises(UsageError, match="cannot open"):
            plain_table(object(), "at")
    finally:
        has_columns.cache_clear()


@given(st.lists(st.binary(max_size=4), min_size=1), st.integers(0, 3))
def test_what_is_asked_of_all_keys_is_that_of_the_list(keys: list[bytes], before: int) -> None:
    batch = pa.record_batch({"key": pa.array([b"zz"] * before + keys, pa.binary())}).slice(before)
    found = RecordColumns(batch, array("q", range(len(keys))), "key").keys()
    assert (found.extremes(), found.longest) == ((min(keys), max(keys)), max(map(len, keys)))
    assert [found[index] for index in range(len(keys))] == keys == list(found) == found[:]
    assert not found.has_texts


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize(("texts", "longest"), [([None, None], 0), ([None, "ab"], 2), ([], 0)])
def test_the_longest_text_beside_nulls(texts: list[str | None], longest: int) -> None:
    """An error would end the reading of a sender's call, and it would send the same delivery again."""
    assert longest_in(pa.array(["long", *texts], pa.string()).slice(1)) == longest


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1))
def test_extremes_are_those_of_the_list(times: list[int]) -> None:
    assert extremes_of(array("q", times)) == extremes_of(times) == (min(times), max(times))


def test_the_sizes_of_parts_add_up() -> None:
    whole = columns()
    assert bytes_of(whole) == bytes_of(whole, 1) + bytes_of(whole, 598) + bytes_of(whole, 1) >= whole.batch.nbytes
    cats = RecordColumns(pa.record_batch({"\N{CAT}" * 9: [True] * 8}), array("q", range(8)))
    assert bytes_of(cats) >= 4 * 9 * 8
    for one in (whole, cats):
        assert longest_of(one) >= max(map(len, one))
    assert longest_of([]) == 0


def of_other_type(message: wire.RecordColumns) -> None:
    message.schema = pa.schema([pa.field("text", pa.list_(pa.string()))]).serialize().to_pybytes()


def of_one_name(message: wire.RecordColumns) -> None:
    message.schema = pa.schema([("text", pa.string()), ("text", pa.string())]).serialize().to_pybytes()


def no_schema(message: wire.RecordColumns) -> None:
    message.schema = b"\xff\xff\xff\xff\x10\0\0\0" + bytes(16)


def a_long_schema(message: wire.RecordColumns) -> None:
    message.schema = pa.schema([pa.field("x" * 70_000, pa.int64())]).serialize().to_pybytes()


def short_offsets(message: wire.RecordColumns) -> None:
    message.buffers[0] = message.buffers[0][:-4]


def offsets_beyond(message: wire.RecordColumns) -> None:
    message.buffers[0] = message.buffers[0][:-4] + b"\xff\xff\xff\x7f"


def a_byte_more(message: wire.RecordColumns) -> None:
    message.buffers[0] += b"\0"


def an_offset_more(message: wire.RecordColumns) -> None:
    message.buffers[0] += message.buffers[0][-4:]


def behind_the_texts(message: wire.RecordColumns) -> None:
    message.buffers[1] += bytes(1 << 20)


def before_the_texts(message: wire.RecordColumns) -> None:
    offsets = array("i", message.buffers[0])
    message.buffers[0] = array("i", (8 + one for one in offsets)).tobytes()
    message.buffers[1] = bytes(8) + message.buffers[1]


def behind_the_numbers(message: wire.RecordColumns) -> None:
    message.buffers[4] += bytes(8)


def behind_the_bits(message: wire.RecordColumns) -> None:
    message.buffers[6] += bytes(1)


def no_text(message: wire.RecordColumns) -> None:
    message.buffers[1] = b"\xff" + message.buffers[1][1:]


def too_few(message: wire.RecordColumns) -> None:
    del message.buffers[-1]


def too_many(message: wire.RecordColumns) -> None:
    message.buffers.append(b"")


def another_key(message: wire.RecordColumns) -> None:
    message.key = "texts"


def a_fraction_as_key(message: wire.RecordColumns) -> None:
    message.key = "share"


def a_column_beyond(message: wire.RecordColumns) -> None:
    message.with_nulls.append(5)


def a_column_twice(message: wire.RecordColumns) -> None:
    message.with_nulls.extend([2, 2])


def no_validity(message: wire.RecordColumns) -> None:
    message.with_nulls.append(2)


def a_longer_validity(message: wire.RecordColumns) -> None:
    message.with_nulls.append(2)
    message.buffers.insert(4, bytes(12))


def a_key_with_nulls(message: wire.RecordColumns) -> None:
    message.with_nulls.append(0)
    message.buffers.insert(0, bytes(11))


def half_a_time(message: wire.RecordColumns) -> None:
    message.timestamps_us = message.timestamps_us[:-1]


def more_times(message: wire.RecordColumns) -> None:
    message.timestamps_us = message.timestamps_us + bytes(8 * 100)


def no_text_as_key(message: wire.RecordColumns) -> None:
    message.key, message.same_key = "", b"\xff"


def long_names(message: wire.RecordColumns, name: str = "x" * 1_000) -> None:
    """Few bytes that would become many records with long names."""
    count = 20_000
    message.schema = pa.schema([(name, pa.bool_())]).serialize().to_pybytes()
    message.key, message.buffers[:], message.timestamps_us = "", [bytes(count // 8)], bytes(8 * count)


def names_of_long_characters(message: wire.RecordColumns) -> None:
    """Each has four bytes."""
    long_names(message, "\N{CAT}" * 250)


@pytest.mark.parametrize(
    "change",
    [of_other_type, of_one_name, no_schema, a_long_schema, short_offsets, offsets_beyond, a_byte_more, an_offset_more,
     behind_the_texts, before_the_texts, behind_the_numbers, behind_the_bits, no_text, too_few, too_many, another_key,
     a_fraction_as_key,
     a_column_beyond, a_column_twice, no_validity, a_longer_validity, a_key_with_nulls,
     half_a_time, more_times, no_text_as_key, long_names, names_of_long_characters],
)  # fmt: skip
def test_malformed_columns_are_refused(change: Callable[[wire.RecordColumns], None]) -> None:
    message = columns(5, 90).to_wire()
    change(message)
    with pytest.raises(ValueError, match=r"column|schema|timestamps|buffers|utf-8"):
        decode_delivery(request(message), None)


def test_records_come_in_one_form() -> None:
    both = request(columns(0, 2).to_wire())
    both.keys.extend([b"a", b"b"])
    with pytest.raises(ValueError, match="beside them"):
        decode_delivery(both, None)


def test_numbers_of_a_column_are_those_of_its_records() -> None:
    numbers = [-(2**63), 2**63 - 1, 5, 6]
    floats = [-0.0, float("nan"), float("inf"), 0.1]
    batch = pa.record_batch({"n": numbers, "f": floats, "b": [True, False, True, True], "s": [*"abcd"], "r": [b""] * 4})
    for records in (
        RecordColumns(batch, array("q", range(4))),
        RecordColumns.from_wire(RecordColumns(batch.slice(1, 3), array("q", range(3)), "s").to_wire()),
        RecordColumns(batch.slice(1, 2), array("q", range(2))),
    ):
        assert records.kinds() == {"n": int, "f": float, "b": bool, "s": str, "r": bytes}
        rows = [msgspec.msgpack.decode(value) for value in records]
        assert records.column("n", slice(None)).tolist() == [row["n"] for row in rows]
        assert repr(records.column("f", slice(None)).tolist()) == repr([row["f"] for row in rows])
        assert records.column("b", slice(None)).tolist() == [row["b"] for row in rows]
        some = np.array([1, 0])
        for name in ("n", "b", "s"):
            assert records.column(name, some).tolist() == [rows[1][name], rows[0][name]]
        assert (records.column("n", slice(None)).dtype, records.column("f", slice(None)).dtype) == ("<i8", "<f8")


def test_numbers_load_no_pandas() -> None:
    """A worker would lose a third of a second with the first delivery, and memory for good."""
    pytest.importorskip("pandas")
    program = (
        "import sys, pyarrow as pa; from array import array; from millwheel.rpc.columns import RecordColumns\n"
        "column = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(bytes(16))])\n"
        "records = RecordColumns(pa.RecordBatch.from_arrays([column], ['n']), array('q', [1, 2]))\n"
        "print(records.column('n', slice(None)).tolist(), 'pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, timeout=patience(30), check=True)
    assert found.stdout == "[0, 0] False\n"
