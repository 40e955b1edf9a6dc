"""Damaged and hostile code packages are refused by name, and leave the process as it was."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from pathlib import Path

import pytest

from millwheel.sdk import loading
from millwheel.sdk.errors import PackageError
from millwheel.sdk.loading import load_topology, unload_package

GOOD = "import millwheel as mw\nhere = mw.Topology('t')\n"


def packed(files: dict[str, str], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def refused(data: bytes, place: Path, entry_point: str = "odd_package:here") -> str:
    digest = hashlib.sha256(data).hexdigest()
    modules, finders = set(sys.modules), list(sys.meta_path)
    with pytest.raises(PackageError) as caught:
        load_topology(digest, data, entry_point, place)
    assert sys.meta_path == finders
    assert not any(name.startswith(("odd_package", "millwheel_")) for name in set(sys.modules) - modules)
    return str(caught.value)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_damaged_inside_is_refused_or_whole_all_the_same(tmp_path: Path, method: int) -> None:
    """Regression: zlib.error, EOFError and others were not caught. The worker gave up every other package, too."""
    data = packed({"odd_package.py": GOOD * 50}, method)
    count = 0
    for at in range(44, 90):
        bad = data[:at] + bytes((data[at] ^ 0x55,)) + data[at + 1 :]
        digest = hashlib.sha256(bad).hexdigest()
        try:
            load_topology(digest, bad, "odd_package:here", tmp_path)
        except PackageError:
            count += 1
        else:
            assert (tmp_path / digest / "odd_package.py").read_text() == GOOD * 50
            unload_package(digest)
    assert count > 15


def test_a_package_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: such a package filled the disk."""
    monkeypatch.setattr(loading, "MAX_PACKAGE_BYTES", 1_000_000)
    assert "unpacks to more than" in refused(
        packed({"odd_package.py": "#" * 2_000_000}, zipfile.ZIP_DEFLATED), tmp_path
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x.py", "/tmp/x.py", "a/../../x.py", "odd_package.py/x", "y" * 300 + ".py"])
def test_a_file_that_lies_outside_or_cannot_be_made_is_refused(tmp_path: Path, name: str) -> None:
    place = tmp_path / "packages"
    assert "holds" in refused(packed({"odd_package.py": GOOD, name: ""}), place)
    assert [path.name for path in tmp_path.iterdir()] in ([], ["packages"])


def test_code_that_exits_on_import_fails_like_any_other(tmp_path: Path) -> None:
    """Regression: the whole process ended."""
    for line in ("import sys; sys.exit()", "raise SystemExit(3)"):
        assert "SystemExit" in refused(packed({"odd_package.py": f"{GOOD}{line}"}), tmp_path)


def test_a_package_does_not_hide_modules_of_pythons_own(tmp_path: Path) -> None:
    """Regression: a module of Python that no one had imported yet was replaced by the package's module."""
    data = packed({"odd_package.py": GOOD, "wave.py": "raise AssertionError('not this one')"})
    digest = hashlib.sha256(data).hexdigest()
    sys.modules.pop("wave", None)
    load_topology(digest, data, "odd_package:here", tmp_path)
    import wave

    assert hasattr(wave, "Wave_read")
    unload_package(digest)


def test_what_was_unpacked_before_counts_only_if_it_is_whole(tmp_path: Path) -> None:
    """Regression: a file that was incomplete on the disk was run."""
    data = packed({"odd_package.py": GOOD, "odd_part.py": "value = 7"})
    digest = hashlib.sha256(data).hexdigest()
    load_topology(digest, data, "odd_package:here", tmp_path)
    unload_package(digest)
    (tmp_path / digest / "odd_package.py").write_text("here = None")
    (tmp_path / digest / "odd_part.py").unlink()
    assert load_topology(digest, data, "odd_package:here", tmp_path).name == "t"
    assert (tmp_path / digest / "odd_part.py").read_text() == "value = 7"
    unload_package(digest)
    assert [path.name for path in tmp_path.iterdir()] == [digest]


@pytest.mark.guarantee("G13")
def test_packages_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    """Regression: Python's import caches kept entries for each directory of a package."""
    for number in range(5):
        data = packed({"odd_package/__init__.py": GOOD, "odd_package/part.py": "", "n.txt": str(number)})
        digest = hashlib.sha256(data).hexdigest()
        load_topology(digest, data, "odd_package:here", tmp_path)
        unload_package(digest)
    assert {place for place in sys.path_importer_cache if str(tmp_path) in place} == set()
