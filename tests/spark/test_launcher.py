"""Spark's processes import the installed PySpark, and the archive only where it is another version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from millwheel.injectors.spark import launcher
from tests.patience import patience

ARCHIVE = Path("python/lib/pyspark.zip")


def installed(folder: Path, name: str = "") -> Path:
    """An installation with its archive. Returns the archive."""
    archive = folder / "pyspark" / ARCHIVE
    archive.parent.mkdir(parents=True)
    (folder / "pyspark/__init__.py").write_text(f"name = 'installed {name}'\n")
    with ZipFile(archive, "w") as modules:
        modules.writestr("pyspark/__init__.py", f"name = 'archive {name}'\n")
    return archive


def run(place: Path, *arguments: str, path: list[Path], command: tuple[str, ...] = ()) -> str:
    """What the launcher prints in a folder, with Spark's path. ``command``: how it is started."""
    done = subprocess.run(
        [*(command or (sys.executable, str(launcher.__file__))), *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        check=True,
        timeout=patience(30.0),
    )
    return done.stdout.strip()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder with a module that shows how it runs."""
    place = tmp_path / "current"
    place.mkdir()
    (place / "show.py").write_text("import pyspark, sys\nprint(pyspark.name, __name__, sys.argv[1:])\n")
    return place


def test_the_installed_package_is_imported(tmp_path: Path, program: Path) -> None:
    archive = installed(tmp_path / "site", "4.3")
    path = [archive, tmp_path / "site"]
    assert run(program, "-m", "show", "pyspark.worker", path=path) == "installed 4.3 __main__ ['pyspark.worker']"


def test_an_archive_of_another_installation_stays(tmp_path: Path, program: Path) -> None:
    other = installed(tmp_path / "home", "4.2")
    installed(tmp_path / "site", "4.3")
    assert run(program, "-m", "show", path=[other, tmp_path / "site"]) == "archive 4.2 __main__ []"


def test_an_archive_stays_if_another_package_comes_next(tmp_path: Path, program: Path) -> None:
    """Without its archive, the installation would come after another one of the user's path."""
    archive = installed(tmp_path / "site", "4.3")
    installed(tmp_path / "users", "4.2")
    path = [archive, tmp_path / "users", tmp_path / "site"]
    assert run(program, "-m", "show", path=path) == "archive 4.3 __main__ []"


def test_other_arguments_go_to_the_interpreter(tmp_path: Path) -> None:
    assert run(tmp_path, "-c", "import sys; print(sys.argv[1:])", "a b", path=[]) == "['a b']"


def test_a_path_without_pyspark_stays(tmp_path: Path) -> None:
    path = [str(tmp_path), str(tmp_path / "none.zip")]
    assert launcher.without_archive(path) == path


USING = """
import os
from millwheel.injectors.spark import use_this_python
use_this_python()
print(os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"])
"""


def commands_of_a_program() -> tuple[str, str]:
    """What a program without a session has set. The program has ended."""
    ran = subprocess.run(
        [sys.executable, "-c", USING], capture_output=True, check=True, text=True, timeout=patience(30.0)
    )
    command, same = ran.stdout.split()
    return command, same


def test_the_process_that_looks_for_sources_is_launched(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads its command from a variable when the JVM starts: no later call can change it."""
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(variable, "another")
    command, same = commands_of_a_program()
    assert command == same
    assert (command, same) == commands_of_a_program(), "a child of a program, or one that comes later, has the same"
    path = [installed(tmp_path / "site", "4.3"), tmp_path / "site"]
    assert run(program, "-m", "show", path=path, command=(command,)) == "installed 4.3 __main__ []"
    assert run(program, "-c", "import sys; print(sys.executable)", path=[], command=(command,)) == sys.executable
