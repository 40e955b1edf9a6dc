"""Mutations of the connector of Kafka: removed records, idle partitions, fencing and progress (sections 5.2, 6.1)."""

from __future__ import annotations

from millwheel.connectors import progress as shard_progress
from millwheel.connectors.kafka import beginnings, fetched, partitions, progress, protobuf, records, writers
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY = "simulated topologies have no connectors: the test shows it by itself, with a broker"
_SOURCE = "tests/connectors/kafka/test_source.py"
_SINK = "tests/connectors/kafka/test_sink.py"

rewriting(
    "kafka-end-without-a-broker",
    "G7",
    "nothing waits in a partition only if the broker has said so during the read",
    partitions,
    "self._high = await self._asker.end(*self._place)",
    "pass",
    seeds=0,
    test=f"{_SOURCE}::test_a_broker_that_hangs_makes_no_partition_idle",
    why=_WHY,
)

rewriting(
    "kafka-skips-what-was-removed",
    "G1",
    "records that were removed before they were read are an error",
    partitions,
    "if not self._skip_removed:",
    "if False:",
    seeds=0,
    test=f"{_SOURCE}::test_removed_records_are_an_error_and_no_jump",
    why=_WHY,
)

rewriting(
    "kafka-time-of-what-is-left",
    "G1",
    "records that may have been removed from a time on are an error",
    beginnings,
    "uncertain=low > 0 and offset <= low",
    "uncertain=False",
    seeds=0,
    test="tests/connectors/test_starts.py::test_a_time_leaves_nothing_out_silently",
    why="simulated topologies have no connectors: the test shows it by itself",
)

rewriting(
    "kafka-id-of-a-process",
    "G3",
    "the transactional id is the shard, so a new writer fences the former one",
    writers,
    '"transactional.id": f"millwheel/{place.sink}/{place.shard}"',
    '"transactional.id": f"millwheel/{place.sink}/{place.shard}/{id(self)}"',
    seeds=0,
    test=f"{_SINK}::test_a_former_writer_that_wakes_up_writes_nothing",
    why=_WHY,
)

rewriting(
    "kafka-progress-of-the-last-offset",
    "G1",
    "the progress is found behind markers of attempts that were aborted",
    progress,
    "while first > low:",
    "while first == high > low:",
    seeds=0,
    test=f"{_SINK}::test_a_commit_whose_answer_was_lost_is_found",
    why=_WHY,
)

rewriting(
    "kafka-batch-again",
    "G1",
    "a batch that is in the topic is not written again",
    progress,
    "(progress.run, progress.id) == (place.run, batch.id)",
    "False",
    seeds=0,
    test=f"{_SINK}::TestTopic::test_a_batch_that_comes_again_changes_nothing",
    why=_WHY,
)

rewriting(
    "kafka-any-batch-is-next",
    "G1",
    "a batch follows the one with the id before it",
    shard_progress,
    "(found.run, found.id) == (place.run, batch.after)",
    "found.run == place.run",
    seeds=0,
    test=f"{_SINK}::test_a_batch_follows_the_one_that_is_there",
    why=_WHY,
)

rewriting(
    "kafka-registry-away-is-a-bad-record",
    "G1",
    "a schema registry that is away makes no record one that cannot be read",
    fetched,
    "except (KafkaError, UsageError):",
    "except ZeroDivisionError:",
    seeds=0,
    test="tests/connectors/kafka/test_registry.py::test_a_registry_that_is_away_loses_nothing",
    why=_WHY,
)

rewriting(
    "kafka-protobuf-message-is-not-compared",
    "G1",
    "a record in Protobuf becomes a value only if its writer wrote this message",
    protobuf,
    "if found != place:",
    "if place is None:",
    seeds=0,
    test="tests/connectors/kafka/test_protobuf.py::test_another_message_is_an_error",
    why=_WHY,
)

rewriting(
    "kafka-reads-at-once-without-bound",
    "G13",
    "messages of too many bytes are read one by one, up to the bound",
    records,
    "if size >= most:",
    "if False:",
    seeds=0,
    test="tests/connectors/kafka/test_reading_at_once.py::test_what_is_read_at_once_is_what_is_read_one_by_one",
    why="the core of the connector alone: the test shows it by itself",
)
