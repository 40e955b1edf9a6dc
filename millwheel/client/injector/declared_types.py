"""Checks whether encoded records have one of their stream's declared types (section 4.2). Pure.

The routing contains the types as schemas. msgspec decoders for these schemas do the check. They run in the caller's
process, and need neither a topology's code nor a request to a worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from millwheel.client.injector.routing import StreamRouting
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.errors import ValueEncodeError
from millwheel.sdk.round_trip import ADVICE
from millwheel.sdk.schema_decoder import schema_decoder

__all__ = ["DeclaredTypes"]

log = logging.getLogger("millwheel.client")

_Decode = Callable[[bytes], Any]

_REFUSALS: Final = (ValueError, TypeError)
"""What a decoder raises for an invalid record. TypeError: an item of a set is not hashable."""


class DeclaredTypes:
    """The types that topologies declare for one stream in the current routing.

    A record is refused only if it matches none of them: a record that one topology cannot read may be meant for
    another.
    """

    def __init__(self, stream: str, *, enabled: bool) -> None:
        self._stream = stream
        self._enabled = enabled
        self._routing: StreamRouting | None = None
        self._decode: _Decode | None = None

    def first_refused(self, encoded: Sequence[bytes], routing: StreamRouting) -> tuple[int, ValueEncodeError] | None:
        """The index of the first record that matches no declared type, and its error. None if there is none."""
        decode = self.decoder(routing)
        if decode is None:
            return None
        taken = 0
        try:
            for data in encoded:
                decode(data)
                taken += 1
        except _REFUSALS as error:
            shown = f"{_plain(encoded[taken])!r:.200}"
            return taken, ValueEncodeError(
                f"stream {self._stream!r}: {shown} is no {routing.record_type}: {error}{ADVICE}"
            )
        return None

    def decoder(self, routing: StreamRouting) -> Callable[[bytes], Any] | None:
        """A decoder that raises ValueError or TypeError for a record of no declared type. None: any record is right."""
        known, self._routing = self._routing, routing
        if known is not routing and self._enabled and (known is None or known.schemas != routing.schemas):
            self._decode = _first_of([self._decoder(schema) for schema in routing.schemas])
        return self._decode

    def _decoder(self, schema: topology_pb2.RecordSchema) -> _Decode | None:
        try:
            return schema_decoder(schema)
        except Exception as error:
            # For example, another version of msgspec allows the type. That is no reason to refuse a record.
            log.warning(
                "stream %r: records are not checked here, as their type is not understood: %r", self._stream, error
            )
            return None


def _first_of(decoders: Sequence[_Decode | None]) -> _Decode | None:
    """A decoder that accepts what any of ``decoders`` accepts. Its errors are the first one's. None if all is valid."""
    known = [decode for decode in decoders if decode is not None]
    if not known or len(known) < len(decoders):
        return None
    first, *others = known

    def decode_any(data: bytes) -> Any:
        try:
            return first(data)
        except _REFUSALS:
            for decode in others:
                try:
                    return decode(data)
                except _REFUSALS:
                    continue
            raise

    return decode_any if others else first


def _plain(data: bytes) -> Any:
    """Decode MessagePack without a type. Returns the bytes themselves if they are not MessagePack."""
    try:
        return msgspec.msgpack.decode(data)
    except ValueError:
        return data
