"""Functions of a stream's values that need its codec, which is known when the topology is complete.

They spread the records evenly, where no key of the user's is needed (section 8.4), and copy values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final
from zlib import crc32

import msgspec
from google.protobuf.message import Message

from millwheel.sdk.arrays import is_numpy, plain_of
from millwheel.sdk.codecs import ValueCodec, ValueFormat
from millwheel.sdk.declarations import as_it_is
from millwheel.sdk.topology import TopologyGraph
from millwheel.sdk.typeinfo import type_name

__all__ = ["ANY_SHARD", "bytes_of", "bytes_reader", "copier", "hash_of", "spreader"]


ANY_SHARD: Final = "in any shard of"
"""In the name of a key that puts no records of a sink in an order. An update may change such a key."""


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


def spreader(topology: TopologyGraph, stream: str, shards: int) -> Callable[[Any], str]:
    """A function from a value of ``stream`` to one of ``shards`` numbers, as text.

    It depends on the value alone. A record that is sent again therefore gets the same number in every process.
    """

    known: Callable[[Any], bytes] | None = None
    numbers = [str(number) for number in range(shards)]

    def shard_of(value: Any) -> str:
        nonlocal known
        if known is None:
            codec = _codec_of(topology, stream)
            known = _encode if codec.format is ValueFormat.MSGPACK else codec.encode
        return numbers[crc32(known(value)) % shards]

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
    return _encoder_of(value.__class__)(value)


def _encoder_of(kind: type) -> Callable[[Any], bytes]:
    if issubclass(kind, Message):
        return lambda message: message.SerializeToString(deterministic=True)
    return as_it_is if issubclass(kind, bytes) else _encode


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

    encoders: dict[type, Callable[[Any], bytes]] = {}

    def encode(value: Any) -> bytes:
        kind = value.__class__
        encoder = encoders.get(kind) or encoders.setdefault(kind, _encoder_of(kind))
        try:
            return encoder(value)
        except TypeError:
            by_codec = custom(kind)
            if by_codec is None:
                raise
            return bytes(memoryview(by_codec(value)))

    return encode


def hash_of(value: Any) -> int:
    """A hash of a value that is the same in every process."""
    return crc32(bytes_of(value))
