"""A program that reads numbers from MQTT, and writes each of them to a list of Redis.

A test submits a copy of this file. The servers are where ``CHAIN_MQTT`` and ``CHAIN_REDIS`` say.
"""

from __future__ import annotations

import os

import millwheel as mw
from millwheel.connectors import Sink, mqtt, redis

NUMBERS = mqtt.source(["a/#", "b/#"], int, server=os.environ.get("CHAIN_MQTT", "mqtt://localhost"), client="chain")
PUSH: Sink[int] = redis.command(
    lambda number: ["RPUSH", f"last-digit:{number % 10}", number],
    server=os.environ.get("CHAIN_REDIS", "redis://localhost"),
)

chain = mw.Topology("chain")
chain.source("numbers", int, NUMBERS).key_by(lambda number: number % 10).to("digits", PUSH, shards=2)
