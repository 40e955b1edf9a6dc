"""Kafka: topics as sources and as sinks, exactly once. See docs/kafka.md.

It needs ``openmillwheel[kafka]`` where a topology runs. A program that only declares one does without.
"""

from millwheel.connectors.kafka.clients import KafkaError
from millwheel.connectors.kafka.formats import RegistryFormat
from millwheel.connectors.kafka.records import KafkaRecord
from millwheel.connectors.kafka.schemas import SchemaRegistry
from millwheel.connectors.kafka.topics import source
from millwheel.connectors.kafka.writers import sink

__all__ = ["KafkaError", "KafkaRecord", "RegistryFormat", "SchemaRegistry", "sink", "source"]
