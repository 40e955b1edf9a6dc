"""The progress of a sink: the newest batch of each shard, in a topic beside the records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from millwheel.connectors.kafka.asking import Asker, NoTopicError
from millwheel.connectors.kafka.clients import ANSWER_SECONDS, Access, KafkaClient, KafkaError, is_moving, library
from millwheel.connectors.progress import ShardProgress, follows, is_over, without_batch
from millwheel.connectors.sink import SinkBatch, SinkShard

__all__ = ["NO_PROGRESS", "check_ended", "comes_next", "ensure_topic", "newest_progress", "progress_topic"]

NO_PROGRESS: Final = ShardProgress(0, 0, "")
"""That of a shard of which nothing is written."""

_decode: Final = msgspec.json.Decoder(ShardProgress).decode
"""Made here, because shards decode theirs on threads of their own: see ``millwheel.sdk.known_types``."""

_LOOK_BACK: Final = 64
"""How many offsets before the end are read at first. A commit takes two, and so does an aborted attempt."""

_LOOKS: Final = 50
"""How often a topic that was made is looked for, each tenth of a second."""


def progress_topic(sink: str) -> str:
    """The name of the topic for a sink, such as ``millwheel-progress.shop.totals``. Shard N has its partition N."""
    return f"millwheel-progress.{sink.replace('/', '.')}"


def comes_next(progress: ShardProgress, batch: SinkBatch[Any], place: SinkShard) -> bool:
    """Whether to write the batch. False: it is there already.

    Raises:
        KafkaError: The topic has other batches than those which the topology has sent. It says what to do.
    """
    if (progress.run, progress.id) == (place.run, batch.id):
        return False
    if follows(progress, place, batch):
        return True
    topic = progress_topic(place.sink)
    former = msgspec.json.encode(without_batch(place, batch)).decode()
    add = f"add this value to partition {place.shard} of topic {topic!r}, with the key {place.shard}: {former}"
    if progress.run > place.run:
        raise KafkaError(is_over(place, add))
    raise KafkaError(
        f"topic {topic!r} says that batch {progress.batch} is the newest one in Kafka of {place.sink}, shard "
        f"{place.shard}, and batch {batch.number} comes next, after another one: the topology or Kafka was set back to "
        f"an earlier time, or the topic was removed. Write to a sink of another name. Or {add}. Then the sink goes on, "
        "and what is twice or missing in Kafka stays so"
    )


async def ensure_topic(asker: Asker, place: SinkShard, replicas: int) -> str:
    """Make the topic, or more of its partitions, if it has none for the shard. Returns its name.

    It is compacted, so it keeps the newest record of each shard for ever.
    """
    topic = progress_topic(place.sink)
    have = await _count(asker, topic)
    if have >= place.shards:
        return topic
    try:
        if have:
            await asker.extend(topic, place.shards)
        else:
            await asker.make(topic, place.shards, replicas, {"cleanup.policy": "compact"})
    except KafkaError:
        # Another shard may have made it in the same moment. If not, the error says why it cannot be made.
        if not await _appears(asker, topic, place.shards):
            raise
    if not await _appears(asker, topic, place.shards):
        raise KafkaError(f"topic {topic!r} was made, and is not there yet")
    return topic


async def _count(asker: Asker, topic: str) -> int:
    try:
        return len(await asker.partitions(topic))
    except NoTopicError:
        return 0


async def _appears(asker: Asker, topic: str, partitions: int) -> bool:
    """Whether the brokers know so many partitions. A new topic takes them a moment."""
    for _ in range(_LOOKS):
        if await _count(asker, topic) >= partitions:
            return True
        await asyncio.sleep(0.1)
    return False


async def check_ended(asker: Asker, topic: str, shard: int) -> None:
    """See that no transaction of former writers is open. The writer has begun, so all of them have ended.

    What an open one has written is neither there nor gone, and the next commit may make it visible.

    Raises:
        KafkaError: One is open.
    """
    written, readable = await asker.end(topic, shard, committed=False), await asker.end(topic, shard)
    if readable < written:
        raise KafkaError(
            f"partition {shard} of topic {topic!r} has an open transaction at offset {readable}: another process "
            "begins to write this shard, or a broker has lost the end of a transaction. Kafka's own program "
            "kafka-transactions.sh (find-hanging) shows the second kind, which is in the topic of the records, too"
        )


def newest_progress(access: Access, topic: str, shard: int) -> ShardProgress:
    """The newest committed progress of a shard. One without a batch if there is none.

    The partition is read from its end back, in steps that grow. So it takes one step however long the topic is. Each
    step has a consumer of its own: events of the step before would come to it.
    """
    what, place = f"the progress of the sink, in topic {topic!r}", library().TopicPartition(topic, shard)
    with _consumer(access) as consumer:
        low, high = consumer.ask(what, lambda: consumer.handle.get_watermark_offsets(place, timeout=ANSWER_SECONDS))
    first, step = high, _LOOK_BACK
    while first > low:
        first, step = max(low, first - step), step * 16
        with _consumer(access) as consumer:
            found = _last_between(consumer, topic, shard, first, high)
        if found is not None:
            try:
                return _decode(found)
            except msgspec.MsgspecError as error:
                raise KafkaError(
                    f"topic {topic!r}, partition {shard}: the newest record is no progress: {error}"
                ) from error
    return NO_PROGRESS


@contextmanager
def _consumer(access: Access) -> Iterator[KafkaClient]:
    # It reads to the end of a partition. By default, a broker waits half a second there before it says so.
    consumer = access.consumer(**{"fetch.wait.max.ms": 10})
    try:
        yield consumer
    finally:
        consumer.handle.close()


def _last_between(consumer: KafkaClient, topic: str, shard: int, first: int, end: int) -> bytes | None:
    """The value of the last committed record at offsets from ``first`` to before ``end``."""
    consumer.handle.assign([library().TopicPartition(topic, shard, first)])
    last, deadline = None, time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        for message in consumer.handle.consume(1_000, 0.05):
            error = message.error()
            if error is None:
                last = message.value()
                ended = message.offset() >= end - 1
            elif error.code() == library().KafkaError._PARTITION_EOF:  # the library's name of an event
                ended = message.offset() >= end
            elif is_moving(error):
                continue  # the library looks for the new leader, and fetches on from there
            else:
                raise KafkaError(f"the progress of the sink, in topic {topic!r}: {error.str()}")
            if ended:
                return last
    raise KafkaError(f"the progress of the sink, in topic {topic!r}, is not read within {ANSWER_SECONDS:g} s")
