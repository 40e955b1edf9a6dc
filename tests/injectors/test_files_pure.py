"""Lines, and the watermark that follows from how far files are read (5.2, figure 10)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.connectors.files.parsing import (
    ColumnType,
    FileFormat,
    LineError,
    LineParser,
    OpenQuoteError,
    TimestampField,
    TimeUnit,
    column_hint,
    leaves_quote_open,
)
from millwheel.injectors.identity import ContentHash, partition_name
from millwheel.injectors.progress import FileProgress, ReadingProgress
from millwheel.sdk.errors import UsageError


@pytest.mark.parametrize(
    ("written", "unit", "expected"),
    [
        ("5", TimeUnit.MICROSECONDS, 5),
        ("1.5", TimeUnit.SECONDS, 1_500_000),
        ("-3", TimeUnit.MILLISECONDS, -3_000),
        ('"7"', TimeUnit.SECONDS, 7_000_000),
        ('"1.5e3"', TimeUnit.MILLISECONDS, 1_500_000),
        ("9007199254740993", TimeUnit.MICROSECONDS, 9007199254740993),
        ("1500000", TimeUnit.NANOSECONDS, 1_500),
        ("1700000000123456789", TimeUnit.NANOSECONDS, 1_700_000_000_123_456),
        ('"1970-01-01T01:00:01.000002+01:00"', TimeUnit.ISO, 1_000_002),
        ('"1970-01-01T00:00:02Z"', TimeUnit.ISO, 2_000_000),
    ],
)
def test_timestamps_are_read_as_they_are_written(written: str, unit: TimeUnit, expected: int) -> None:
    parser = LineParser(FileFormat.JSONL, TimestampField("at.time", unit), 0)
    line = f'{{"at": {{"time": {written}}}}}'.encode()
    assert parser.parse(line)[1] == expected


def test_an_iso_time_without_an_offset_is_refused() -> None:
    parser = LineParser(FileFormat.JSONL, TimestampField("t", TimeUnit.ISO), 0)
    with pytest.raises(LineError, match="no offset from UTC: '2026-11-22T20:00:00'; write it as"):
        parser.parse(b'{"t": "2026-11-22T20:00:00"}')


@pytest.mark.parametrize(
    ("written", "unit", "meant"),
    [
        ('"2026-11-22T20:00:00Z"', TimeUnit.SECONDS, "iso"),
        ('"2026-11-22T20:00:00"', TimeUnit.MICROSECONDS, "iso"),
        ("1700000000", TimeUnit.ISO, "s"),
        ("1700000000.5", TimeUnit.ISO, "s"),
        ("1700000000000", TimeUnit.ISO, "ms"),
        ('"x"', TimeUnit.SECONDS, ""),
        ("5", TimeUnit.ISO, ""),
    ],
)
def test_a_time_in_another_unit_names_that_unit(written: str, unit: TimeUnit, meant: str) -> None:
    parser = LineParser(FileFormat.JSONL, TimestampField("t", unit), 0)
    with pytest.raises(LineError, match=f"no time in {unit.value}") as raised:
        parser.parse(f'{{"t": {written}}}'.encode())
    assert str(raised.value).partition("did you mean --unit ")[2] == (f"{meant}?" if meant else "")


@pytest.mark.parametrize(("line", "said"), [(b"a", "1 cell under 2 columns"), (b"a,b,c", "3 cells under 2 columns")])
def test_a_row_of_another_length_is_refused(line: bytes, said: str) -> None:
    with pytest.raises(LineError, match=said):
        LineParser(FileFormat.CSV, None, 0, b"x,y").parse(line)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[1]",
        b"5",
        b"{}",
        b'{"t": null}',
        b'{"t": "x"}',
        b'{"t": true}',
        b'{"t": 9e30}',
        b'{"t": [1]}',
        b"\xff",
        b'{"t": 1, "k": "\xff"}',
        b"[" * 9_000,
    ],
)
def test_a_line_that_is_no_record_is_named(line: bytes) -> None:
    with pytest.raises(LineError, match=r"JSON|field 't'"):
        LineParser(FileFormat.JSONL, TimestampField("t", TimeUnit.MICROSECONDS), 0).parse(line)


def test_csv_rows_stand_under_their_header() -> None:
    parser = LineParser(FileFormat.CSV, TimestampField("t", TimeUnit.SECONDS), 0, b'name,t,"a, b"')
    assert parser.parse(b'"x ""y""",3,') == ({"name": 'x "y"', "t": "3", "a, b": ""}, 3_000_000)
    for line in (b"a,b", b"a,1,2,3", b'"a,1,2', b"\xff,1,2"):
        with pytest.raises(LineError):
            parser.parse(line)


