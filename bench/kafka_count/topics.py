"""Topics of the count: made, and their committed results read while they come."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.kafka_count.checking import Arrival
from bench.kafka_count.hits import Window

__all__ = ["OutputReader", "make_topic", "result_of", "sum_of"]

_ANSWER: Final = 60.0
_BATCH: Final = 1_000


class _Counted(msgspec.Struct):
    key: str
    start: int
    count: int
    sum: int = 0


_decode = msgspec.json.Decoder(_Counted).decode


def result_of(value: bytes | None) -> tuple[Window, int]:
    """A result from the bytes of its record: its window, and its count. msgspec.MsgspecError: it is none."""
    found = _decode(value or b"")
    return (found.key, found.start), found.count


def sum_of(value: bytes | None) -> tuple[Window, int]:
    """A result from the bytes of its record: its window, and the sum of what it counted. Only ``summed`` writes it."""
    found = _decode(value or b"")
    return (found.key, found.start), found.sum


def make_topic(broker: str, name: str, partitions: int) -> None:
    """Make a topic that keeps old event times, and return when the broker leads it. TimeoutError if it never does."""
    admin, end = AdminClient({"bootstrap.servers": broker}), time.monotonic() + _ANSWER
    admin.create_topics([NewTopic(name, partitions, 1, config={"retention.ms": "-1"})])[name].result(_ANSWER)
    while time.monotonic() < end:
        found = admin.list_topics(timeout=_ANSWER).topics.get(name)
        if found is not None and [one.leader > 0 for one in found.partitions.values()] == [True] * partitions:
            return
        time.sleep(0.05)
    raise TimeoutError(f"Kafka does not lead the topic {name}")


class OutputReader:
    """Reads the committed results of a topic, as a program behind it does. It outlives restarts of the broker.

    Attributes:
        results: All results so far, in the order in which they came.
        arrivals: When results came, and how many records they had counted. Seconds of the monotonic clock.
    """

    def __init__(self, broker: str, topic: str, partitions: int, end_ms: int) -> None:
        """``end_ms``: results of windows from there on are ignored, for they are of records that close windows."""
        self.results: list[tuple[Window, int]] = []
        self.arrivals: list[Arrival] = []
        self._windows: set[Window] = set()
        self._end_ms = end_ms
        self._lock = threading.Lock()
        settings: dict[str, Any] = {
            "bootstrap.servers": broker, "group.id": "results", "isolation.level": "read_committed",
            "enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50,
            # While the broker is away, it tries again every second, and does not complain.
            "reconnect.backoff.max.ms": 1_000, "log_level": 0,
        }  # fmt: skip
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])

    @property
    def windows(self) -> int:
        """How many windows have a result."""
        return len(self._windows)

    def poll(self, seconds: float) -> None:
        """Read what comes within so many seconds. An error of a connection is no result: the client connects again."""
        with self._lock:
            messages = [one for one in self._consumer.consume(_BATCH, seconds) if one.error() is None]
        found = [one for one in (result_of(message.value()) for message in messages) if one[0][1] < self._end_ms]
        if found:
            self.results += found
            self.arrivals.append((time.monotonic(), sum(count for _, count in found)))
            self._windows.update(window for window, _ in found)

    def close(self) -> None:
        """End the connections, when a :meth:`poll` of another thread has returned."""
        with self._lock:
            self._consumer.close()
