"""What is in the built files, compared with the checkout."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.metadata import Metadata

from tests.house.tree import ROLES, ROOT, pyproject

__all__ = ["check_metadata", "check_same", "check_source_distribution", "check_wheel"]

_BUILT_FROM: Final = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "CHANGELOG.md"}


def check_wheel(wheel: Path) -> None:
    """Every module, stub and marker of the checkout is in the wheel, unchanged, and no other is."""
    wanted = {path: (ROOT / source).read_bytes() for source, path in _package_files()}
    with zipfile.ZipFile(wheel) as archive:
        there = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    found = {name: content for name, content in there.items() if not name.endswith(".so")}
    assert "millwheel/py.typed" in wanted
    assert "millwheel/rpc/v1/delivery_pb2.pyi" in wanted
    assert set(found) == set(wanted), sorted(set(found) ^ set(wanted))
    assert [name for name in wanted if found[name] != wanted[name]] == []


def check_source_distribution(archive: Path) -> None:
    """It has what the package is made of: modules, contracts, and what a build reads."""
    with tarfile.open(archive) as files:
        members = [member for member in files.getmembers() if member.isfile()]
        found = {str(PurePosixPath(*PurePosixPath(member.name).parts[1:])) for member in members}
    wanted = _BUILT_FROM | {source for source, _ in _package_files()} | set(_committed("proto"))
    assert wanted - found == set(), sorted(wanted - found)


def check_metadata(wheel: Path) -> None:
    """The metadata is valid, as an index checks it, and has the version of pyproject.toml."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(archive.read(name), validate=True)
    project = pyproject()["project"]
    assert (metadata.name, str(metadata.version)) == (project["name"], project["version"])
    assert metadata.description == (ROOT / "README.md").read_text()
    assert metadata.description_content_type == "text/markdown"
    assert metadata.license_expression == project["license"]


def check_same(one: Path, other: Path) -> None:
    """Two wheels are the same, bit for bit."""
    assert one.read_bytes() == other.read_bytes(), f"{one} and {other} differ"


def _package_files() -> Iterator[tuple[str, str]]:
    """The files of the package: where they are in the checkout, and where in a wheel."""
    for source in _committed("millwheel", *ROLES):
        if PurePosixPath(source).suffix in {".py", ".pyi", ".typed"}:
            yield source, source if source.startswith("millwheel/") else f"millwheel/{source}"


def _committed(*folders: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]
