"""tools/find_java.sh finds a Java runtime that Spark can use, and skips all others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.house.tree import ROOT
from tests.patience import patience

OLD = "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2"
GOOD = "echo 'openjdk version \"21.0.4\" 2024-07-16' >&2"
WITHOUT_VECTORS = f'if [ "$1" = --add-modules ]; then echo "Module $2 not found" >&2; exit 1; fi; {GOOD}'


def _runtime(home: Path, script: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return home


def _found(folders: Path, *, java_home: Path | None = None, on_path: Path | None = None) -> str | None:
    """The output of the tool if only these runtimes exist. None if it finds none."""
    tools = folders.parent / "tools-alone"
    tools.mkdir(exist_ok=True)
    for name in ("bash", "sh", "dirname", "readlink"):
        if not (tools / name).exists():
            (tools / name).symlink_to(next(Path(p, name) for p in os.defpath.split(":") if Path(p, name).exists()))
    path = [str(on_path / "bin")] if on_path else []
    environment = {"PATH": os.pathsep.join([*path, str(tools)]), "HOME": str(folders), "JVM_FOLDERS": str(folders)}
    if java_home:
        environment["JAVA_HOME"] = str(java_home)
    done = subprocess.run(
        [ROOT / "tools/find_java.sh"], env=environment, capture_output=True, text=True, timeout=patience(30)
    )
    return done.stdout.strip() if done.returncode == 0 else None


def test_an_old_java_home_and_an_old_java_on_path_hide_nothing(tmp_path: Path) -> None:
    good = _runtime(tmp_path / "jvm" / "java-21-openjdk", GOOD)
    old = _runtime(tmp_path / "old", OLD)
    assert _found(tmp_path / "jvm", java_home=old, on_path=old) == str(good)


def test_java_home_comes_first_then_the_one_on_path(tmp_path: Path) -> None:
    _runtime(tmp_path / "jvm" / "java-17-openjdk", GOOD)
    home, on_path = _runtime(tmp_path / "home", GOOD), _runtime(tmp_path / "path", GOOD)
    assert _found(tmp_path / "jvm", java_home=home, on_path=on_path) == str(home)
    assert _found(tmp_path / "jvm", on_path=on_path) == str(on_path)


def test_a_runtime_without_the_vector_module_is_passed_over(tmp_path: Path) -> None:
    home = _runtime(tmp_path / "home", WITHOUT_VECTORS)
    good = _runtime(tmp_path / "jvm" / "a", GOOD)
    assert _found(tmp_path / "jvm", java_home=home) == str(good)


def test_without_a_usable_java_none_is_found(tmp_path: Path) -> None:
    folders = tmp_path / "jvm"
    folders.mkdir()
    assert _found(folders) is None
    _runtime(folders / "java-11", OLD)
    assert _found(folders) is None
