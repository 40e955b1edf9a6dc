"""A topic as a sink: each batch is a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from millwheel.connectors.kafka.asking import Asker
from millwheel.connectors.kafka.caution import Caution
from millwheel.connectors.kafka.clients import ANSWER_SECONDS, Access, KafkaClient, KafkaError, library
from millwheel.connectors.kafka.formats import RegistryFormat
from millwheel.connectors.kafka.progress import NO_PROGRESS, check_ended, comes_next, ensure_topic, newest_progress
from millwheel.connectors.progress import ShardProgress, with_batch
from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.connectors.threads import CallThread
from millwheel.model.time import Timestamp
from millwheel.sdk.errors import UsageError

if TYPE_CHECKING:
    import confluent_kafka

__all__ = ["INIT_SECONDS", "sink"]

T = TypeVar("T")

Key = str | bytes | int | None
Headers = Mapping[str, bytes | str | None]

INIT_SECONDS: Final = 30.0
"""How long a new writer waits until the transactions of former ones have ended."""
_TRANSACTION_SECONDS: Final = 60
"""How long the transaction of a dead process holds up readers, if no other process takes over before."""
_LARGEST_RECORD: Final = 8 << 20
"""What the library lets through, in bytes. The limit that counts is the broker's."""


def sink(
    topic: str,
    *,
    key: str | Callable[[T], Key] | None = None,
    value: Callable[[T], bytes | None] | RegistryFormat[T] = msgspec.json.encode,
    headers: Callable[[T], Headers] | None = None,
    partition: Callable[[T], int] | None = None,
    event_times: bool = True,
    brokers: str | None = None,
    settings: str | None = None,
) -> Sink[T]:
    """A sink that writes to a topic of Kafka. Readers of what is committed find each record exactly once.

    All records of a batch, and its id, are one transaction. The id is in a compacted topic beside it,
    ``millwheel-progress.TOPOLOGY.SINK``, which the sink makes.

    For example::

        totals.key_by("item").to("totals-topic", kafka.sink("totals", key="item", brokers="kafka-1:9092"))

    Args:
        topic: The name of a topic that is there.
        key: The key of a record: the name of a field, or a function of the value. Records of a key are in one
            partition, which is the one that Java's producers choose. None: records have no key, and any partition.
        value: Makes the bytes of a value. JSON by default. None makes a tombstone. Or it is the format of a
            :class:`SchemaRegistry`.
        headers: The headers of a record.
        partition: The partition of a record, instead of the one of its key.
        event_times: Whether Kafka's timestamp of a record is its event time. False: it is that of the write.
        brokers: Addresses of some brokers, with commas between. None: ``settings`` has them.
        settings: The path of a file, on each worker, with properties of the client, as for :func:`source`.

    Raises:
        UsageError: An argument cannot be used.
    """
    if not topic:
        raise UsageError("Kafka needs the name of a topic")
    key_of: Any = attrgetter(key) if isinstance(key, str) else key
    access = Access(brokers, settings)
    bytes_of = value.of_topic(topic).encode if isinstance(value, RegistryFormat) else value
    return _KafkaSink(topic, access, key_of, bytes_of, headers, partition, event_times, Asker(access))


@dataclass(frozen=True, slots=True)
class _KafkaSink(Sink[T], Generic[T]):
    topic: str
    access: Access
    key: Callable[[T], Key] | None
    value: Callable[[T], bytes | None]
    headers: Callable[[T], Headers] | None
    partition: Callable[[T], int] | None
    event_times: bool
    asker: Asker = field(compare=False)
    caution: Caution = field(compare=False, default_factory=Caution)

    async def open_writer(self, place: SinkShard) -> SinkWriter[T]:
        replicas = min((await self.asker.partitions(self.topic)).values())
        progress_topic = await ensure_topic(self.asker, place, replicas)
        for topic in (self.topic, progress_topic):
            await self.caution.look(self.asker, topic, replicas)
        writer = _TransactionWriter(self, place, progress_topic)
        try:
            await writer.begin()
        except BaseException:
            with suppress(Exception):
                await writer.close()
            raise
        return writer

    def record(self, value: T, at: Timestamp) -> dict[str, Any]:
        """The arguments of ``produce`` for a value."""
        made: dict[str, Any] = {"topic": self.topic, "value": self.value(value)}
        if self.key is not None:
            made["key"] = _key_bytes(self.key(value))
        if self.headers is not None:
            made["headers"] = list(self.headers(value).items())
        if self.partition is not None:
            made["partition"] = self.partition(value)
        if self.event_times and at >= 1_000:  # Kafka has milliseconds, and 0 is the time of the write
            made["timestamp"] = at // 1_000
        return made


