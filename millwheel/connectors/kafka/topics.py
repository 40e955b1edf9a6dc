"""A topic as a source: a split is a partition, and its position is an offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from millwheel.connectors.kafka.asking import Asker
from millwheel.connectors.kafka.beginnings import KafkaStart, PlainStart, plain_start
from millwheel.connectors.kafka.clients import Access, KafkaError
from millwheel.connectors.kafka.fetched import PartitionName
from millwheel.connectors.kafka.formats import RegistryFormat
from millwheel.connectors.kafka.partitions import PartitionReader
from millwheel.connectors.kafka.records import Format, KafkaRecord, reads_as
from millwheel.connectors.source import Source, SplitReader, Splits
from millwheel.model.wording import counted
from millwheel.sdk.errors import UsageError

if TYPE_CHECKING:
    import confluent_kafka
    from typing_extensions import TypeForm

__all__ = ["source"]

T = TypeVar("T")
V = TypeVar("V")


@overload
def source(
    topic: str,
    kind: type[T],
    *,
    brokers: str | None = None,
    settings: str | None = None,
    start: KafkaStart = "earliest",
    format: Format = "json",
    skip_removed: bool = False,
) -> Source[T, int]: ...
@overload
def source(
    topic: str,
    kind: TypeForm[T],
    *,
    brokers: str | None = None,
    settings: str | None = None,
    start: KafkaStart = "earliest",
    format: Format = "json",
    skip_removed: bool = False,
) -> Source[T, int]: ...
@overload
def source(
    topic: str,
    *,
    decode: Callable[[KafkaRecord[bytes]], T] | RegistryFormat[T],
    brokers: str | None = None,
    settings: str | None = None,
    start: KafkaStart = "earliest",
    skip_removed: bool = False,
) -> Source[T, int]: ...
@overload
def source(
    topic: str,
    kind: type[KafkaRecord[V]],
    *,
    decode: RegistryFormat[V],
    brokers: str | None = None,
    settings: str | None = None,
    start: KafkaStart = "earliest",
    skip_removed: bool = False,
) -> Source[KafkaRecord[V], int]: ...
def source(
    topic: str,
    kind: Any = bytes,
    *,
    decode: Callable[[KafkaRecord[bytes]], Any] | RegistryFormat[Any] | None = None,
    brokers: str | None = None,
    settings: str | None = None,
    start: KafkaStart = "earliest",
    format: Format = "json",
    skip_removed: bool = False,
) -> Source[Any, int]:
    """A source that reads a topic of Kafka: each record once, and those of a partition in their order.

    It reads what is committed. The event time is Kafka's timestamp of the record, if the stream has no ``timestamp=``.

    For example::

        bids = topology.source("bids", Bid, kafka.source("bids", Bid, brokers="kafka-1:9092,kafka-2:9092"))

    Args:
        topic: The name of the topic.
        kind: The type of the values. ``KafkaRecord[Bid]`` also has the key, headers, partition, offset and timestamp.
            ``bytes`` leaves the value as it is.
        decode: Makes the value of a record instead. It is a function, and what it raises says that the record cannot
            be read. A KafkaError or a UsageError of it says that the read must be repeated. Or it is the format of a
            :class:`SchemaRegistry`.
        brokers: Addresses of some brokers, with commas between. None: ``settings`` has them.
        settings: The path of a file, on each worker, with properties of the client: ``name=value`` on each line, as in
            ``sasl.password=${KAFKA_PASSWORD}``. ``${NAME}`` is an environment variable of the worker.
        start: Where a partition begins of which nothing was read yet: at its ``earliest`` record, with what comes from
            now on (``latest``), at the first record with this timestamp of Kafka or a later one (a datetime with a time
            zone, or a Timestamp), or at offsets, as in ``{0: 4711, 1: 12}``.
        format: How a value has its fields: ``json`` or ``msgpack``.
        skip_removed: Go on with the earliest record if the topic's retention has removed some that were not read, or
            may have removed some from ``start`` on. By default the partition stops there, with an error.

    Raises:
        UsageError: An argument cannot be used.
    """
    if not topic:
        raise UsageError("Kafka needs the name of a topic")
    begins = plain_start(start)
    read_as = reads_as(kind, format, decode)
    access = Access(brokers, settings)
    return _KafkaSource(topic, read_as, access, begins, skip_removed, Asker(access))


@dataclass(frozen=True, slots=True)
class _KafkaSource(Source[T, int], Generic[T]):
    topic: str
    read_as: Callable[[confluent_kafka.Message], T]
    access: Access
    start: PlainStart
    skip_removed: bool
    asker: Asker = field(compare=False)

    def identity(self) -> str:
        return f"Kafka topic {self.topic}"

    async def splits(self) -> Splits:
        partitions = await self.asker.partitions(self.topic)
        # A partition that is found later was made after this call, and so were its records.
        return Splits([str(number) for number in sorted(partitions)])

    async def open_reader(self, split: str, position: int | None) -> SplitReader[T, int]:
        if position is None:
            await self._check_start()
        place = PartitionName(self.topic, int(split))
        reader = PartitionReader(
            self.access, self.asker, place, self.read_as, start=self.start, skip_removed=self.skip_removed
        )
        await reader.begin(position)
        return reader

    async def _check_start(self) -> None:
        """Raise an error for offsets of partitions that are not there. They mean nothing once a source has begun."""
        if not isinstance(self.start, dict):
            return
        partitions = await self.asker.partitions(self.topic)
        if others := sorted(self.start.keys() - partitions.keys()):
            raise KafkaError(
                f"topic {self.topic!r} has {counted(len(partitions), 'partition')}, from 0 on, and start= has an "
                f"offset for {others}: name those that it has"
            )
