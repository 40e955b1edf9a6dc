"""Which files a pattern names, in a directory and in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.connectors import FilesError, read_files
from millwheel.connectors.files.places import is_match, parse_pattern
from millwheel.connectors.files.storage import DirectoryStorage
from tests.connectors.files.given import Sale, found

NAMES = ["a.csv", "b.csv", ".c.csv", "_d.csv", "x/a.csv", "x/y/a.csv", "x/y/z/b.csv", "_x/a.csv", "x/.y/a.csv"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.csv", ["a.csv", "b.csv"]),
        ("a.csv", ["a.csv"]),
        ("[ab].csv", ["a.csv", "b.csv"]),
        ("?.csv", ["a.csv", "b.csv"]),
        ("_*.csv", ["_d.csv"]),
        ("*/*.csv", ["x/a.csv"]),
        ("**/*.csv", ["a.csv", "b.csv", "x/a.csv", "x/y/a.csv", "x/y/z/b.csv"]),
        ("x/**/[a]*", ["a.csv", "y/a.csv"]),
        ("**/y/**/*.csv", ["x/y/a.csv", "x/y/z/b.csv"]),
        ("_x/*.csv", ["a.csv"]),
    ],
)
def test_a_pattern_names_files(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("item,cents\n")
    assert found(read_files(f"{tmp_path}//{pattern}", Sale, format="csv")) == expected


PARTS = st.lists(st.sampled_from(["*", "a*", "?", "**", "x", "*.c"]), min_size=1, max_size=4)
TREES = st.sets(st.lists(st.sampled_from(["a", "x", "b.c", ".a", "_x"]), min_size=1, max_size=3).map(tuple), max_size=6)


@given(parts=PARTS, names=TREES)
def test_a_directory_and_a_bucket_have_the_same_matches(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], names: set[tuple[str, ...]]
) -> None:
    parts = [*parts, "*"] if parts[-1] == "**" else parts
    names = {name for name in names if not any(name[:size] in names for size in range(1, len(name)))}
    root = tmp_path_factory.mktemp("tree")
    for name in names:
        root.joinpath(*name).parent.mkdir(parents=True, exist_ok=True)
        root.joinpath(*name).touch()
    pattern = parse_pattern(f"{root}/*/x")
    listed = DirectoryStorage(pattern.root).find(parts)
    assert listed == sorted("/".join(name) for name in names if is_match(parts, name))


def test_a_source_without_a_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(FilesError, match=r"no file matches /.*\.csv: put one there, or give watch=True"):
        found(read_files(tmp_path / "*.csv", Sale))
    assert found(read_files(tmp_path / "*.csv", Sale, watch=True)) == []
    with pytest.raises(FilesError, match="No such file or directory: the files of the pattern are below it"):
        found(read_files(tmp_path / "none" / "*.csv", Sale, watch=True))


def test_a_name_that_no_split_can_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a\nb.csv").touch()
    with pytest.raises(FilesError, match="rename the file, or leave it out of the pattern"):
        found(read_files(tmp_path / "*.csv", Sale))


def test_an_update_may_change_the_type_and_no_files(tmp_path: Path) -> None:
    identity = read_files(tmp_path / "*.csv", Sale).identity()
    assert identity == f"files {tmp_path}/*.csv as csv, no more to come", "an update that reads others names both"
    long = [read_files(f"/{'x' * 250}/{'y' * 250}/{name}.csv", Sale).identity() for name in "ab"]
    assert [len(one) for one in long] == [438] * 2
    assert long[0] != long[1]
    assert read_files(tmp_path / "*.csv", dict[str, str]).identity() == identity
    assert read_files(tmp_path / "*.csv", Sale, watch=True).identity() != identity
    assert read_files(tmp_path / "?.csv", Sale).identity() != identity
    assert read_files(tmp_path / "*.csv", Sale, format="jsonl").identity() != identity
