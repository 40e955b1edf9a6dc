"""Spark and Kafka Streams as they are measured: each a program with its job in one JVM."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from bench.peers import programs
from bench.peers.environments import SPARK
from bench.peers.java import KAFKA_STREAMS, SPARK_KAFKA, kafka_streams_classpath, spark_jars
from bench.peers.jobs import Job, Started, java_version, program_environment, started_by
from deploy.local import jars
from deploy.local.child import ChildProcess

__all__ = ["ROCKSDB", "KafkaStreams", "Spark"]

_BATCH: Final = 200_000
"""Records of a batch of Spark. Without a limit, all that is in the topic is one batch, which has one end."""
_TEN_YEARS_MS: Final = 10 * 365 * 86_400_000
_STATE: Final = "spark.sql.streaming.stateStore"
ROCKSDB: Final = {
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    # Both are what its documentation advises for a lower latency, and for writes without a read before each.
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false",
}
"""Settings of Spark for state in RocksDB. States of Python need it, and have no other store."""


@dataclass(frozen=True, slots=True)
class Spark:
    """Structured Streaming in one JVM. A batch begins when the one before it ends. Its sink repeats results.

    Attributes:
        name: Of this form.
        program: The file that it runs.
        more: Settings in place of those here.
    """

    name: str
    program: Path
    more: Mapping[str, str]
    guarantee: str = "at least once"

    def install(self) -> None:
        SPARK.install()
        spark_jars()

    def versions(self) -> dict[str, str]:
        return {**SPARK.versions(), "connector": SPARK_KAFKA.version, "java": java_version(str(jars.find_java()))}

    def settings(self, job: Job) -> dict[str, str]:
        return {
            "spark.master": f"local[{job.processes}]",
            # Its documentation advises as many as cores for states that are small: each has files of its own.
            "spark.sql.shuffle.partitions": str(job.processes),
            "spark.driver.memory": "2g",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.jars": ",".join(map(str, spark_jars())),
            "spark.local.dir": str(Path(job.place) / "tmp"),
            "maxOffsetsPerTrigger": str(_BATCH),
            **self.more,
        }

    @asynccontextmanager
    async def ready(self, job: Job) -> AsyncIterator[Started]:
        place = Path(job.place)
        given = msgspec.structs.replace(job, settings=self.settings(job))
        # Without PYSPARK_PYTHON, Spark starts the python3 of PATH for functions of Python.
        more = {"JAVA_HOME": str(jars.find_java().parents[1]), "PYSPARK_PYTHON": str(SPARK.python)}
        environment = program_environment(given, more)
        command = [str(SPARK.python), "-m", f"{programs.__name__}.{self.program.stem}"]
        process = ChildProcess(command, place / "spark.log", environment)
        async with started_by(lambda: [process]) as started:
            yield started


@dataclass(frozen=True, slots=True)
class KafkaStreams:
    """The DSL of Kafka Streams, in threads of one JVM, with transactions."""

    name: str = "kafka-streams"
    guarantee: str = "exactly once"

    def install(self) -> None:
        kafka_streams_classpath()

    def versions(self) -> dict[str, str]:
        return {"kafka-streams": KAFKA_STREAMS.version, "java": java_version(str(jars.find_java()))}

    def settings(self, job: Job) -> dict[str, str]:
        return {
            "application.id": job.target,
            "bootstrap.servers": job.broker,
            "num.stream.threads": str(job.processes),
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": str(job.commit_seconds * 1_000),
            "auto.offset.reset": "earliest",
            # A member with a name gets its partitions back after a restart. Without, it waits for its session's end.
            "group.instance.id": "count",
            # The records are of 2023. Kafka deletes changes of state that are older than the window and this.
            "windowstore.changelog.additional.retention.ms": str(_TEN_YEARS_MS),
            "state.dir": str(Path(job.place) / "state"),
        }

    @asynccontextmanager
    async def ready(self, job: Job) -> AsyncIterator[Started]:
        given = msgspec.structs.replace(job, settings=self.settings(job))
        more = ("-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        command = [str(jars.find_java()), *more, "-cp", kafka_streams_classpath(), "KafkaStreamsCount"]
        process = ChildProcess(command, Path(job.place) / "kafka-streams.log", program_environment(given, {}))
        async with started_by(lambda: [process]) as started:
            yield started
