"""The count in Flink's DataStream API, with functions of Python in processes of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

import orjson
from pyflink.common import Configuration, Duration, SimpleStringSchema, Time, Types, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.base import DeliveryGuarantee
from pyflink.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from pyflink.datastream.functions import AggregateFunction, ProcessWindowFunction
from pyflink.datastream.window import TumblingEventTimeWindows

__all__ = ["CountHits", "NameWindow", "main"]


class CountHits(AggregateFunction):  # type: ignore[misc]  # the library has no types here
    """Counts the records of a key and window."""

    def create_accumulator(self) -> int:
        """No records."""
        return 0

    def add(self, value: str, accumulator: int) -> int:
        """One more record."""
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        """Their number."""
        return accumulator

    def merge(self, one: int, other: int) -> int:
        """The number of both."""
        return one + other


class NameWindow(ProcessWindowFunction):  # type: ignore[misc]
    """Makes the result of a count."""

    def process(self, key: str, context: Any, elements: Iterable[int]) -> Iterable[str]:
        """Its key, the begin of its window, and the count."""
        for count in elements:
            yield orjson.dumps({"key": key, "start": context.window().start, "count": count}).decode()


def key_of(text: str) -> str:
    """The key of a record."""
    key: str = orjson.loads(text)["key"]
    return key


def same(key: str) -> str:
    """The key of a key."""
    return key


def main(job: dict[str, Any]) -> None:
    """Run the job until the process is stopped."""
    configuration = Configuration()
    for name, value in job["settings"].items():
        configuration.set_string(name, value)
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    # Kafka's timestamps are the event times, so each partition has its watermark within the source.
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(job["out_of_order_ms"]))
    (
        environment.from_source(_source(job), strategy, "hits")
        .map(key_of, output_type=Types.STRING())
        .key_by(same, key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.milliseconds(job["window_ms"])))
        .aggregate(CountHits(), NameWindow(), accumulator_type=Types.LONG(), output_type=Types.STRING())
        .sink_to(_sink(job))
    )
    environment.execute("count")


def _source(job: dict[str, Any]) -> KafkaSource:
    return (
        KafkaSource.builder()
        .set_bootstrap_servers(job["broker"])
        .set_topics(job["source"])
        .set_group_id("flink-datastream")
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(SimpleStringSchema())
        .build()
    )


def _sink(job: dict[str, Any]) -> KafkaSink:
    schema = KafkaRecordSerializationSchema.builder().set_topic(job["target"])
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(job["broker"])
        .set_record_serializer(schema.set_value_serialization_schema(SimpleStringSchema()).build())
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(job["target"])
        .set_property("transaction.timeout.ms", "600000")
        .build()
    )


if __name__ == "__main__":
    main(json.loads(os.environ["PEER_JOB"]))
