"""Records and timers as hooks receive them, and what runs for each value (sections 4.2 to 4.4, 4.6).

A value is encoded, checked, decoded and keyed by functions that are compiled once for each stream, state or input, by
:mod:`millwheel.sdk.codecs`, :mod:`millwheel.sdk.round_trip` and :mod:`millwheel.sdk.keys`. In the common case each
makes as few calls as it can. For a fault, the caller gives a function that describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import msgspec

from millwheel.model.limits import MAX_KEY_BYTES
from millwheel.model.time import TimeDomain, Timestamp

__all__ = [
    "UNDECODED",
    "Record",
    "Timer",
    "decoder_of_all",
    "described_decoder",
    "exact_check",
    "key_extractor",
    "text_extractor",
    "typed_encoder",
    "verifying_encoder",
    "verifying_encoder_of_all",
]

In_co = TypeVar("In_co", covariant=True)

UNDECODED: Final[Any] = object()
"""Stands for the value of a record that has not been decoded."""

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]
Exact = Callable[[Any], bool]
ExactAll = Callable[[Sequence[Any]], bool]
EncodeAll = Callable[[Sequence[Any]], list[bytes]]


class Record(msgspec.Struct, Generic[In_co], eq=False):
    """One record as its consumer sees it: the paper's triple of key, value and timestamp (section 3).

    ``timestamp`` is in microseconds since the epoch. ``stream`` is the input stream of the record. ``late`` says
    whether the timestamp was below the interval's input watermark when the record was processed (G14). A
    record whose attempt left no commit may be judged otherwise at the next attempt (G10).
    """

    # A Struct, because one is created for each record: that takes half as long as with our own ``__init__``.
    _key: bytes
    _encoded: bytes
    timestamp: Timestamp
    stream: str
    _decode: Callable[[bytes], In_co]
    late: bool
    _value: Any = UNDECODED

    @property
    def key(self) -> str:
        """The record's key, as this computation's key extractor defines it."""
        return self._key.decode()

    @property
    def value(self) -> In_co:
        """The value. It is decoded at the first access.

        Raises:
            ValueDecodeError: The bytes do not decode as the stream's type.
        """
        if self._value is UNDECODED:
            self._value = self._decode(self._encoded)
        return self._value  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        late = ", late" if self.late else ""
        return f"Record(stream={self.stream!r}, key={self.key!r}, timestamp={self.timestamp}{late})"


class Timer:
    """A timer that fires. Its ``tag`` is that of ``ctx.set_timer`` (section 4.6).

    ``timestamp`` is the time that was set, in microseconds since the epoch. The clock of ``domain`` has reached it: the
    low watermark or, in processing time, the wall clock.
    """

    __slots__ = ("domain", "tag", "timestamp")

    def __init__(self, tag: str, timestamp: Timestamp, domain: TimeDomain = TimeDomain.EVENT_TIME) -> None:
        self.tag = tag
        self.timestamp = timestamp
        self.domain = domain

    def __repr__(self) -> str:
        return f"Timer(tag={self.tag!r}, timestamp={self.timestamp}, domain={self.domain.name})"


def typed_encoder(
    encode: Encode,
    only: type | None,
    accepts: Callable[[Any], bool] | None,
    fault: Callable[[Any, Exception | None], Exception],
) -> Encode:
    """An encoder of values of one type.

    Args:
        encode: The encoder without checks.
        only: A class whose values need no further test.
        accepts: Whether a value of another class is of the type. None: every value is.
        fault: The error for a value that is not of the type (None), or whose encoding raised.
    """

    def checked(value: Any) -> bytes:
        if value.__class__ is not only and accepts is not None and not accepts(value):
            raise fault(value, None)
        try:
            return encode(value)
        except Exception as error:
            raise fault(value, error) from error

    return checked


def verifying_encoder(encode: Encode, decode: Decode, slow: Encode, exact: Exact | None) -> Encode:
    """An encoder of values that decode to equal ones. It does the same as ``slow`` with fewer calls.

    Args:
        encode: The encoder without checks.
        decode: The decoder without checks.
        slow: The encoder that rejects a value of another class, or one that does not decode to an equal value. Its
            ValueEncodeError says why.
        exact: The type's exact test. None if the type has none: its values are then decoded.

    Returns:
        The encoder. It raises the errors of ``slow``.
    """

    def verify_by_decoding(value: Any) -> bytes:
        try:
            encoded = encode(value)
            if decode(encoded) == value:
                return encoded
        except Exception:
            pass  # the encoder, the decoder or a user's __eq__ raised: slow() finds the reason
        return slow(value)

    if exact is None:
        return verify_by_decoding

    def verify_by_classes(value: Any) -> bytes:
        try:
            encoded = encode(value)
        except Exception:
            return slow(value)
        return encoded if exact(value) else slow(value)

    return verify_by_classes


def verifying_encoder_of_all(encode: Encode, verify: Encode, exact: ExactAll | None) -> EncodeAll:
    """An encoder of many values. It does the same as ``verify`` of each, and needs two calls for most of them.

    Args:
        encode: The encoder without checks.
        verify: The encoder that ``verifying_encoder`` has returned.
        exact: The type's exact test of many values, if it has one.
    """

    def verify_all(values: Sequence[Any]) -> list[bytes]:
        if exact is not None:
            with suppress(Exception):  # one by one, it is found which value has no encoding
                encoded = list(map(encode, values))
                if exact(values):
                    return encoded
        return list(map(verify, values))

    return verify_all


def exact_check(exact: Exact, check: Callable[[Any, bytes], None]) -> Callable[[Any, bytes], None]:
    """``check``, but without decoding if ``exact`` proves that the value passes."""

    def check_unless_exact(value: Any, encoded: bytes) -> None:
        if not exact(value):
            check(value, encoded)

    return check_unless_exact


def described_decoder(decode: Decode, fault: Callable[[bytes, Exception], Exception]) -> Decode:
    """A decoder whose errors are those of ``fault``."""

    def decode_value(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception as error:
            raise fault(data, error) from error

    return decode_value


def decoder_of_all(decode: Decode, described: Decode) -> Callable[[Sequence[bytes]], list[Any]]:
    """A decoder of many values. It does the same as ``described`` of each, without a call of Python for each.

    Args:
        decode: The decoder without descriptions of errors.
        described: The decoder that ``described_decoder`` has returned.
    """

    def decode_all(encoded: Sequence[bytes]) -> list[Any]:
        with suppress(Exception):  # one by one, it is found which value does not decode
            values = list(map(decode, encoded))
            if len(values) == len(encoded):  # map() takes a StopIteration of the user's for the end
                return values
        return [described(one) for one in encoded]

    return decode_all


def key_extractor(
    get: Callable[[Any], Any],
    text: Callable[[Any], str],
    fault: Callable[[Any, Exception], Exception],
    too_large: Callable[[int], Exception],
) -> Callable[[Any], bytes]:
    """A function from a value to its key.

    Args:
        get: Returns the text or the number in the value that is its key.
        text: Converts what ``get`` returned, if it is no plain str.
        fault: The error for a value whose key could not be read.
        too_large: The error for a key of so many bytes.
    """

    def extract(value: Any) -> bytes:
        try:
            part = get(value)
            encoded: bytes = part.encode() if part.__class__ is str else text(part).encode()
        except Exception as error:
            raise fault(value, error) from error
        if len(encoded) > MAX_KEY_BYTES:
            raise too_large(len(encoded))
        return encoded

    return extract


def text_extractor(
    get: Callable[[Any], Any],
    text: Callable[[Any], str],
    fault: Callable[[Any, Exception], Exception],
    too_large: Callable[[int], Exception],
) -> Callable[[Any], str]:
    """The same for a key as text."""

    def extract(value: Any) -> str:
        try:
            part = get(value)
            found: str = part if part.__class__ is str else text(part)
        except Exception as error:
            raise fault(value, error) from error
        # A character has four bytes at most.
        if len(found) * 4 > MAX_KEY_BYTES and len(found.encode()) > MAX_KEY_BYTES:
            raise too_large(len(found.encode()))
        return found

    return extract
