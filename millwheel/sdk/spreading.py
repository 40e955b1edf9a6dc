"""Functions of a stream's values that need its codec, which is known when the topology is complete.

They spread the records evenly, where no key of the user's is needed (section 8.4), and copy values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from zlib import crc32

import msgspec
from google.protobuf.message import Message

from millwheel.sdk.arrays import is_numpy, plain_of
from millwheel.sdk.codecs import ValueCodec, ValueFormat
from millwheel.sdk.topology import TopologyGraph
from millwheel.sdk.typeinfo import type_name

__all__ = ["bytes_of", "bytes_reader", "copier", "hash_of", "spreader"]


def _plain(value: Any) -> Any:
    if is_numpy(value.__class__):
        return plain_of(value)
    try:
        return list(value)
    except TypeError:
        raise TypeError(
            f"a value of {type_name(value.__class__)} has no encoding to be hashed by: use key_by, or give its stream "
            "a codec="
        ) from None


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


def bytes_reader(topology: TopologyGraph, streams: Iterable[str]) -> Callable[[Any], bytes]:
    """:func:`bytes_of` for values of ``streams``. It takes the codecs that users gave these streams, where it must."""
    names = tuple(streams)

    @cache
    def custom(kind: type) -> Callable[[Any], bytes] | None:
        for stream in (topology.plan().streams[name] for name in names):
            codec, declared = stream.codec, stream.type
            if codec is None or codec.format is not ValueFormat.CUSTOM or not isinstance(declared, type):
                continue
            if issubclass(kind, declared):
                return codec.encode
        return None

    def encode(value: Any) -> bytes:
        try:
            return bytes_of(value)
        except TypeError:
            by_codec = custom(value.__class__)
            if by_codec is None:
                raise
            return bytes(memoryview(by_codec(value)))

    return encode


def hash_of(value: Any) -> int:
    """A hash of a value that is the same in every process."""
    return crc32(bytes_of(value))
