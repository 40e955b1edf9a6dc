"""Files of lines as a source: the same records at the same positions, wherever they are opened again (5.2, 6.1)."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.connectors import BadRecord, FilesError, read_files
from millwheel.connectors.files import texts
from millwheel.sdk.errors import UsageError
from tests.connectors.files.given import (
    Sale,
    age,
    bad_of,
    compressed,
    found,
    read_on,
    records_of,
    small_reads,
    values_of,
)

LONGEST = 40


def naive(content: bytes) -> list[tuple[int, bytes | None]]:
    """The lines of a content with their numbers. None: too long."""
    lines = enumerate(content.split(b"\n"), 1)
    return [
        (number, None if len(line) > LONGEST else line.removesuffix(b"\r")) for number, line in lines if line.strip()
    ]


def numbered(values: list[Any]) -> list[bytes | None]:
    return [None if isinstance(one, BadRecord) else one for one in values]


LINES = st.lists(
    st.tuples(
        st.binary(max_size=LONGEST + 8).map(lambda line: line.replace(b"\n", b"")), st.sampled_from([b"\n", b"\r\n"])
    ),
    max_size=12,
)


@pytest.mark.guarantee("G1")
@given(
    lines=LINES,
    rest=st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")),
    ending=st.sampled_from(["", ".gz", ".zst"]),
    reads=st.tuples(st.integers(1, LONGEST), st.integers(1, 4)),
    reopened=st.sets(st.integers(0, 60)),
)
def test_lines_equal_a_naive_reading_wherever_reopened(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[tuple[bytes, bytes]],
    rest: bytes,
    ending: str,
    reads: tuple[int, int],
    reopened: set[int],
) -> None:
    content = b"".join(line + end for line, end in lines) + rest
    if content.startswith(b"\xef\xbb\xbf"):
        return
    path = tmp_path_factory.getbasetemp() / f"lines{ending}"
    path.write_bytes(compressed(content, ending))
    source = read_files(path, bytes, format="lines")
    with small_reads(*reads, longest=LONGEST):
        got, position, ended = [], None, False
        while not ended:  # a long line has reads without a record
            for read in read_on(source, path.name, position, reopened.__contains__):
                got += [value for value, _ in read.records]
                position, ended = read.position, read.ended
    assert numbered(got) == [line for _, line in naive(content)]
    assert bad_of(got) == [
        (f"line {number}", f"the line has more than {LONGEST:,} bytes: is the file of this format?")
        for number, line in naive(content)
        if line is None
    ]


@pytest.mark.guarantee("G1")
@given(
    pieces=st.lists(st.text("ab\r\n", max_size=8).map(str.encode), max_size=12),
    reopened=st.sets(st.integers(0, 12)),
    read_bytes=st.integers(1, 20),
)
def test_a_growing_file_is_read_line_by_line(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], reopened: set[int], read_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "grows.log"
    path.write_bytes(b"")
    source = read_files(path, bytes, follow=mw.hours(1))
    got: list[Any] = []
    position, content = None, b""
    with small_reads(read_bytes):
        for number, piece in enumerate(pieces):
            content += piece
            with path.open("ab") as file:
                file.write(piece)
            for read in read_on(source, path.name, position, lambda _, number=number: number in reopened):  # type: ignore[misc]
                assert not read.ended
                got += [value for value, _ in read.records]
                position = read.position
            whole = content[: content.rfind(b"\n") + 1]
            assert got == [line for _, line in naive(whole)][: len(got)]
        age(path, 3_601)
        ended = False
        while not ended:
            for read in read_on(source, path.name, position):
                got += [value for value, _ in read.records]
                position, ended = read.position, read.ended
    assert got == [line for _, line in naive(content)]


def test_json_lines_are_records_of_their_type(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"item":"tea","cents":3}\r\n\n {"item":"pot","cents":40}')
    source = read_files(tmp_path / "*.jsonl", Sale)
    assert found(source) == ["a.jsonl"]
    assert values_of(source, "a.jsonl") == [Sale("tea", 3), Sale("pot", 40)]


class Row(msgspec.Struct):
    name: str
    count: int
    share: float | None
    open: bool = True
    file: str = ""
    line: int = 0


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_csv_cells_have_the_types_of_the_fields(tmp_path: Path, ending: str) -> None:
    text = '\ufeffname,count,share,open\r\n"a, b",1,0.5,false\r\n,2,,\r\n'
    path = tmp_path / f"rows.csv{ending}"
    path.write_bytes(compressed(text.encode(), ending))
    source = read_files(f"{tmp_path}/*", Row, format="csv", file_field="file", line_field="line")
    assert values_of(source, path.name) == [
        Row("a, b", 1, 0.5, False, path.name, 2),
        Row("", 2, None, True, path.name, 3),
    ]


@pytest.mark.guarantee("G13")
def test_long_names_of_fields_make_small_reads(tmp_path: Path) -> None:
    wide = msgspec.defstruct("Wide", [(f"{'the_question_with_the_number_' * 3}{n}", str, "") for n in range(1_000)])
    (tmp_path / "a.csv").write_text("\n".join([wide.__struct_fields__[0], *"x" * 500]))
    reads = list(read_on(read_files(tmp_path / "a.csv", wide), "a.csv"))
    assert sum(len(read.records) for read in reads) == 500
    assert max(len(msgspec.msgpack.encode([value for value, _ in read.records])) for read in reads) < 16 << 20


@pytest.mark.guarantee("G13")
def test_empty_lines_do_not_count_to_the_limit_of_a_read(tmp_path: Path) -> None:
    """Otherwise no read has as many records as it may, and a limit that was lowered never rises again."""
    (tmp_path / "a.jsonl").write_text('\n{"item":"tea","cents":3}\n\n' * 10)
    (tmp_path / "b.csv").write_text('item,cents\n"te\n\n\n\na,5\n' + "\ntea,3\n" * 6)

    async def counts(name: str) -> list[int]:
        reader, got, ended = await read_files(tmp_path / name, Sale).open_reader(name, None), list[int](), False
        reader.most_records = 4
        while not ended:
            read = await reader.read()
            got.append(len(read.records))
            ended = read.ended
        await reader.close()
        return got

    assert asyncio.run(counts("a.jsonl")) == [4, 4, 2]
    assert asyncio.run(counts("b.csv"))[:2] == [4, 4]  # the lines inside of quotes are bad records


def test_a_csv_file_without_rows_ends(tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("header", b"name,count,share"), ("line", b"name,count,share\n")):
        (tmp_path / f"{name}.csv").write_bytes(content)
    source = read_files(tmp_path / "*.csv", Row)
    for name in found(source):
        assert [read.records for read in read_on(source, name)] == [[]]
        assert [read.ended for read in read_on(source, name)] == [True]


@pytest.mark.guarantee("G1")
def test_a_csv_file_is_opened_again_at_each_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,count,share\n" + "".join(f"n{number},{number},\n" for number in range(20)))
    source = read_files(tmp_path / "a.csv", Row)
    with small_reads(60, 1):
        reads = list(read_on(source, "a.csv", reopen=lambda read: True))
    assert [value.count for value in records_of(reads)] == list(range(20))
    assert [read.behind for read in reads][-1] == 0
    assert all(read.behind for read in reads[:-1])


def test_a_growing_csv_file_waits_for_its_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("name,cou")
    source, position = read_files(path, Row, follow=mw.hours(1)), None
    for more, expected in (("nt,share\n", []), ("a,1,\nb,", [1]), ("2,\n", [2])):
        (first, *_) = reads = list(read_on(source, "a.csv", position))
        assert not first.ended
        with path.open("a") as file:
            file.write(more)
        reads = list(read_on(source, "a.csv", first.position))
        assert [value.count for value in records_of(reads)] == expected
        position = reads[-1].position


def test_what_is_no_record_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"item":"tea","cents":3}\n{"item":"tea"}\n{"ite\n\n{"item":"pot","cents":1}\n')
    (tmp_path / "b.csv").write_text('item,cents\ntea,3\ntea\n"te\na,5\n",6\ntea,x\npot,1\n')
    source = read_files(tmp_path / "*.jsonl", Sale)
    values = values_of(source, "a.jsonl")
    assert [one for one in values if isinstance(one, Sale)] == [Sale("tea", 3), Sale("pot", 1)]
    assert [place for place, _ in bad_of(values)] == ["line 2", "line 3"]
    with small_reads(20, 1):
        values = values_of(read_files(tmp_path / "*.csv", Sale), "b.csv")
    assert [one for one in values if isinstance(one, Sale)] == [Sale("tea", 3), Sale("pot", 1)]
    assert [place for place, _ in bad_of(values)] == ["line 3", "line 4", "line 5", "line 6", "line 7"]
    assert "goes on over the end of the line" in bad_of(values)[1][1]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("change", ["replaced", "cut", "emptied"])
@pytest.mark.guarantee("G1")
def test_a_file_that_was_replaced_or_cut_is_refused(tmp_path: Path, ending: str, change: str) -> None:
    path, content = tmp_path / f"a.jsonl{ending}", b"".join(b'{"item":"t","cents":%d}\n' % n for n in range(100))
    path.write_bytes(compressed(content, ending))
    source = read_files(tmp_path / "*", Sale, format="jsonl")
    with small_reads(300):
        read = next(iter(read_on(source, path.name)))
        other = {"replaced": content.replace(b'"t"', b'"x"'), "cut": content[:200], "emptied": b""}[change]
        path.write_bytes(compressed(other, ending))
        with pytest.raises(FilesError, match=r"its first 2\d\d bytes of text are not those that were read"):
            list(read_on(source, path.name, read.position))
        path.write_bytes(compressed(content, ending))
        rest = values_of(source, path.name, read.position)
    assert [one.cents for one in rest] == list(range(len(read.records), 100))


@pytest.mark.guarantee("G1")
def test_a_log_that_is_rotated_by_rename_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text("one\ntwo\n")
    source = read_files(path, str, follow=mw.hours(1))
    (read, _) = read_on(source, "app.log")
    path.rename(tmp_path / "app.log.1")
    with pytest.raises(FilesError, match="is gone before it was read to its end"):
        list(read_on(source, "app.log", read.position))
    path.write_text("three, which is a longer line\n")
    with pytest.raises(FilesError, match="a rotated one must keep its name"):
        list(read_on(source, "app.log", read.position))


def test_a_file_that_grows_at_its_end_has_not_ended(tmp_path: Path) -> None:
    """It was found while another program still wrote it."""
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    source = read_files(path, str)
    with small_reads(4):
        reads = read_on(source, "a.txt")
        assert records_of([next(reads)]) == ["one"]
        with path.open("a") as file:
            file.write("three\n")
        later = [next(reads), next(reads)]
        assert records_of(later) == ["two", "three"]
        assert not later[-1].ended
        with path.open("a") as file:
            file.write("four\n")
        assert values_of(source, "a.txt", later[-1].position) == ["four"]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.guarantee("G1")
def test_a_compressed_file_that_is_cut_off_goes_on_later(tmp_path: Path, ending: str) -> None:
    chance = random.Random(1)
    lines = [chance.randbytes(40).hex() for _ in range(8_000)]
    path, whole = tmp_path / f"a.log{ending}", compressed("\n".join(lines).encode(), ending)
    path.write_bytes(whole[: len(whole) // 2])
    source = read_files(path, str)
    got: list[Any] = []
    position = None
    with small_reads(500):
        reads = read_on(source, path.name)
        with suppress(FilesError):
            for read in reads:
                got += [value for value, _ in read.records]
                position = read.position
        assert got
        with pytest.raises(FilesError, match=r"cannot be decompressed: .* Put the whole file in its place"):
            next(read_on(source, path.name, position))
        path.write_bytes(whole)
        got += values_of(source, path.name, position)
    assert got == lines


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.guarantee("G8")
def test_the_way_to_a_position_takes_several_reads(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read has a minute, and a large file may take longer to its end."""
    monkeypatch.setattr(texts, "SKIP_BYTES", 10_000)
    lines = [f"line {number} " + "x" * 100 for number in range(3_000)]
    path = tmp_path / f"a.log{ending}"
    path.write_bytes(compressed("\n".join(lines).encode(), ending))
    source = read_files(path, str)
    with small_reads(100_000):
        *_, last = first = [read for read, _ in zip(read_on(source, path.name), range(2), strict=False)]
        rest = list(read_on(source, path.name, last.position, empty=50))
    assert len([read for read in rest if not read.records]) >= 2
    assert records_of(first + rest) == lines


