"""What an injector process may say of its watermark (sections 4.5 and 5.2). Pure."""

from __future__ import annotations

from typing import NamedTuple

from millwheel.core.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["Publication", "Published"]


class Published(NamedTuple):
    """A watermark to be reported, in microseconds; ``idle``: leave this process out of the minimum."""

    watermark: int
    idle: bool


class Publication:
    """min(what the user declared, the oldest un-ACKed record), never back (G7).

    While a late record is un-ACKed the value stays where it is: receivers rely on it when they forget
    the ids of what the watermark has passed.
    """

    __slots__ = ("_declared", "_finishing", "_idling", "_value")

    def __init__(self, watermark: int = MIN_TIMESTAMP) -> None:
        """``watermark`` is what is known to be published already."""
        self._value: int = watermark
        self._declared: int = watermark
        self._idling = False
        self._finishing = False

    @property
    def value(self) -> int:
        """The last value that :meth:`update` gave."""
        return self._value

    @property
    def declared(self) -> int:
        """What the user promised: no later record is older, in microseconds."""
        return self._declared

    @property
    def finishing(self) -> bool:
        """Whether the stream's end was declared."""
        return self._finishing

    @property
    def finished(self) -> bool:
        """Whether plus infinity is published: that is final."""
        return self._value == MAX_TIMESTAMP

    @property
    def idling(self) -> bool:
        """Whether the process was declared idle, and has not been woken."""
        return self._idling

    def declare(self, watermark: int) -> None:
        """No record behind ``watermark`` will follow; a smaller value than before says nothing new.

        Plus infinity is not taken for an end: only :meth:`finish` is final.
        """
        self._declared = max(self._declared, min(watermark, MAX_TIMESTAMP - 1))

    def finish(self) -> None:
        """No record will follow at all."""
        self._finishing = True
        self._idling = False

    def idle(self) -> None:
        """Nothing to send for now."""
        self._idling = not self._finishing

    def start(self, watermark: int) -> None:
        """Nothing was sent yet, and ``watermark`` is where this process begins."""
        self.declare(watermark)
        self.raise_to(watermark)

    def wake(self) -> None:
        """Take part again."""
        self._idling = False

    def raise_to(self, watermark: int) -> None:
        """Start from ``watermark``: what is older is late. Only while nothing is un-ACKed."""
        self._value = max(self._value, watermark)

    def update(self, oldest_unacked: int) -> Published:
        """What may be said now. ``oldest_unacked`` is MAX_TIMESTAMP if nothing is un-ACKed."""
        declared = MAX_TIMESTAMP if self._finishing else self._declared
        self._value = max(self._value, min(declared, oldest_unacked))
        return Published(self._value, self._idling and oldest_unacked == MAX_TIMESTAMP)