def test_csv_columns_may_be_numbers() -> None:
    types = {"a": ColumnType.INT, "b": ColumnType.FLOAT, "c": ColumnType.TEXT}
    parser = LineParser(FileFormat.CSV, None, 0, b"a,b,c", types)
    assert parser.parse(b"7,1.5,8")[0] == {"a": 7, "b": 1.5, "c": "8"}
    assert parser.parse(b",,")[0] == {"a": None, "b": None, "c": ""}
    with pytest.raises(LineError, match=r"column 'a' holds no int: '1\.5'"):
        parser.parse(b"1.5,1.5,8")
    with pytest.raises(LineError, match="no column 'd' in the header: a, b, c"):
        LineParser(FileFormat.CSV, None, 0, b"a,b,c", {"d": ColumnType.INT})


def test_a_csv_field_that_crosses_its_lines_end_is_in_no_record() -> None:
    parser = LineParser(FileFormat.CSV, None, 0, b"a,b")
    for line in (b'"b', b'1,"', b'a"b,"c', b'"b ""c'):
        with pytest.raises(OpenQuoteError, match="a line is a record here"):
            parser.parse(line)
    for line in (b"", b"c", b'c""', b'c",2,"d', b"\xff"):
        assert leaves_quote_open(line), line
    for line in (b'c"', b'c",2', b'c"d', b'""",2', b'c","d"'):
        assert not leaves_quote_open(line), line


def test_a_text_in_place_of_a_number_names_the_columns_option() -> None:
    assert column_hint("Expected `int`, got `str` - at `$.n`") == "; CSV cells are texts: give --column n=int"
    assert column_hint("Expected `float | null`, got `str` - at `$.n`").endswith("--column n=float")
    assert not column_hint("Expected `int`, got `str` - at `$.n[0]`")


def test_raw_lines_are_texts_for_a_text_stream() -> None:
    parser = LineParser(FileFormat.LINES, None, 77, text=True)
    assert parser.parse("käse ".encode()) == ("käse ", 77)
    with pytest.raises(LineError, match="no text in UTF-8"):
        parser.parse(b"\xff")


def test_raw_lines_are_bytes_at_their_files_time() -> None:
    assert LineParser(FileFormat.LINES, None, 77).parse(b"\xff x ") == (b"\xff x ", 77)
    with pytest.raises(UsageError, match="raw lines have no fields"):
        LineParser(FileFormat.LINES, TimestampField("t", TimeUnit.MICROSECONDS), 0)


@pytest.mark.guarantee("G7", section="fig. 10")
def test_the_watermark_is_the_oldest_unfinished_files_bound() -> None:
    progress = ReadingProgress(disorder=10)
    assert progress.watermark(0) is None
    progress.found("a", 0, 100, 0, at_end=False)
    progress.found("b", 0, 300, 0, at_end=False)
    assert progress.watermark(0) is None
    progress.read("a", 20, [100], 0, 0)
    assert progress.watermark(0) == 90
    oldest = progress.next_file()
    assert oldest is not None
    assert oldest.name == "a"
    progress.read("a", 50, [500], 40, 0)
    assert progress.watermark(0) is None
    progress.read("b", 50, [300], 40, 0)
    assert progress.watermark(0) == 290
    progress.read("a", 60, [100], 50, 0)
    assert progress.watermark(0) == 290
    progress.reached_end("b")
    assert progress.watermark(0) == 490
    progress.reached_end("a")
    assert progress.watermark(0) is None
    progress.grew("b", 0)
    assert progress.watermark(0) == 290


