"""Programs from Maven Central, as jars: by Maven if it is installed, otherwise by the Ivy that pyspark contains."""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.local.apt import COMPONENTS, InstallError

__all__ = ["APICURIO", "CASSANDRA", "KAFKA", "JarProgram", "find_java", "install"]

_TRIES: Final = 3
_FIND_JAVA: Final = Path(__file__).resolve().parents[2] / "tools" / "find_java.sh"

_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>{name}</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
_POM_DEPENDENCY: Final = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency>"
)
_POM_ARCHIVE: Final = """<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>
<type>tar.gz</type><classifier>all</classifier>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""
_IVY: Final = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="local" module="{name}"/>
<configurations><conf name="default"/></configurations>
<dependencies>{dependencies}</dependencies></ivy-module>
"""
_IVY_DEPENDENCY: Final = '<dependency org="{0}" name="{1}" rev="{2}" conf="default->default"/>'
_IVY_ARCHIVE: Final = (
    '<dependency org="{0}" name="{1}" rev="{2}" conf="default->default" transitive="false">'
    '<artifact name="{1}" type="tar.gz" ext="tar.gz" m:classifier="all"/></dependency>'
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JarProgram:
    """A program that is jars.

    Attributes:
        name: The name of its folder, before the version.
        size: What is fetched, for people.
        artifacts: Group, name and version of what it is made of. All that these need is fetched with them.
        parts: Beginnings of the names of some jars, without which the program is not whole.
        is_archive: Whether each artifact is an archive that has all its jars.
    """

    name: str
    version: str
    size: str
    artifacts: tuple[tuple[str, str, str], ...]
    parts: tuple[str, ...]
    is_archive: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


APICURIO: Final = JarProgram(
    "apicurio",
    "2.6.13.Final",
    "142 MB",
    (("io.apicurio", "apicurio-registry-app", "2.6.13.Final"),),
    ("apicurio-registry-app-2.6.13.Final-runner.jar",),
    is_archive=True,
)
CASSANDRA: Final = JarProgram(
    "cassandra",
    "5.0.6",
    "60 MB",
    (("org.apache.cassandra", "cassandra-all", "5.0.6"),),
    ("cassandra-all-5.0.6.jar", "guava-", "jamm-", "netty-all-", "snappy-java-"),
)
KAFKA: Final = JarProgram(
    "kafka",
    "4.3.1",
    "45 MB",
    # slf4j-simple: without it, the broker writes no log.
    (("org.apache.kafka", "kafka_2.13", "4.3.1"), ("org.slf4j", "slf4j-simple", "1.7.36")),
    ("kafka_2.13-4.3.1.jar", "kafka-clients-4.3.1.jar", "scala-library-", "slf4j-simple-", "log4j-core-"),
)


def find_java() -> Path:
    """The ``java`` of a runtime that these programs and Spark can use. InstallError if there is none."""
    found = subprocess.run([_FIND_JAVA], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise InstallError("no Java runtime >= 17; run `make install`, or set JAVA_HOME")
    return Path(found.stdout.strip()) / "bin" / "java"


def install(program: JarProgram, say: Say = print) -> Path:
    """The folder of a program's jars. The first call downloads them, which takes up to three minutes."""
    with _one_installer(COMPONENTS / f"{program.name}-{program.version}") as folder:
        jars = folder / "jars"
        if jars.is_dir():
            return jars
        partial = folder / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        maven = shutil.which("mvn")
        say(f"{program}: fetching its jars ({program.size}) with {'Maven' if maven else 'Ivy'}, a minute or three")
        command = _by_maven(program, maven, folder, partial) if maven else _by_ivy(program, folder, partial)
        _run(program, command, folder / "install.log", partial, say)
        # The folder appears only when it is complete. An interrupted run leaves nothing that looks installed.
        partial.rename(jars)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        say(f"{program}: {len(list(jars.iterdir()))} jars in {jars}")
        return jars


@contextmanager
def _one_installer(folder: Path) -> Iterator[Path]:
    """Lock the folder against other processes that install the same."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _by_maven(program: JarProgram, maven: str, folder: Path, target: Path) -> list[str]:
    pom = folder / "pom.xml"
    form = _POM_ARCHIVE if program.is_archive else _POM_DEPENDENCY
    dependencies = "".join(form.format(*artifact) for artifact in program.artifacts)
    pom.write_text(_POM.format(name=program.name, dependencies=dependencies))
    repository = f"-Dmaven.repo.local={folder / 'cache'}"
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    scope = "-DincludeScope=runtime"
    return [maven, "-B", "-q", repository, "-f", str(pom), goal, scope, f"-DoutputDirectory={target}"]


def _by_ivy(program: JarProgram, folder: Path, target: Path) -> list[str]:
    spec = importlib.util.find_spec("pyspark")
    home = Path(spec.origin).parent if spec and spec.origin else Path()
    ivy = sorted((home / "jars").glob("ivy-*.jar"))
    if not ivy:
        raise InstallError(f"the jars of {program.name} need Maven (mvn), or pyspark for its Ivy: run `make install`")
    module = folder / "ivy.xml"
    form = _IVY_ARCHIVE if program.is_archive else _IVY_DEPENDENCY
    dependencies = "".join(form.format(*artifact) for artifact in program.artifacts)
    module.write_text(_IVY.format(name=program.name, dependencies=dependencies))
    pattern = f"{target}/[artifact]-[revision](-[classifier]).[ext]"
    # fmt: off
    return [
        str(find_java()), "-jar", str(ivy[0]), "-cache", str(folder / "cache"), "-m2compatible", "-confs", "default",
        "-ivy", str(module), "-types", "jar", "bundle", "tar.gz", "-retrieve", pattern,
    ]
    # fmt: on


def _run(program: JarProgram, command: list[str], log: Path, target: Path, say: Say) -> None:
    """Run the command, and retry after network errors. A retry is short, because downloaded files stay in the cache."""
    for attempt in range(1, _TRIES + 1):
        with log.open("wb") as output:
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
        if done.returncode == 0:
            _unpack(target)
            if _is_whole(program, target):
                return
        say(f"{program}: attempt {attempt} of {_TRIES} failed, see {log}")
    raise InstallError(f"{program} could not be fetched from Maven Central; {log} says why")


def _unpack(target: Path) -> None:
    for archive in target.glob("*.tar.gz"):
        with tarfile.open(archive) as packed:
            packed.extractall(target, filter="data")
        archive.unlink()


def _is_whole(program: JarProgram, target: Path) -> bool:
    names = [jar.name for jar in target.glob("*.jar")]
    return all(any(name.startswith(part) for name in names) for part in program.parts)
