"""What user code is handed: records and timers (sections 4.2, 4.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from millwheel.core.time import Timestamp

__all__ = ["Record", "Timer"]

In_co = TypeVar("In_co", covariant=True)

_UNDECODED: Any = object()


class Record(msgspec.Struct, Generic[In_co], eq=False):
    """One record as its consumer sees it: the paper's (key, value, timestamp) triple (section 3).

    ``stream`` names the input stream that it came by. ``late`` tells that its timestamp was below the
    interval's input watermark when it was processed (G14); the verdict is part of the commit, so it does
    not change when the record is processed again after a crash.
    """

    # A Struct for what it costs to make one, for each record: half as much as by an __init__ of our own.
    _key: bytes
    _encoded: bytes
    timestamp: Timestamp
    stream: str
    _decode: Callable[[bytes], In_co]
    late: bool
    _value: Any = _UNDECODED

    @property
    def key(self) -> str:
        """The key that this computation's extractor gave the record."""
        return self._key.decode()

    @property
    def value(self) -> In_co:
        """The value, decoded at the first use; ValueDecodeError if the bytes are not of the stream's type."""
        if self._value is _UNDECODED:
            self._value = self._decode(self._encoded)
        return self._value  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        late = ", late" if self.late else ""
        return f"Record(stream={self.stream!r}, key={self.key!r}, timestamp={self.timestamp}{late})"


class Timer:
    """A timer that fires: what was set, by its tag (section 4.6).

    ``timestamp`` is the time that it was set for: the low watermark has reached it, or, where ``wall``
    is true, the wall clock has.
    """

    __slots__ = ("tag", "timestamp", "wall")

    def __init__(self, tag: str, timestamp: Timestamp, wall: bool = False) -> None:
        self.tag = tag
        self.timestamp = timestamp
        self.wall = wall

    def __repr__(self) -> str:
        return f"Timer(tag={self.tag!r}, timestamp={self.timestamp}, wall={self.wall})"