@pytest.mark.guarantee("G7", section="fig. 10")
def test_an_unknown_file_holds_the_watermark_and_is_read_first() -> None:
    progress = ReadingProgress(0)
    progress.found("a", 0, 100, 0, at_end=False)
    progress.found("b", 0, None, 0, at_end=False)
    assert progress.watermark(0) is None
    first = progress.next_file()
    assert first is not None
    assert first.name == "b"
    progress.found("c", 0, None, 0, at_end=True)
    progress.read("b", 5, [200], 0, 0)
    progress.read("a", 5, [100], 0, 0)
    assert progress.watermark(0) == 100


@pytest.mark.guarantee("G7", section="5.2")
@given(st.lists(st.booleans(), max_size=6), st.integers(0, 100))
def test_a_refused_line_sets_no_watermark(refused: list[bool], slack: int) -> None:
    progress = ReadingProgress(0)
    progress.found("a", 0, 10_000 if refused[:1] == [True] else 100, 0, at_end=False)
    accepted = [100 + at + slack for at in range(len(refused))]
    published = -(1 << 63)
    for at, bad in enumerate(refused):
        watermark = progress.watermark(0)
        published = published if watermark is None else max(published, watermark)
        assert bad or published <= accepted[at]
        progress.read("a", at + 1, [] if bad else [accepted[at]], None if bad else at, 0)


def test_a_partition_changes_with_the_path_and_the_first_line() -> None:
    names = {partition_name(path, lines) for path in ("/a", "/b") for lines in ([b"x"], [b"y"], [b"x", b"y"], [b"xy"])}
    assert len(names) == 8


def test_a_content_hash_goes_on_where_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"0123456789")
    whole, parts = ContentHash(), ContentHash()
    assert whole.extend(file, 8)
    assert parts.extend(file, 3)
    assert parts.extend(file, 8)
    assert whole.digest == parts.digest
    assert not parts.extend(file, 11)


@pytest.mark.guarantee("G8", section="fig. 10")
def test_a_quiet_file_holds_the_watermark_no_more() -> None:
    progress = ReadingProgress(0, quiet=50)
    progress.found("a", 0, 100, now=0, at_end=False)
    progress.read("a", 10, [120], 5, now=20)
    progress.reached_end("a")
    assert progress.watermark(69) == 120
    assert progress.watermark(70) is None
    assert progress.unfinished(70) == []


@pytest.mark.guarantee("G7", section="5.2")
@given(st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=8), min_size=1, max_size=4), st.integers(0, 100))
def test_no_record_is_late_if_files_are_as_ordered_as_stated(files: list[list[int]], slack: int) -> None:
    disorder = max(max(times[:at], default=0) - times[at] for times in files for at in range(len(times)))
    progress = ReadingProgress(max(disorder, 0))
    for number, times in enumerate(files):
        progress.found(str(number), 0, times[0], 0, at_end=False)
    published = -(1 << 63)
    while (file := progress.next_file()) is not None:
        times = files[int(file.name)]
        if file.offset == len(times):
            progress.reached_end(file.name)
            continue
        end = min(len(times), file.offset + 1 + slack % 3)
        assert all(time >= published for time in times[file.offset : end])
        progress.read(file.name, end, times[file.offset : end], end - 1, 0)
        watermark = progress.watermark(0)
        published = published if watermark is None else max(published, watermark)
    assert progress.found_disorder == max(disorder, 0), "what the user has to state"


@pytest.mark.paper(section="5.2")
def test_reading_restarts_at_an_unacked_line() -> None:
    file = FileProgress("a", offset=100, last=80)
    assert file.restart(40) == 40
    assert file.restart(80) == 80
    assert file.restart(81) == 100
    assert file.restart(None) == 100
