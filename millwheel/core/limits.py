"""The limits on what users hand in, and where each comes from.

A limit is checked where the user's value enters, so that the error names the value; everything behind
that point relies on it. What decides is the size of one journal entry: a hook's new state, its
productions and its timers stand or fall together (G2), and Cassandra takes no mutation above 16 MiB.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "MAX_DELIVERED_BYTES",
    "MAX_ENTRY_BYTES",
    "MAX_KEY_BYTES",
    "MAX_PRODUCED_BYTES",
    "MAX_STATE_BYTES",
    "MAX_TAG_BYTES",
    "MAX_VALUE_BYTES",
]

MAX_KEY_BYTES: Final = 4_096
"""One key, in UTF-8.

A key is repeated in every delivery, timer and interval bound that concerns it, and is part of a
Cassandra partition key, which takes 64 KiB in all: 4 KiB keeps its copies cheap and fits a URL or a path.
"""

MAX_TAG_BYTES: Final = 256
"""One timer tag, in UTF-8. All timers of a key are written with its state row: 256 bytes hold any name."""

MAX_VALUE_BYTES: Final = 1 << 20
"""One encoded record, 1 MiB: with its key and id it stays well below the 4 MiB that gRPC takes in a message."""

MAX_STATE_BYTES: Final = 4 << 20
"""One key's encoded state, 4 MiB: a quarter of the largest entry, and rewritten at each commit that changes it."""

MAX_DELIVERED_BYTES: Final = MAX_VALUE_BYTES + (64 << 10)
"""One record as intervals deliver it: a dead letter is a record of the largest size and what is said about it."""

MAX_PRODUCED_BYTES: Final = 4 << 20
"""What the hooks of one key may produce in one commit, 4 MiB with each record's keys and framing."""

MAX_ENTRY_BYTES: Final = 8 << 20
"""States, productions and timers of one commit, 8 MiB: half of the largest write. Keys beyond it wait for the next."""
