"""Keys that spread the records of a stream evenly, where no key of the user's is needed (section 8.4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any
from zlib import crc32

import msgspec

from millwheel.sdk.codecs import ValueFormat
from millwheel.sdk.topology import TopologyGraph

__all__ = ["spreader"]


def spreader(topology: TopologyGraph, stream: str, shards: int) -> Callable[[Any], int]:
    """A function from a value of ``stream`` to one of ``shards`` numbers.

    It depends on the value alone. A record that is sent again therefore gets the same number in every process.
    """

    @cache
    def encoder() -> Callable[[Any], bytes]:
        codec = topology.plan().streams[stream].codec
        assert codec is not None, "a topology that passed its check has a codec for every stream"
        if codec.format is not ValueFormat.MSGPACK:
            return codec.encode
        return msgspec.msgpack.Encoder(enc_hook=list, order="deterministic").encode

    def shard_of(value: Any) -> int:
        return crc32(encoder()(value)) % shards

    return shard_of
