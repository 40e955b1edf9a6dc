"""Small tables: read as any other table, in fewer steps (5.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from millwheel.client.injector.small_tables import SmallTables
from millwheel.client.injector.table_data import arrow_of
from millwheel.client.injector.tables import plain_table, table_parts
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.errors import UsageError, ValueEncodeError

pytestmark = pytest.mark.paper(section="5.2")
TIMES = [4_000, 3_000, 2_000, 1_000]
COLUMNS = {
    "texts": pa.array(["a", "b", None, "d"]),
    "flags": pa.array([True, False, True, True]),
    "bytes": pa.array([b"a", b"", None, b"d"]),
    "numbers": pa.array([None, -2, 3, 4]),
    "fractions": pa.array([1.5, None, float("nan"), 4]),
    "small": pa.array([1, None, 3, 255], pa.uint8()),
    "short": pa.array([1.5, None, 3, 4], pa.float32()),
    "long": pa.array(["a", "b", None, "d"], pa.large_string()),
    "long_bytes": pa.array([b"a", b"b", None, b"d"], pa.large_binary()),
    "view": pa.array(["a", "a text that is longer than twelve bytes", None, "d"], pa.string_view()),
}


def check_as_any_other(whole: Any, part: Any) -> None:
    small = SmallTables()
    assert small.read(whole, "at") is None
    small.learn(whole, "at")
    found = small.read(part, "at")
    ((values, stamps),) = table_parts(plain_table(part, "at"))
    assert found is not None
    records = found.records()
    assert values.schema.equals(records.batch.schema, check_metadata=True)
    assert records.batch.to_pydict().keys() == values.to_pydict().keys()
    assert list(records) == list(RecordColumns(values, stamps))
    assert (records.timestamps, len(found)) == (stamps, len(part))
    assert (found.oldest, found.newest) == (min(stamps), max(stamps))
    # Arrow may keep the validity of a column without nulls: a bit for each row.
    assert 0 <= records.size - RecordColumns(values, stamps).size <= len(found.columns)
    assert 0 <= found.size - records.size <= 5 * len(found.columns), "Arrow counts no offset behind the last text"


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("rows", [(0, 4), (1, 2), (3, 1)])
def test_a_small_table_is_read_as_any_other(name: str, rows: tuple[int, int]) -> None:
    """From the second one on, the schema is known. A part of a larger table counts with its own bytes alone."""
    whole = pa.table({"key": ["x"] * 4, name: COLUMNS[name], "at": TIMES}).replace_schema_metadata({"pandas": "x"})
    check_as_any_other(whole, whole.slice(*rows))
    check_as_any_other(whole.to_batches()[0], whole.to_batches()[0].slice(*rows))


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("ms", "Europe/Berlin")]
)
def test_times_of_a_small_table_are_microseconds(kind: pa.DataType) -> None:
    times = pa.array([-1, 1_999, 2_001, 5], pa.int64()).cast(kind)
    whole = pa.table({"at": times, "key": ["x"] * 4})
    check_as_any_other(whole, whole.slice(1, 3))
    check_as_any_other(whole, whole)


def test_small_tables_are_read_by_old_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of pyarrow before 19 join tables alone."""
    monkeypatch.delattr(pa, "concat_batches")
    whole = pa.table({"key": ["x"] * 4, "numbers": COLUMNS["numbers"], "at": TIMES})
    check_as_any_other(whole, whole.slice(1, 2))
    check_as_any_other(whole, whole)


def test_metadata_of_columns_is_not_sent() -> None:
    """Two schemas count as equal if only their metadata differ, and these may be of any size."""
    small, usual = SmallTables(), pa.table({"key": ["a"], "at": [1]})
    small.learn(usual, "at")
    fields = [pa.field("key", pa.string(), metadata={"note": "x" * 100_000}), pa.field("at", pa.int64())]
    found = small.read(pa.table({"key": ["a"], "at": [1]}, pa.schema(fields)), "at")
    assert found is not None
    assert found.records().batch.schema.field("key").metadata is None
    assert found.batch.schema.field("key").metadata is None


BAD_TEXT = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
)


