"""Speculation on a Spark cluster of two hosts: Spark starts no copy of a task on the host that runs the task."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from examples.demo.spark_job import QUICK_START
from tests.patience import patience
from tests.spark.faults import VARIABLE, arm, happened
from tests.spark.jobs import write_trips
from tests.spark.server import TripServer
from tests.spark.test_stream import check

pytestmark = [pytest.mark.timeout(1_000), pytest.mark.usefixtures("accidents")]

STALL = patience(112)
"""Seconds that the slow task would take."""
SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.efficiency.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.cores.max": "2",
}


@contextmanager
def running(place: Path, name: str, *arguments: str) -> Iterator[None]:
    """One of Spark's daemons, with its child processes."""
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), *arguments]
    env = {**os.environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_START}
    with (place / f"{name}.log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


@pytest.fixture
def master(spark: object, tmp_path: Path) -> Iterator[str]:
    """The URL of a cluster of two hosts with one core each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        listen = ("--host", "127.0.0.1", "--port", port, "--webui-port", "0")
        stack.enter_context(running(tmp_path, "master", f"{deploy}.master.Master", *listen))
        for number in (2, 3):
            own = ("--host", f"127.0.0.{number}", "--webui-port", "0", "--work-dir", str(tmp_path / f"work-{number}"))
            size = ("--cores", "1", "--memory", "700m")
            stack.enter_context(running(tmp_path, f"worker-{number}", f"{deploy}.worker.Worker", *own, *size, url))
        yield url


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_speculative_copy_of_a_stuck_task_completes_its_batch(
    master: str, server: TripServer, tmp_path: Path
) -> None:
    for number in range(2):
        write_trips(tmp_path / "in", range(number * 400, number * 400 + 400), str(number))
    arm("stall", str(STALL))
    inherited = {f"spark.executorEnv.{name}": os.environ[name] for name in (VARIABLE, "PYTHONPATH", "PYSPARK_PYTHON")}
    settings = [f"{name}={value}" for name, value in {"spark.master": master, **SETTINGS, **inherited}.items()]
    command = [sys.executable, "-m", "tests.spark.jobs", server.address, str(tmp_path), *settings]
    began = time.monotonic()
    with (tmp_path / "driver.log").open("wb") as log:
        done = subprocess.run(command, stdout=log, stderr=log, timeout=STALL, check=False)
    assert done.returncode == 0, (tmp_path / "driver.log").read_text()[-4_000:]
    assert happened("stall")
    assert happened("again"), "a copy has run"
    assert time.monotonic() - began < STALL
    check(server, 800)
