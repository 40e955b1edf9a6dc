"""The records in the bodies of requests: what is read, and what is refused (5.2)."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.connectors.files.parsing import TimestampField, TimeUnit
from millwheel.injectors.http.bodies import (
    MAX_RECORDS,
    BodyForm,
    BodyInflater,
    BodyReader,
    ReadBody,
    form_of,
    read_key,
    read_time,
)
from millwheel.injectors.http.refusals import HttpRefusal

NOW = 1_767_268_800_000_000
VALUES = st.integers(0, 9) | st.sampled_from(["", "[,]", "\n", "ü"])
OBJECTS = st.lists(st.dictionaries(st.sampled_from(["a", "ü\n"]), VALUES), max_size=5)


PLAIN = BodyReader()


def read(body: str | bytes, form: BodyForm = BodyForm.LINES, key: str = "k", reader: BodyReader = PLAIN) -> ReadBody:
    return reader.read(body if isinstance(body, bytes) else body.encode(), form, key, NOW, NOW)


def refusal(body: str | bytes, form: BodyForm = BodyForm.LINES, reader: BodyReader = PLAIN) -> HttpRefusal:
    with pytest.raises(HttpRefusal) as refused:
        read(body, form, reader=reader)
    return refused.value


@given(OBJECTS)
def test_lines_and_arrays_have_the_same_records(objects: list[dict[str, object]]) -> None:
    lines = read("\n".join(map(json.dumps, objects)))
    array = read(json.dumps(objects), BodyForm.JSON)
    assert lines.values == array.values == objects
    assert lines.ids == array.ids
    assert lines.timestamps == [NOW] * len(objects)


def test_an_object_is_one_record_and_lines_may_be_empty() -> None:
    assert read('{"a": 1}', BodyForm.JSON).values == [{"a": 1}]
    found = read('\n{"a": 1}\r\n\n{"a": 2}\n')
    assert (found.values, found.places) == ([{"a": 1}, {"a": 2}], ["line 2", "line 4"])
    assert read(b"").values == []


@given(st.text("k0:", max_size=4), st.text("k0:", max_size=4), st.integers(0, 12), st.integers(0, 12))
def test_ids_of_two_records_differ(one: str, other: str, first: int, second: int) -> None:
    body = "{}\n" * 13
    a, b = read(body, key=one or "k").ids, read(body, key=other or "k").ids
    assert a is not None
    assert b is not None
    assert (a[first] == b[second]) == ((one or "k", first) == (other or "k", second))
    assert read('{"id": "key:0:k"}', reader=BodyReader(id_field="id")).ids != read("{}", key="k").ids


def test_ids_and_times_come_from_fields() -> None:
    reader = BodyReader(TimestampField("at", TimeUnit.SECONDS), "meta.id")
    found = read('{"at": 1767268801, "meta": {"id": 7}}', key="", reader=reader)
    assert (found.timestamps, found.ids) == ([NOW + 1_000_000], ["id:7"])
    assert read("{}", key="").ids is None
    for body, wrong in (
        ('{"at": 1767268801}', "no field 'meta.id'"),
        ('{"meta": {"id": "a"}}', "no field 'at'"),
        ('{"at": 1767268801000, "meta": {"id": "a"}}', "did you mean --unit ms?"),
        ('{"at": 7, "meta": {"id": "a"}}', "--any-timestamp"),
    ):
        assert wrong in refusal(body, reader=reader).message
    assert read('{"at": 7, "meta": {"id": "a"}}', reader=BodyReader(reader.timestamp, "meta.id", True)).timestamps == [
        7_000_000
    ]


def test_wrong_records_are_named_up_to_ten() -> None:
    error = refusal("{}\n" + "7\n" * 12)
    assert [problem.where for problem in error.problems] == [f"line {number}" for number in range(2, 12)]
    assert (error.status, error.reason) == (400, "RECORD_REFUSED")
    assert refusal('[{}, 7, "x"]', BodyForm.JSON).problems[0].where == "element 2"
    assert refusal("[{}", BodyForm.JSON).reason == refusal("", BodyForm.JSON).reason == "BODY_MALFORMED"
    assert refusal(b'"\xff"', BodyForm.JSON).status == 400
    assert refusal(b"[" * 100_000, BodyForm.JSON).status == 400
    assert refusal(b"[" * 100_000).status == 400


@pytest.mark.parametrize("body", ["{}\n" * (MAX_RECORDS + 1), "\n" * 100_000, f"[{'{},' * MAX_RECORDS}{{}}]"])
def test_a_body_has_a_bounded_number_of_records(body: str) -> None:
    form = BodyForm.JSON if body.startswith("[") else BodyForm.LINES
    assert refusal(body, form).status == 413


@given(st.binary(max_size=300), st.integers(1, 50))
def test_gzip_is_unpacked_in_any_parts(data: bytes, step: int) -> None:
    packed = gzip.compress(data[:100]) + gzip.compress(data[100:])
    inflater = BodyInflater(len(data))
    assert b"".join(inflater.feed(packed[at : at + step]) for at in range(0, len(packed), step)) == data
    inflater.end()


def unpack(packed: bytes) -> bytes:
    inflater = BodyInflater(1_000)
    data = inflater.feed(packed)
    inflater.end()
    return data


def test_gzip_never_unpacks_more_than_it_may() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    with pytest.raises(HttpRefusal) as refused:
        BodyInflater(1_000).feed(bomb)
    assert refused.value.status == 413
    for wrong in (b"x", zlib.compress(b"{}"), gzip.compress(b"{}")[:-1]):
        with pytest.raises(HttpRefusal, match="no gzip"):
            unpack(wrong)
    with pytest.raises(HttpRefusal):
        BodyInflater(1_000).end()


def test_headers_are_read() -> None:
    assert read_key(' "a b" ', "K") == read_key("a b", "K") == "a b"
    assert read_key("", "K") == ""
    assert read_key('"', "K") == '"'
    for wrong in ("k" * 256, "ä", "a\tb", "\udcff"):
        with pytest.raises(HttpRefusal):
            read_key(wrong, "K")
    assert read_time("2026-01-01T13:00:00+01:00", "T", NOW, any_timestamp=False) == NOW
    for wrong in (
        "yesterday",
        "2026-01-01",
        "1970-01-01T00:00:00Z",
        "2100-01-01T00:00:00Z",
        "9999-12-31T23:59:59-12:00",
    ):
        with pytest.raises(HttpRefusal):
            read_time(wrong, "T", NOW, any_timestamp=False)
    assert form_of("application/JSON") is BodyForm.JSON
    with pytest.raises(HttpRefusal):
        form_of("application/octet-stream")
