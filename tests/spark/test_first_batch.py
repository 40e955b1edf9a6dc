"""What the first batch of a session costs: the imports of the processes that Spark starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from tests.documents.blocks import blocks_of
from tests.house.tree import ROOT
from tests.patience import patience


def run(program: str, **environment: str) -> str:
    """What a program prints, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=patience(60.0),
    ).stdout.strip()


def test_planning_and_committing_import_no_arrow() -> None:
    """Only tasks and readers have columns. pyarrow imports NumPy, too, and takes as long as MillWheel itself."""
    wanted = "pyarrow", "numpy", "grpc_health.v1.health", "millwheel.injectors.spark.readers"
    program = f"import sys, millwheel.injectors.spark.source; print([one for one in {wanted!r} if one in sys.modules])"
    assert run(program) == "[]"


def test_the_page_compiles_an_archive(tmp_path: Path) -> None:
    archive = tmp_path / "modules.zip"
    with ZipFile(archive, "w") as modules:
        modules.writestr("plain/__init__.py", "")
        modules.writestr("plain/one.py", "value = 7\n")
        modules.writestr("plain/only.pyc", "no source of it is here")
    (script,) = [one for one in blocks_of(ROOT / "docs/spark.md") if one.file == "compile_spark.py"]
    (tmp_path / script.file).write_text(script.code)
    archive.chmod(0o604)
    for _ in range(2):  # an image may be made from another one, whose archives are compiled
        subprocess.run([sys.executable, script.file, archive], cwd=tmp_path, check=True, timeout=patience(60.0))
    program = "import plain.one as one; print(one.value, one.__file__)"
    assert run(program, PYTHONPATH=str(archive)).split() == ["7", str(archive / "plain/one.pyc")]
    with ZipFile(archive) as modules:
        assert modules.read("plain/one.py") == b"value = 7\n"
        assert [name for name in modules.namelist() if not name.endswith("/")] == sorted(
            f"plain/{name}" for name in ("__init__.py", "__init__.pyc", "one.py", "one.pyc", "only.pyc")
        )
    assert archive.stat().st_mode & 0o777 == 0o604
