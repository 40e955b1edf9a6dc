"""The watermark that an injector process publishes (sections 4.5, 5.2; G7). Pure."""

from __future__ import annotations

from millwheel.client.injector.messages import Published
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["Publication"]


class Publication:
    """Computes the published watermark: min(the declared watermark, the oldest un-ACKed record). It never falls (G7).

    While a late record is un-ACKed, the value stays where it is. A falling value would be unsafe: receivers delete the
    ids of records that the watermark has passed.

    Attributes:
        value: the published value, in microseconds.
        declared: the user's promise, in microseconds: later records are not older.
        oldest_unacked: the oldest un-ACKed timestamp. MAX_TIMESTAMP if every record is ACKed.
        idling: whether there is nothing to send for now.
        finishing: whether no record follows.
        published: what may be reported now. It is up to date after :meth:`update`.
    """

    __slots__ = ("_reported", "declared", "finishing", "idling", "oldest_unacked", "published", "value")

    def __init__(self, watermark: int = MIN_TIMESTAMP) -> None:
        """``watermark``: the value that is known to be published already, in microseconds."""
        self.value: int = watermark
        self.declared: int = watermark
        self.oldest_unacked: int = MAX_TIMESTAMP
        self.idling = False
        self.finishing = False
        self.published = Published(watermark, False)
        self._reported: Published | None = None

    def declare(self, watermark: int) -> None:
        """Declare that no later record is older than ``watermark``. A lower value than before is ignored.

        Plus infinity does not end the stream. Only ``finishing`` is final.
        """
        self.declared = max(self.declared, min(watermark, MAX_TIMESTAMP - 1))

    def raise_to(self, watermark: int) -> None:
        """Raise the value to ``watermark``: older records are late. Allowed only while no record is un-ACKed."""
        self.value = max(self.value, watermark)

    def update(self) -> Published:
        """Compute what may be published now."""
        declared = MAX_TIMESTAMP if self.finishing else self.declared
        self.value = max(self.value, min(declared, self.oldest_unacked))
        self.published = Published(self.value, self.idling and self.oldest_unacked == MAX_TIMESTAMP)
        return self.published

    def take_unreported(self) -> Published | None:
        """The published watermark, if it changed since the last call. Else None."""
        if self.published == self._reported:
            return None
        self._reported = self.published
        return self.published
