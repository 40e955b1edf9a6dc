"""The process that fills the input topic: ``python -m bench.kafka_count.feed BROKER TOPIC HITS SECONDS``.

``HITS`` is a :class:`Hits` as JSON. Its records are spread over so many seconds; 0: as fast as possible. The exit code
is 0 only if the broker has all of them.

Each record is in the topic once, also if the broker is killed meanwhile, as long as the records are new: a broker that
restarts forgets a producer whose newest timestamp is older than ``producer.id.expiration.ms``, a day. It then takes a
batch that it has a second time (seen with Kafka 4.3.1).
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import msgspec
from confluent_kafka import Producer

from bench.kafka_count.hits import Hits

__all__ = ["feed"]

_CHUNK: Final = 100
_LINE_EVERY: Final = 5.0
_FLUSH: Final = 120.0


def feed(broker: str, topic: str, hits: Hits, seconds: float) -> None:
    """Write all records, and return when the broker has them. RuntimeError if it does not take them."""
    refused: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            refused.append(str(error))

    settings: dict[str, Any] = {
        "bootstrap.servers": broker, "enable.idempotence": True, "linger.ms": 20, "on_delivery": delivered,
        # While the broker is away, it tries again every second, and does not complain.
        "reconnect.backoff.max.ms": 1_000, "log_level": 0,
    }  # fmt: skip
    producer, began, shown = Producer(settings), time.monotonic(), 0.0
    for first in range(0, hits.total, _CHUNK):
        for number in range(first, min(first + _CHUNK, hits.total)):
            _produce(producer, topic, hits, number)
        producer.poll(0)
        passed = time.monotonic() - began
        if passed - shown >= _LINE_EVERY:
            shown = passed
            print(f"fed {first:,} of {hits.records:,} records", flush=True)
        time.sleep(max(0.0, first / hits.total * seconds - passed))
    left = producer.flush(_FLUSH)
    if left or refused:
        raise RuntimeError(f"Kafka has not taken {left + len(refused)} records; {', '.join(refused[:3])}")
    print(f"fed all {hits.records:,} records", flush=True)


def _produce(producer: Producer, topic: str, hits: Hits, number: int) -> None:
    """Give one record to the client. While its queue is full, because the broker is away, wait."""
    key, value, partition, at = hits.message(number)
    while True:
        try:
            return producer.produce(topic, value, key, partition, timestamp=at)
        except BufferError:
            producer.poll(0.1)


if __name__ == "__main__":
    feed(sys.argv[1], sys.argv[2], msgspec.json.decode(sys.argv[3], type=Hits), float(sys.argv[4]))
