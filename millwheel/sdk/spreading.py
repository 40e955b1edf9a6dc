"""Functions of a stream's values that need its codec, which is known when the topology is complete.

They spread the records evenly, where no key of the user's is needed (section 8.4), and copy values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any
from zlib import crc32

import msgspec
from google.protobuf.message import Message

from millwheel.sdk.arrays import is_numpy, plain_of
from millwheel.sdk.codecs import ValueCodec, ValueFormat
from millwheel.sdk.topology import TopologyGraph

__all__ = ["bytes_of", "copier", "hash_of", "spreader"]


def _plain(value: Any) -> Any:
    return plain_of(value) if is_numpy(value.__class__) else list(value)


_encode = msgspec.msgpack.Encoder(enc_hook=_plain, order="deterministic").encode


def spreader(topology: TopologyGraph, stream: str, shards: int) -> Callable[[Any], int]:
    """A function from a value of ``stream`` to one of ``shards`` numbers.

    It depends on the value alone. A record that is sent again therefore gets the same number in every process.
    """

    @cache
    def encoder() -> Callable[[Any], bytes]:
        codec = _codec_of(topology, stream)
        if codec.format is not ValueFormat.MSGPACK:
            return codec.encode
        return _encode

    def shard_of(value: Any) -> int:
        return crc32(encoder()(value)) % shards

    return shard_of


def copier(topology: TopologyGraph, stream: str) -> Callable[[Any], Any]:
    """A function that copies a value of ``stream``."""

    known: Callable[[Any], Any] | None = None

    def copy(value: Any) -> Any:
        nonlocal known
        if known is None:
            known = _codec_of(topology, stream).copy
        return known(value)

    return copy


def _codec_of(topology: TopologyGraph, stream: str) -> ValueCodec:
    codec = topology.plan().streams[stream].codec
    assert codec is not None, "a topology that passed its check has a codec for every stream"
    return codec


def bytes_of(value: Any) -> bytes:
    """An encoding of a value that is the same in every process: of a message, bytes, or what MessagePack can encode."""
    if isinstance(value, Message):
        return value.SerializeToString(deterministic=True)
    return value if isinstance(value, bytes) else _encode(value)


def hash_of(value: Any) -> int:
    """A hash of a value that is the same in every process."""
    return crc32(bytes_of(value))
