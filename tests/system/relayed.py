"""A program that copies a topic of Kafka to another one.

A test submits a copy of this file. The brokers and the topics are in the environment: ``RELAYED_BROKERS``,
``RELAYED_FROM`` and ``RELAYED_TO``.
"""

from __future__ import annotations

import os

import msgspec

import millwheel as mw
from millwheel.connectors import Sink, kafka


class Number(msgspec.Struct):
    key: str
    number: int


BROKERS = os.environ.get("RELAYED_BROKERS", "127.0.0.1:9092")
relayed = mw.Topology("relayed")
numbers = relayed.source(
    "numbers", Number, kafka.source(os.environ.get("RELAYED_FROM", "from"), Number, brokers=BROKERS)
)
copies: Sink[Number] = kafka.sink(os.environ.get("RELAYED_TO", "to"), key="key", brokers=BROKERS)
numbers.key_by("key").to("copies", copies, shards=2, batch_records=20)
