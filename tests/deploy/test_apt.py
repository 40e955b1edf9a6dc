"""Programs that are unpacked from the distribution's packages, on a machine where nothing was prepared."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from deploy.local import apt, postgres
from deploy.local.postgres import PostgresServer

APT_GET = """#!/bin/sh
case "$1" in
    update) touch "{folder}/updated" ;;
    download) [ -f "{folder}/updated" ] || {{ echo "E: 404 Not Found" >&2; exit 100; }}
        cp "{folder}/tea.deb" . ;;
esac
"""
APT_CACHE = """#!/bin/sh
echo "  Candidate: 1"
"""
SUDO = """#!/bin/sh
shift
exec "$@"
"""


def package(folder: Path) -> None:
    """A package ``tea`` with one file."""
    tree = folder / "tea"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN").chmod(0o755)
    (tree / "DEBIAN" / "control").write_text(
        "Package: tea\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: tea\n"
    )
    (tree / "leaf").write_text("green")
    subprocess.run(["dpkg-deb", "-b", tree, folder / "tea.deb"], check=True, capture_output=True)


def test_old_lists_of_packages_are_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive no longer has the version that the lists of this machine name."""
    package(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("apt-get", APT_GET.format(folder=tmp_path)), ("apt-cache", APT_CACHE), ("sudo", SUDO)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(apt, "COMPONENTS", tmp_path / "components")
    assert (apt.unpack("tea") / "leaf").read_text() == "green"
    (tmp_path / "tea.deb").unlink()
    assert apt.unpack("tea") == tmp_path / "components" / "tea"  # at once


def test_postgresql_runs_from_a_folder_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout in the home of root, whose server is a process of another user."""
    programs = postgres.install()
    root, version = programs.parents[4], programs.parent.name
    closed = tmp_path / "closed"
    for folder in ("lib", "share"):
        part = Path("usr", folder, "postgresql", version)
        shutil.copytree(root / part, closed / part, ignore=shutil.ignore_patterns("bitcode", "locale", "man"))
    closed.chmod(stat.S_IRWXU)
    copied = closed / programs.relative_to(root)
    monkeypatch.setattr(postgres, "install", lambda: copied)
    with PostgresServer() as server:
        assert server.process.is_running
