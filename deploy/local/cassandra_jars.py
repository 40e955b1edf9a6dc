"""Cassandra's jars from Maven Central: by Maven if it is installed, otherwise by the Ivy that pyspark contains."""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.local.apt import COMPONENTS, InstallError

__all__ = ["VERSION", "find_java", "install"]

VERSION: Final = "5.0.6"
_TRIES: Final = 3
_FIND_JAVA: Final = Path(__file__).resolve().parents[2] / "tools" / "find_java.sh"

_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>cassandra</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId>
<version>{version}</version></dependency></dependencies></project>
"""

Say = Callable[[str], None]


def find_java() -> Path:
    """The ``java`` of a runtime that Cassandra and Spark can use. InstallError if there is none."""
    found = subprocess.run([_FIND_JAVA], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise InstallError("no Java runtime >= 17; run `make install`, or set JAVA_HOME")
    return Path(found.stdout.strip()) / "bin" / "java"


def install(say: Say = print) -> Path:
    """The folder of Cassandra's jars. The first call downloads them, which takes one to three minutes."""
    with _one_installer(COMPONENTS / f"cassandra-{VERSION}") as folder:
        jars = folder / "jars"
        if jars.is_dir():
            return jars
        partial = folder / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        maven = shutil.which("mvn")
        say(f"cassandra {VERSION}: fetching its jars (60 MB) with {'Maven' if maven else 'Ivy'}, a minute or three")
        command = _by_maven(maven, folder, partial) if maven else _by_ivy(folder, partial)
        _run(command, folder / "install.log", partial, say)
        # The folder appears only when it is complete. An interrupted run leaves nothing that looks installed.
        partial.rename(jars)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        say(f"cassandra {VERSION}: {len(list(jars.iterdir()))} jars in {jars}")
        return jars


@contextmanager
def _one_installer(folder: Path) -> Iterator[Path]:
    """Lock the folder against other processes that install the same."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _by_maven(maven: str, folder: Path, target: Path) -> list[str]:
    pom = folder / "pom.xml"
    pom.write_text(_POM.format(version=VERSION))
    repository = f"-Dmaven.repo.local={folder / 'cache'}"
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    scope = "-DincludeScope=runtime"
    return [maven, "-B", "-q", repository, "-f", str(pom), goal, scope, f"-DoutputDirectory={target}"]


def _by_ivy(folder: Path, target: Path) -> list[str]:
    spec = importlib.util.find_spec("pyspark")
    home = Path(spec.origin).parent if spec and spec.origin else Path()
    ivy = sorted((home / "jars").glob("ivy-*.jar"))
    if not ivy:
        raise InstallError("Cassandra's jars need Maven (mvn), or pyspark for the Ivy in it: run `make install`")
    pattern = f"{target}/[artifact]-[revision](-[classifier]).[ext]"
    # fmt: off
    return [
        str(find_java()), "-jar", str(ivy[0]), "-cache", str(folder / "cache"), "-m2compatible", "-confs", "default",
        "-dependency", "org.apache.cassandra", "cassandra-all", VERSION, "-types", "jar", "bundle",
        "-retrieve", pattern,
    ]
    # fmt: on


def _run(command: list[str], log: Path, target: Path, say: Say) -> None:
    """Run the command, and retry after network errors. A retry is short, because downloaded files stay in the cache."""
    for attempt in range(1, _TRIES + 1):
        with log.open("wb") as output:
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
        if done.returncode == 0 and _is_whole(target):
            return
        say(f"cassandra {VERSION}: attempt {attempt} of {_TRIES} failed, see {log}")
    raise InstallError(f"cassandra {VERSION} could not be fetched from Maven Central; {log} says why")


def _is_whole(target: Path) -> bool:
    names = {jar.name for jar in target.glob("*.jar")}
    return f"cassandra-all-{VERSION}.jar" in names and all(
        any(name.startswith(f"{needed}-") for name in names) for needed in ("guava", "jamm", "netty-all", "snappy-java")
    )