def test_lines_are_records_of_str_or_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes("grün\n".encode() + b"\xff\n")
    assert values_of(read_files(tmp_path / "a.log", bytes), "a.log") == ["grün".encode(), b"\xff"]
    values = values_of(read_files(tmp_path / "a.log", str), "a.log")
    assert values[0] == "grün"
    assert bad_of(values)[0][0] == "line 2"
    with pytest.raises(UsageError, match="lines are str or bytes"):
        read_files(tmp_path / "a.log", Sale)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sales.csv", Row), "is no place of files"),
        (("/data/", Row), "names folders"),
        (("/data/**", Row), "names folders"),
        (("/data/a**/x.csv", Row), "stands alone"),
        (("http://x/a.csv", Row), "this URL is no place"),
        (("s3://user:secret@x/a.csv", Row), "this URL is no place"),
        (("s3://x", Row), "names no file"),
        (("/data/x.dat", Row), "give format="),
        (("/data/x.csv", int), "has fields, and int has none"),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(arguments: tuple[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_files(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "xml"}, "is no format"),
        ({"follow": 0}, "follow is a Duration"),
        ({"file_field": "path"}, "no field 'path'"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_files("/data/x.csv", Row, **options)


def test_compressed_files_cannot_grow(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only files of plain lines can grow"):
        read_files(tmp_path / "*.jsonl.gz", Sale, follow=mw.hours(1))
    (tmp_path / "a.jsonl.gz").write_bytes(b"")
    source = read_files(tmp_path / "*", Sale, format="jsonl", follow=mw.hours(1))
    with pytest.raises(FilesError, match="is compressed"):
        list(read_on(source, "a.jsonl.gz"))