def _key_bytes(key: Key) -> bytes | None:
    return key if key is None or isinstance(key, bytes) else str(key).encode()


class _TransactionWriter(SinkWriter[T]):
    """Writes the batches of a shard, each in a transaction.

    *Invariant (G1): the newest progress in the topic is the newest batch whose records are there.* Both are committed
    by one transaction, which only the newest writer of the shard can commit. For the transactional id is the shard: a
    writer that begins fences all former ones, and waits until their last transaction is committed or aborted. It reads
    the progress after that. So what it knows is true until it commits, or is fenced.

    Who may break it: another program that uses the same transactional id, or writes to the topic of the progress. Or a
    writer that goes on after a failed commit, whose outcome it does not know: a failed writer is closed, and the next
    one finds out.
    """

    def __init__(self, sink: _KafkaSink[T], place: SinkShard, progress_topic: str) -> None:
        self._sink = sink
        self._place = place
        self.thread = CallThread("millwheel-kafka")
        self._client: KafkaClient | None = None
        self._progress = NO_PROGRESS
        self._progress_topic = progress_topic
        self._refused = ""
        """Why the broker did not take a record."""

    async def begin(self) -> None:
        """Fence former writers, and read how far they came."""
        await self.thread.call(self._fence)
        await check_ended(self._sink.asker, self._progress_topic, self._place.shard)
        await self.thread.call(self._read_progress)

    def _fence(self) -> None:
        place = self._place
        self._client = self._sink.access.producer(**{
            "transactional.id": f"millwheel/{place.sink}/{place.shard}",
            "transaction.timeout.ms": _TRANSACTION_SECONDS * 1_000,
            "partitioner": "murmur2_random",
            "message.max.bytes": _LARGEST_RECORD,
        })  # fmt: skip
        self._do("the writer cannot begin", lambda: self._producer.init_transactions(INIT_SECONDS))

    def _read_progress(self) -> None:
        self._progress = newest_progress(self._sink.access, self._progress_topic, self._place.shard)

    async def write(self, batch: SinkBatch[T]) -> None:
        await self.thread.call(lambda: self._write(batch))

    def _write(self, batch: SinkBatch[T]) -> None:
        if not comes_next(self._progress, batch, self._place):
            return
        # First all that may fail in the program: a transaction that is open holds up readers of the topic.
        records = [self._sink.record(value, at) for value, at in batch.records]
        progress = with_batch(self._place, batch)
        self._do(f"batch {batch.number} is not written", lambda: self._commit(records, progress))
        self._progress = progress

    def _commit(self, records: list[dict[str, Any]], progress: ShardProgress) -> None:
        producer = self._producer
        producer.begin_transaction()
        try:
            for record in records:
                producer.produce(**record, on_delivery=self._delivered)
            place = {"topic": self._progress_topic, "partition": self._place.shard, "key": str(self._place.shard)}
            producer.produce(**place, value=msgspec.json.encode(progress), on_delivery=self._delivered)
            producer.commit_transaction(INIT_SECONDS)
        except BaseException:
            with suppress(Exception):  # the error before says more, and the next writer aborts it at the latest
                producer.abort_transaction(ANSWER_SECONDS)
            raise

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None and not self._refused:
            self._refused = f"a record of {len(message)} bytes for topic {message.topic()!r}: {error.str()}"

    def _do(self, what: str, call: Callable[[], None]) -> None:
        assert self._client is not None
        place = f"topic {self._sink.topic!r}, shard {self._place.shard} of {self._place.sink}"
        try:
            call()
        except library().KafkaException as error:
            if error.args[0].code() in (library().KafkaError._FENCED, library().KafkaError.PRODUCER_FENCED):
                raise KafkaError(f"{place}: {what}: another process writes this shard now") from error
            why = f"{what}: {self._refused}" if self._refused else what
            raise self._client.failure(f"{place}: {why}", error) from error
        self._client.answered()

    @property
    def _producer(self) -> Any:
        assert self._client is not None
        return self._client.handle

    async def close(self) -> None:
        await self.thread.end(self._disconnect)

    def _disconnect(self) -> None:
        self._client = None
