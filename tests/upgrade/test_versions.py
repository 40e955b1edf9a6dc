"""Which version `make test-upgrade` upgrades from."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from millwheel.model.formats import NEWEST_FORMAT, OLDEST_FORMAT
from tests.upgrade.versions import ROOT, NoVersionError, unpack

FORMATS = "millwheel/model/formats.py"

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a source distribution has no revisions")


def wheel(place: Path, formats: str) -> str:
    path = place / "openmillwheel-0.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(FORMATS, formats)
    return str(path)


def test_a_revision_is_unpacked_without_its_tests(tmp_path: Path) -> None:
    assert unpack("HEAD", tmp_path / "old") == "HEAD"
    assert (tmp_path / "old" / FORMATS).exists()
    assert (tmp_path / "old/millwheel/worker/interval").is_dir()
    assert not (tmp_path / "old/tests").exists()


def test_a_wheel_is_unpacked_and_its_formats_are_compared(tmp_path: Path) -> None:
    known = wheel(tmp_path, "NEWEST_FORMAT: Final = 1\nOLDEST_FORMAT: Final = 1\n")
    assert unpack(known, tmp_path / "old") == known
    for formats in ("NEWEST_FORMAT: Final = 0\nOLDEST_FORMAT: Final = 0\n", ""):
        known = f"knows no format from {OLDEST_FORMAT} to {NEWEST_FORMAT}"
        with pytest.raises(NoVersionError, match=f"{known}: .* Give another one by FROM=REVISION"):
            unpack(wheel(tmp_path, formats), tmp_path / f"none {len(formats)}")


def test_what_is_no_revision_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(NoVersionError, match=r"git archive: .*Give FROM=REVISION or FROM=WHEEL"):
        unpack("no-such-revision", tmp_path / "old")
