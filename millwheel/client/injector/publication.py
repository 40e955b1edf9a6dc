"""The watermark that an injector process may publish (sections 4.5 and 5.2). Pure."""

from __future__ import annotations

from typing import NamedTuple

from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["Publication", "Published"]


class Published(NamedTuple):
    """A watermark to report, in microseconds. ``idle``: leave this process out of the minimum."""

    watermark: int
    idle: bool


class Publication:
    """Computes the published watermark: min(the declared watermark, the oldest un-ACKed record). It never falls (G7).

    While a late record is un-ACKed, the value stays where it is. A falling value would be unsafe: receivers delete the
    ids of records that the watermark has passed.
    """

    __slots__ = ("_declared", "_finishing", "_idling", "_value")

    def __init__(self, watermark: int = MIN_TIMESTAMP) -> None:
        """``watermark``: the value that is known to be published already, in microseconds."""
        self._value: int = watermark
        self._declared: int = watermark
        self._idling = False
        self._finishing = False

    @property
    def value(self) -> int:
        """The last value returned by :meth:`update`, in microseconds."""
        return self._value

    @property
    def declared(self) -> int:
        """The user's promise, in microseconds: later records are not older."""
        return self._declared

    @property
    def finishing(self) -> bool:
        """Whether the end of the stream was declared."""
        return self._finishing

    @property
    def finished(self) -> bool:
        """Whether plus infinity is published, which is final."""
        return self._value == MAX_TIMESTAMP

    @property
    def idling(self) -> bool:
        """Whether the process is declared idle."""
        return self._idling

    def declare(self, watermark: int) -> None:
        """Declare that no later record is older than ``watermark``. A lower value than before is ignored.

        Plus infinity does not end the stream. Only :meth:`finish` is final.
        """
        self._declared = max(self._declared, min(watermark, MAX_TIMESTAMP - 1))

    def finish(self) -> None:
        """Declare that no record follows."""
        self._finishing = True
        self._idling = False

    def idle(self) -> None:
        """Declare that there is nothing to send for now."""
        self._idling = not self._finishing

    def start(self, watermark: int) -> None:
        """Start at ``watermark``, before anything was sent."""
        self.declare(watermark)
        self.raise_to(watermark)

    def wake(self) -> None:
        """End idleness."""
        self._idling = False

    def raise_to(self, watermark: int) -> None:
        """Raise the value to ``watermark``: older records are late. Allowed only while no record is un-ACKed."""
        self._value = max(self._value, watermark)

    def update(self, oldest_unacked: int) -> Published:
        """Compute what may be published now. ``oldest_unacked`` is MAX_TIMESTAMP if no record is un-ACKed."""
        declared = MAX_TIMESTAMP if self._finishing else self._declared
        self._value = max(self._value, min(declared, oldest_unacked))
        return Published(self._value, self._idling and oldest_unacked == MAX_TIMESTAMP)
