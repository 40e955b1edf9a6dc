"""Topics of MQTT as a sink, at least once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from weakref import finalize

import msgspec

from millwheel.connectors.mqtt.brokers import MqttAccess, MqttError, MqttLink
from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.connectors.threads import CallThread
from millwheel.sdk.errors import UsageError

__all__ = ["sink"]

T = TypeVar("T")

_ID: Final = "millwheel-id"
_LONGEST_TOPIC: Final = 65_535
_PUBLISH_SECONDS: Final = 40.0
"""How long a batch waits for its acknowledgements. It ends before the limit of a connector's call."""


def sink(
    topic: str | Callable[[T], str],
    *,
    server: str,
    payload: Callable[[T], bytes] = msgspec.json.encode,
    retain: bool = False,
    client: str = "millwheel",
) -> Sink[T]:
    """A sink that publishes each record at QoS 1: at least once.

    MQTT has no transactions. So the records of a batch may come twice if a worker dies meanwhile, and then they all
    have the same ids again. The id is the user property ``millwheel-id``: the batch, and the record's number in it.

    For example::

        alarms.to("alarms", mqtt.sink(lambda alarm: f"alarms/{alarm.room}", server="mqtt://broker:1883"))

    Args:
        topic: The topic, or a function that returns that of a record.
        server: As for :func:`source`.
        payload: What is published. By default, the record as JSON.
        retain: Whether the broker keeps the last message of each topic for clients that subscribe later.
        client: What the client ids begin with. No other deployment uses it.

    Raises:
        UsageError: An argument cannot be used.
    """
    if not callable(topic) and (not isinstance(topic, str) or _is_no_topic(topic)):
        raise UsageError(f"a sink of MQTT takes a topic without wildcards, or a function, not {topic!r:.80}")
    topic_of: Callable[[T], str] = topic if callable(topic) else lambda _: topic
    return _TopicSink(topic_of, payload, retain, MqttAccess(server), client)


@dataclass(frozen=True, slots=True)
class _TopicSink(Sink[T], Generic[T]):
    topic_of: Callable[[T], str]
    payload: Callable[[T], bytes]
    retain: bool
    access: MqttAccess
    client: str

    async def open_writer(self, place: SinkShard) -> SinkWriter[T]:
        writer = _TopicWriter(self, place)
        try:
            await writer.thread.call(writer.begin)
        except BaseException:
            with suppress(Exception):
                await writer.close()
            raise
        return writer


class _TopicWriter(SinkWriter[T]):
    """Publishes the batches of a shard.

    The client id is that of the shard. So the broker ends the connection of a former process when another one opens the
    shard: it publishes nothing older behind what is newer.
    """

    def __init__(self, sink: _TopicSink[T], place: SinkShard) -> None:
        self._sink = sink
        self.thread = CallThread("millwheel-mqtt")
        self._link = MqttLink(sink.access, f"{sink.client}-{place.sink.replace('/', '-')}-{place.shard}")
        finalize(self, self._link.close).atexit = False  # one that was never closed, as in a test, leaves nothing open

    def begin(self) -> None:
        """Connect."""
        self._link.open()

    async def write(self, batch: SinkBatch[T]) -> None:
        sink = self._sink
        messages = [
            (_checked(sink.topic_of(value)), sink.payload(value), sink.retain, {_ID: f"{batch.id}-{number}"})
            for number, (value, _) in enumerate(batch.records)
        ]
        await self.thread.call(lambda: self._link.publish(messages, _PUBLISH_SECONDS))

    async def close(self) -> None:
        await self.thread.end(self._link.close)


def _checked(topic: str) -> str:
    """A topic that can be published to. It is checked before anything of its batch is published."""
    if not isinstance(topic, str) or _is_no_topic(topic):
        raise MqttError(
            f"the function topic= returned {topic!r:.80}: a topic is a text of up to {_LONGEST_TOPIC:,} bytes without "
            "wildcards"
        )
    return topic


def _is_no_topic(text: str) -> bool:
    return not text or len(text.encode()) > _LONGEST_TOPIC or bool(set("+#\0") & set(text))
