"""What the first batch of a session costs: the processes that Spark starts, and their imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from pyspark.sql import SparkSession

from millwheel.injectors.spark import start_python
from millwheel.injectors.spark.starting import tried
from tests.documents.blocks import blocks_of
from tests.house.tree import ROOT
from tests.patience import patience
from tests.spark.jobs import write_trips
from tests.spark.server import TripServer

ARROW = "pyarrow", "numpy", "pandas", "millwheel.injectors.spark.readers", "millwheel.injectors.spark.tasks"
CLIENT = "asyncio", "grpc", "millwheel.client.control", "millwheel.rpc.v1.control_pb2"


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


@pytest.mark.parametrize(
    ("module", "not_loaded"),
    [("source", (*ARROW, *CLIENT)), ("writers", (*ARROW, "grpc_health.v1.health"))],
    ids=["the process that makes the source", "those that plan and commit"],
)
def test_a_process_imports_what_its_step_needs(module: str, not_loaded: tuple[str, ...]) -> None:
    """Only tasks and readers have columns. pyarrow imports NumPy, too, and takes as long as MillWheel itself."""
    loaded = f"[one for one in {not_loaded!r} if one in sys.modules]"
    assert run(f"import sys, millwheel.injectors.spark.{module}; print({loaded})") == "[]"


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_first_batch_uses_processes_started_before(server: TripServer, tmp_path: Path) -> None:
    write_trips(tmp_path / "in", range(100), "0")
    driver = subprocess.run(
        [sys.executable, "-m", "tests.spark.started", server.address, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=patience(120.0),
    )
    assert driver.returncode == 0, driver.stderr[-4_000:]
    few, before, micro_batch, batch_write, job, frozen = (json.loads(line) for line in driver.stdout.splitlines()[-6:])
    assert [one for one in before if "commit" not in one and "sink" not in one and "create" not in one] == few
    assert [one.split()[0].rpartition(".")[2] for one in before] == [
        "commit_data_source_write",
        "create_data_source",
        "lookup_data_sources",  # the launcher runs it, too
        "python_streaming_sink_runner",
        "write_into_data_source",
        "worker",
    ]
    assert micro_batch == before
    assert batch_write == before
    assert job == ["start_python: starts the Python processes of the executors", 2], "a task for each core"
    assert min(frozen) > 50_000, "the collector leaves out what was imported"
    warnings = [line for line in driver.stderr.splitlines() if "so the first batch starts them" in line]
    assert len(warnings) == 1, "a stopped session needs no processes"
    assert warnings[0].endswith("ModuleNotFoundError: No module named 'millwheel_of_no_executor'")


def test_what_fails_in_java_is_in_the_log(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tried(lambda session: session.sparkContext.textFile(str(tmp_path / "none")).getNumPartitions(), spark)
    assert "so the first batch starts them: " in caplog.messages[0]
    assert "Exception: Input path does not exist" in caplog.messages[0]


def test_a_session_without_a_context_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """One of Spark Connect has none."""
    session: Any = object()
    start_python(session).join(patience(5.0))
    assert sorted(message.rpartition(": ")[2] for message in caplog.messages) == [
        "'object' object has no attribute '_jsparkSession'",
        *["'object' object has no attribute 'sparkContext'"] * 2,
    ]


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
