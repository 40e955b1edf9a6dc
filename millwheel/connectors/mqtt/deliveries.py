"""Which messages of a session are new, and which come again. Pure.

A broker keeps no positions. It keeps each message until it is acknowledged (PUBACK). After the connection is lost, it
sends again what it has no acknowledgement of: in the former order, with the former packet ids, and marked (DUP). The
specification says so (MQTT 5.0, 4.4 and 4.6). So the position of a session is what was taken last.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

import msgspec

__all__ = ["SentMessage", "SessionDeliveries", "SessionPosition", "digest_of"]


class SessionPosition(msgspec.Struct, frozen=True):
    """The messages that were taken last, oldest first: as many as the broker sends without an acknowledgement."""

    taken: list[tuple[int, int]] = []
    """Of each: its packet id, and a digest of its content."""
    count: int = 0
    """How many were taken in all. So no two positions of a session are equal."""


class SentMessage(msgspec.Struct, frozen=True):
    """A message as the broker sent it.

    Attributes:
        packet: Its packet id.
        again: Whether it is marked as one that may have been sent before.
        content: A digest of its topic, its payload and its properties.
    """

    packet: int
    again: bool
    content: int


def digest_of(*parts: bytes) -> int:
    """A digest of some bytes, which differs for parts that are divided otherwise."""
    digest = blake2b(digest_size=6)
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
    return int.from_bytes(digest.digest(), "big")


class SessionDeliveries:
    """The messages of one connection.

    *Invariant (G1): a message is left out if and only if it was taken before.* The broker has at most ``window``
    messages without an acknowledgement, and they are the last ones that it sent: acknowledgements are sent in the order
    of the messages, and processed in this order. Those that were taken among them are at the end of ``taken``. They
    come first on a connection, and are marked. After the first message that was not taken before, none was. *Who may
    break it:* a broker that uses a packet id for another message of the same content within the window, and one that
    forgets its session.
    """

    def __init__(self, position: SessionPosition, window: int) -> None:
        self._before = position.taken
        """What may come again."""
        self._next = 0
        self._count = position.count
        # A smaller window than before counts only once the broker knows it, so the position does not shrink.
        self._taken = deque(position.taken, maxlen=max(window, len(position.taken)))

    @property
    def position(self) -> SessionPosition:
        """The position behind the messages that were taken."""
        return SessionPosition(list(self._taken), self._count)

    def take(self, delivery: SentMessage) -> bool:
        """Take a message. False: it was taken before."""
        one = (delivery.packet, delivery.content)
        if delivery.again and one in self._before[self._next :]:
            self._next = self._before.index(one, self._next) + 1
            return False
        self._next = len(self._before)
        self._taken.append(one)
        self._count += 1
        return True
