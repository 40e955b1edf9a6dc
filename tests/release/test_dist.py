"""What ``make dist`` has built has what the checkout has, and works where nothing else is installed."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import pytest
from packaging.metadata import Metadata

from tests.documents.blocks import blocks_of
from tests.documents.reader import Reader
from tests.documents.test_pages import NOT_RUN
from tests.house.tree import ROLES, ROOT, pyproject
from tests.patience import patience

pytestmark = [pytest.mark.release, pytest.mark.timeout(600)]

_DIST: Final = ROOT / "dist"
_BUILT_FROM: Final = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md"}
_PURE, _COMPILED = "*-py3-none-any.whl", "*-linux_*.whl"

_IMPORT_ALL: Final = """
import importlib, pkgutil, millwheel
# They need the extras [spark], [arrow] and [otel].
left_out = ("millwheel.injectors.spark", "millwheel.client.arrow", "millwheel.sdk.tables", "millwheel.telemetry")
names = [one.name for one in pkgutil.walk_packages(millwheel.__path__, "millwheel.", onerror=lambda name: None)]
assert len(names) > 100, names
for name in names:
    if not name.startswith(left_out) and not name.endswith("__main__"):
        importlib.import_module(name)
print(millwheel.__file__)
"""

_CORE: Final = "from millwheel.worker.interval import core; print(core.__file__)"

_SIZES: Final = [("cat videos", 1), ("cat videos", 2), ("dog videos", 1)]
"""The results of the README's programs: each window's text and number of queries."""


def built(pattern: str, folder: Path = _DIST) -> Path:
    found = list(folder.glob(pattern))
    assert len(found) == 1, f"{folder} has {found} for {pattern}: run tools/dist.sh"
    return found[0]


@pytest.fixture(params=[_PURE, _COMPILED])
def wheel(request: pytest.FixtureRequest) -> Path:
    return built(request.param)


def committed(*folders: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]


_CONSOLE: Final = "millwheel/server/console/static/"
"""All files of the console's page are in a wheel, also their licences."""


def package_files() -> Iterator[tuple[str, str]]:
    """The files of the package: where they are in the checkout, and where in a wheel."""
    for source in committed("millwheel", *ROLES):
        if PurePosixPath(source).suffix in {".py", ".pyi", ".typed"} or source.startswith(_CONSOLE):
            yield source, source if source.startswith("millwheel/") else f"millwheel/{source}"


def test_the_sources_have_what_the_package_is_made_of() -> None:
    """It has modules, contracts, and the files that a build reads.

    It has no links: the role folders are in their places.
    """
    with tarfile.open(built("*.tar.gz")) as files:
        members = [member for member in files.getmembers() if member.isfile()]
        found = {str(PurePosixPath(*PurePosixPath(member.name).parts[1:])) for member in members}
    wanted = _BUILT_FROM | {path for _, path in package_files()} | set(committed("proto"))
    assert wanted - found == set()


def test_the_sources_and_the_checkout_build_the_same_wheel() -> None:
    """Bit for bit."""
    pure = built(_PURE)
    assert pure.read_bytes() == built(pure.name, ROOT / "build" / "dist" / "checkout").read_bytes()


def test_a_wheel_has_the_checkouts_files_unchanged(wheel: Path) -> None:
    """It has every module, stub and marker, the man page, and no other file."""
    wanted = {path: (ROOT / source).read_bytes() for source, path in package_files()}
    with zipfile.ZipFile(wheel) as archive:
        (manual,) = (name for name in archive.namelist() if name.endswith(".data/data/share/man/man1/millwheel.1"))
        wanted[manual] = (ROOT / "docs" / "millwheel.1").read_bytes()
        there = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    found = {name: content for name, content in there.items() if not name.endswith(".so")}
    assert "millwheel/py.typed" in wanted
    assert "millwheel/rpc/v1/delivery_pb2.pyi" in wanted
    assert set(found) == set(wanted)
    assert [name for name in wanted if found[name] != wanted[name]] == []


def test_the_metadata_of_a_wheel_is_valid(wheel: Path) -> None:
    """The check is that of a package index. The version is that of pyproject.toml."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(archive.read(name), validate=True)
    project = pyproject()["project"]
    assert (metadata.name, str(metadata.version)) == (project["name"], project["version"])
    assert metadata.description == (ROOT / "README.md").read_text()
    assert metadata.description_content_type == "text/markdown"
    assert metadata.license_expression == project["license"]


class BareEnvironment:
    """A virtual environment in a folder, with one wheel."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        self._python = folder / "bin" / "python"
        venv.create(folder, with_pip=True, clear=True)
        constraints = ["--constraint", str(ROOT / "tools" / "constraints.txt")]
        self._run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraints, str(wheel))

    def check_installed(self, *, compiled: bool) -> None:
        """Check that the command shows its version, no dependency is missing, and every module can be imported."""
        self._run("-m", "pip", "check")
        version = pyproject()["project"]["version"]
        shown = self._call([str(self._folder / "bin" / "millwheel"), "--version"])
        assert shown.startswith(f"millwheel {version} (Python {sys.version_info.major}.{sys.version_info.minor}"), shown
        assert self._run("-c", _IMPORT_ALL).strip().startswith(str(self._folder))
        assert self._run("-c", _CORE).strip().endswith(".so" if compiled else "core.py")

    def take_first_steps(self, place: Path) -> None:
        """Follow the README, except for Spark: a server, a topology, injectors, a subscription, a test."""
        place.mkdir()
        with Reader(place, self._python) as reader:
            for block in blocks_of(ROOT / "README.md"):
                if block.language == "console":
                    reader.type_commands(block, NOT_RUN)
                elif block.language == "python" and block.file:
                    reader.save(block)
                elif block.language == "python" and "pyspark" not in block.code:
                    self._run("-c", block.code, place=place)
            self._check_windows(place)

    def _check_windows(self, place: Path) -> None:
        command = [str(self._folder / "bin" / "millwheel"), "stream", "tail", "windows", "--from", "oldest", "-n", "3"]
        rows = [json.loads(line) for line in self._call([*command, "-o", "json"], place=place).splitlines()]
        assert sorted((row["value"]["text"], row["value"]["queries"]) for row in rows) == _SIZES, rows

    def _run(self, *arguments: str, place: Path | None = None) -> str:
        return self._call([str(self._python), *arguments], place=place)

    def _call(self, command: list[str], *, place: Path | None = None) -> str:
        """Run a command outside the checkout, so that it uses the package of the virtual environment."""
        done = subprocess.run(
            command, cwd=place or self._folder, capture_output=True, text=True, timeout=patience(120), check=False
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout


def test_a_wheel_works_where_nothing_else_is_installed(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME"):
        # What is imported in a bare environment is what was installed there.
        monkeypatch.delenv(name, raising=False)
    bare = BareEnvironment(tmp_path / "venv", wheel)
    bare.check_installed(compiled=wheel == built(_COMPILED))
    bare.take_first_steps(tmp_path / "desk")
