"""What the systems of Java are made of: their jars from Maven Central, and the program of Kafka Streams, compiled."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from deploy.local import jars
from deploy.local.apt import InstallError

__all__ = ["KAFKA_STREAMS", "SPARK_KAFKA", "kafka_streams_classpath", "spark_jars"]

SPARK_KAFKA: Final = jars.JarProgram(
    "spark-sql-kafka",
    "4.2.0",
    "60 MB",
    (("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),),
    (
        "spark-sql-kafka-0-10_2.13-4.2.0.jar",
        "spark-token-provider-kafka-",
        "kafka-clients-",
        "commons-pool2-",
    ),
)
KAFKA_STREAMS: Final = jars.JarProgram(
    "kafka-streams",
    "4.3.1",
    "80 MB",
    # slf4j-simple: without it, the library writes no log.
    (("org.apache.kafka", "kafka-streams", "4.3.1"), ("org.slf4j", "slf4j-simple", "1.7.36")),
    ("kafka-streams-4.3.1.jar", "kafka-clients-4.3.1.jar", "rocksdbjni-", "jackson-databind-", "slf4j-simple-"),
)
_SOURCE: Final = Path(__file__).with_name("programs") / "KafkaStreamsCount.java"


def spark_jars() -> list[Path]:
    """Spark's connector to Kafka. The other jars that it needs are in Spark. InstallError if they cannot be had."""
    folder = jars.install(SPARK_KAFKA)
    return sorted(jar for part in SPARK_KAFKA.parts for jar in folder.glob(f"{part}*"))


def kafka_streams_classpath() -> str:
    """The program of Kafka Streams and its jars. InstallError if they cannot be had, or there is no compiler."""
    folder = jars.install(KAFKA_STREAMS)
    classes = folder.with_name("classes")
    classpath = f"{folder}/*"
    compiled = classes / f"{_SOURCE.stem}.class"
    if not compiled.exists() or compiled.stat().st_mtime < _SOURCE.stat().st_mtime:
        compiler = jars.find_java().with_name("javac")
        if not compiler.exists():
            raise InstallError(f"kafka-streams needs a JDK, and {compiler} is not there: install one, or set JAVA_HOME")
        command = [str(compiler), "-d", str(classes), "-cp", classpath, str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InstallError(f"{_SOURCE.name} cannot be compiled: {(done.stdout + done.stderr)[-2_000:]}")
    return os.pathsep.join((str(classes), classpath))