@pytest.mark.parametrize(
    "other",
    [
        pa.table({"key": ["a"], "at": pa.array([None], pa.int64())}),
        pa.table({"key": ["a"], "at": pa.array([1], pa.timestamp("us"))}),
        pa.table({"key": [1], "at": [1]}),
        pa.table({"at": [1], "key": ["a"]}),
        pa.table({"key": [], "at": []}, pa.schema([("key", pa.string()), ("at", pa.int64())])),
        pa.concat_tables([pa.table({"key": ["a"], "at": [1]})] * 2),
        pa.table({"key": ["a"] * 3_000, "at": [1] * 3_000}),
        pa.table({"key": ["a" * 1_000] * 300, "at": [1] * 300}),
        pa.table({"key": ["a" * 1_000] * 900, "at": [1] * 900}).slice(0, 300),
        pa.table({"key": BAD_TEXT, "at": [1]}),
    ],
    ids=["null", "times", "type", "order", "empty", "chunks", "rows", "bytes", "part", "text"],
)
def test_what_is_no_small_table_goes_the_usual_way(other: object) -> None:
    small, usual = SmallTables(), pa.table({"key": ["a"], "at": [1]})
    small.learn(usual, "at")
    assert small.read(usual, "at") is not None
    assert small.read(usual, "key") is None
    assert small.read(other, "at") is None


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1], pa.uint64()), pa.array([1], pa.timestamp("us")), pa.array([[1]]), pa.array([None], pa.null()),
        pa.array(["a"]).dictionary_encode(), pa.array([1.5], pa.float16()),
    ],
    ids=str,
)  # fmt: skip
def test_other_columns_need_a_look_at_their_values(column: Any) -> None:
    small, whole = SmallTables(), pa.table({"more": column, "at": [1]})
    small.learn(whole, "at")
    assert small.read(whole, "at") is None


def test_a_time_that_does_not_fit_goes_the_usual_way() -> None:
    small, usual = SmallTables(), pa.table({"key": ["a"], "at": pa.array([1], pa.timestamp("s"))})
    small.learn(usual, "at")
    large = pa.table({"key": ["a"], "at": pa.array([1 << 60], pa.timestamp("s"))})
    assert small.read(large, "at") is None
    with pytest.raises(UsageError, match="at"):
        plain_table(large, "at")


FRAMES = [
    pd.DataFrame({"key": ["a", None], "number": [1, 2], "at": [1, 2]}, index=[7, 3]),
    pd.DataFrame({"key": [b"a", None], "number": [1.5, float("nan")], "flag": [True, False]}),
    pd.DataFrame({"mixed": pd.Series(["a", 1.5, None], dtype=object)[:1], "none": [None]}),
    pd.DataFrame({"at": pd.to_datetime(["2026-01-01", None]), "kind": pd.Categorical(["a", "b"])}),
    pd.DataFrame({"number": pd.array([1, None], "Int64"), "flag": pd.array([True, None], "boolean")}),
    pd.DataFrame({"arrow": pd.array(["a", None], "string[pyarrow]"), "lists": [[1], None]}),
    pd.DataFrame({1: [1], "at": [2]}),
    pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")])),
    pd.DataFrame({"key": pd.Series([], dtype=str)}),
    pd.DataFrame({"key": ["a"] * 3_000}),
    pd.DataFrame(),
]


@pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
def test_a_small_frame_is_read_as_arrow_reads_it(frame: pd.DataFrame) -> None:
    found, wanted = arrow_of(frame), pa.Table.from_pandas(frame, preserve_index=False)
    assert found.schema.equals(wanted.schema)
    assert found.to_pydict().keys() == wanted.to_pydict().keys()
    assert pa.table(found.to_pydict(), found.schema).equals(pa.table(wanted.to_pydict(), wanted.schema))


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        pd.DataFrame({"mixed": pd.Series(["a", 1.5], dtype=object)}),
        pd.DataFrame({"rare": pd.arrays.SparseArray([0, 1])}),
        pd.DataFrame({"other": [object()]}),
    ],
    ids=["names", "mixed", "sparse", "objects"],
)
def test_a_frame_that_arrow_refuses_gets_its_error(frame: pd.DataFrame) -> None:
    with pytest.raises((TypeError, ValueError)) as wanted:
        pa.Table.from_pandas(frame, preserve_index=False)
    with pytest.raises(ValueEncodeError) as found:
        arrow_of(frame)
    assert str(wanted.value) in str(found.value)
