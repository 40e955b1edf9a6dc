"""The other version: a git revision or a wheel, unpacked."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Final

from millwheel.model.formats import NEWEST_FORMAT, OLDEST_FORMAT

ROOT: Final = Path(__file__).parents[2]
_PARTS: Final = ("authority", "injectors", "master", "millwheel", "worker")
"""What a wheel has too. A revision's tests stay out: those of this version are imported."""
_FORMATS: Final = "millwheel/model/formats.py"
_RECORDED: Final = f"tests/formats/golden/format-{OLDEST_FORMAT}.json"
_RELEASED: Final = re.compile(r"^## \[(\d[^\]]*)\]", re.MULTILINE)


class NoVersionError(Exception):
    """There is no version to upgrade from. The message says what to give."""


def unpack(given: str, into: Path) -> str:
    """Unpack a version into a folder. Return its name.

    Args:
        given: A git revision, or the path of a wheel. Empty: the last release, or what stands for it.
        into: A folder for it.

    Raises:
        NoVersionError: There is no such version, or it has no format in common with this one.
    """
    name = given or _last_release()
    into.mkdir(parents=True)
    if name.endswith(".whl"):
        with zipfile.ZipFile(name) as wheel:
            wheel.extractall(into)
    else:
        with tarfile.open(fileobj=BytesIO(_git("archive", name, *_PARTS))) as archive:
            archive.extractall(into, filter="data")
    path = into / _FORMATS
    if not _fits(path.read_text() if path.exists() else ""):
        raise NoVersionError(
            f"{name} knows no format from {OLDEST_FORMAT} to {NEWEST_FORMAT}: its clusters cannot be upgraded to this "
            "version. Give another one by FROM=REVISION or FROM=WHEEL"
        )
    return name


def _last_release() -> str:
    """The newest release's tag, or the commit that the changelog's release is of.

    If that release has no format in common with this version: the first commit whose forms are recorded. From then on
    a form changes by the rules alone, so its clusters are the oldest that this version must be able to go on with.
    """
    tags = _git("tag", "--list", "v*", "--sort=-version:refname").decode().split()
    released = _RELEASED.findall((ROOT / "CHANGELOG.md").read_text())
    heading = rf"^## \[{re.escape(released[0])}\]" if released else "^$"
    commits = _git("log", "--reverse", "--format=%H", "-G", heading, "--", "CHANGELOG.md").decode().split()
    for name in [*tags[:1], *commits[:1]]:
        if _fits(_text(name, _FORMATS)):
            return name
    for name in _git("log", "--reverse", "--format=%H", "--diff-filter=A", "--", _RECORDED).decode().split():
        if _fits(_text(name, _FORMATS)):
            return name
    raise NoVersionError(
        "no tag, release of the changelog or earlier commit has a format in common with this version: give one by "
        "FROM=REVISION or FROM=WHEEL"
    )


def _fits(formats: str) -> bool:
    """Whether a version whose ``formats.py`` is this has a format in common with this version."""
    found = {name: int(number) for name, number in re.findall(r"^(\w+)_FORMAT: Final = (\d+)", formats, re.MULTILINE)}
    return bool(found) and found["OLDEST"] <= NEWEST_FORMAT and found["NEWEST"] >= OLDEST_FORMAT


def _text(revision: str, path: str) -> str:
    """A file of a revision. Empty if the revision has none."""
    found = subprocess.run(["git", "show", f"{revision}:{path}"], cwd=ROOT, capture_output=True, check=False)
    return found.stdout.decode() if found.returncode == 0 else ""


def _git(*arguments: str) -> bytes:
    found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if found.returncode:
        raise NoVersionError(f"git {arguments[0]}: {found.stderr.decode().strip()}. Give FROM=REVISION or FROM=WHEEL")
    return found.stdout
