"""An environment for each other system, in build/peers: ``python -m bench.peers.environments`` makes them.

Each has the versions that stand here. What is there is not made again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peers.java import kafka_streams_classpath, spark_jars
from deploy.local import jars
from deploy.local.apt import InstallError

__all__ = ["BYTEWAX", "FLINK", "QUIX", "SPARK", "PeerEnvironment", "connector_jar", "main"]

PEERS: Final = Path(__file__).resolve().parents[2] / "build" / "peers"
_ASKED: Final = "requirements.txt"
_VERSIONS: Final = """
import importlib.metadata, platform, sys
print(platform.python_version(), *map(importlib.metadata.version, sys.argv[1:]))
"""
_CONNECTOR: Final = jars.JarProgram(
    "flink-connector-kafka",
    "5.0.0-2.2",
    "10 MB",
    (("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2"),),
    ("flink-sql-connector-kafka-5.0.0-2.2.jar",),
)


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """A virtual environment of Python with a system in it.

    Attributes:
        name: Of its folder in build/peers.
        requirements: What is installed, with versions.
        pythons: The minor versions of Python 3 that the system has wheels for, the best one first.
        size: What is fetched, for people.
    """

    name: str
    requirements: tuple[str, ...]
    pythons: tuple[int, ...]
    size: str

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return PEERS / self.name / "bin" / "python"

    @property
    def packages(self) -> Path:
        """The folder of its packages."""
        return next((PEERS / self.name / "lib").glob("python3.*/site-packages"))

    def install(self) -> None:
        """Make it unless it is there. InstallError says why it cannot be made."""
        asked, wanted = PEERS / self.name / _ASKED, "\n".join(self.requirements)
        if asked.exists() and asked.read_text() == wanted:
            return
        print(f"{self.name}: fetching it ({self.size}) into {PEERS / self.name}", flush=True)
        shutil.rmtree(PEERS / self.name, ignore_errors=True)
        self._run(str(self._interpreter()), "-m", "venv", str(PEERS / self.name))
        self._run(str(self.python), "-m", "pip", "install", "--quiet", *self.requirements)
        # Written last: an environment that is half made has no such file.
        asked.write_text(wanted)

    def versions(self) -> dict[str, str]:
        """Of Python, and of what was asked for."""
        names = [one.partition("==")[0] for one in self.requirements]
        done = subprocess.run([self.python, "-c", _VERSIONS, *names], capture_output=True, text=True, check=True)
        return dict(zip(("python", *names), done.stdout.split(), strict=True))

    def _interpreter(self) -> Path:
        for minor in self.pythons:
            for path in _candidates(minor):
                if _is_python(path, minor):
                    return path
        wanted = " or ".join(f"3.{minor}" for minor in self.pythons)
        raise InstallError(f"{self.name} needs Python {wanted}, which is not on PATH: install it, or set PEERS_PYTHON")

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InstallError(f"{self.name} cannot be installed: {(done.stdout + done.stderr)[-2_000:]}")


FLINK: Final = PeerEnvironment("flink", ("apache-flink==2.2.1", "orjson==3.13.0"), (11, 12), "600 MB")
BYTEWAX: Final = PeerEnvironment(
    "bytewax", ("bytewax==0.21.1", "confluent-kafka==2.16.1", "orjson==3.13.0"), (12, 11), "20 MB"
)
# Functions of Python need the three others. Spark names pandas 3 as not yet supported.
_SPARK: Final = ("pyspark==4.2.0", "pandas==2.3.3", "protobuf==6.33.6", "pyarrow==22.0.0")
SPARK: Final = PeerEnvironment("spark", _SPARK, (11, 12), "530 MB")
QUIX: Final = PeerEnvironment("quix", ("quixstreams==3.28.1",), (12, 11), "50 MB")


def _candidates(minor: int) -> Iterator[Path]:
    """Where Python 3.``minor`` may be: as the user says, this interpreter, on PATH, and where pyenv has it."""
    if given := os.environ.get("PEERS_PYTHON"):
        yield Path(given)
    yield Path(sys.executable)
    if found := shutil.which(f"python3.{minor}"):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python"), reverse=True)


def _is_python(path: Path, minor: int) -> bool:
    """Whether it starts, and is this version. A version manager's shim may do neither."""
    code = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, {minor}))"
    return path.exists() and subprocess.run([path, "-c", code], capture_output=True, check=False).returncode == 0


def connector_jar() -> Path:
    """Flink's connector to Kafka. The first call fetches it. InstallError if that fails."""
    return next(jars.install(_CONNECTOR).glob("flink-sql-connector-kafka-*.jar"))


def main() -> int:
    """Make all environments. Return 1 if one cannot be made, and print why."""
    failed = False
    others = (SPARK.install, spark_jars, kafka_streams_classpath, QUIX.install)
    for install in (FLINK.install, BYTEWAX.install, connector_jar, *others):
        try:
            install()
        except InstallError as error:
            failed = True
            print(f"install: {error}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
