"""A program that reads sales from streams of Redis, and writes each one and the totals to Redis.

A test submits a copy of this file. The server is where the environment variable ``CHAIN_REDIS`` says.
"""

from __future__ import annotations

import os

import msgspec

import millwheel as mw
from millwheel import agg
from millwheel.connectors import Sink, redis

SERVER = os.environ.get("CHAIN_REDIS", "redis://localhost")


class Sale(msgspec.Struct):
    item: str
    number: int
    cents: int


chain = mw.Topology("chain")
sales = chain.source("sales", Sale, redis.source("sales:*", Sale, pattern=True, server=SERVER))
sales.key_by("item").to("sold", redis.sink("sold", server=SERVER), batch_records=40)
rank: Sink[Sale] = redis.command(lambda sale: ["ZINCRBY", "best", sale.cents, sale.item], server=SERVER)
sales.key_by("item").to("best", rank, shards=2, batch_records=40)
totals = sales.key_by("item").aggregate("totals", cents=agg.sum("cents"))
totals.key_by("item").to("total", redis.values("total:", key="item", server=SERVER))
