"""The limits on what users hand in, and where each comes from.

A limit is checked where the user's value enters, so that the error names the value; everything behind
that point relies on it. No limit applies to the sum of what one hook call produces: a commit beyond MAX_ENTRY_BYTES is
written in parts that take effect together (G2).
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "MAX_DELIVERED_BYTES",
    "MAX_ENTRY_BYTES",
    "MAX_KEY_BYTES",
    "MAX_PRODUCTIONS",
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
"""One key's encoded state, 4 MiB: a quarter of what Cassandra takes in one write. Each commit that changes the state
writes all of it."""

MAX_DELIVERED_BYTES: Final = MAX_VALUE_BYTES + (64 << 10)
"""One record as intervals deliver it: a dead letter is a record of the largest size and what is said about it."""

MAX_PRODUCTIONS: Final = 15_000_000
"""Records that the hooks of one key may produce in one commit, and timers that they may set: several GiB of memory.
Each has a number of 24 bits in its commit, and the commit may hold other keys' records, too."""

MAX_ENTRY_BYTES: Final = 8 << 20
"""One append to the journal, 8 MiB: half of what Cassandra takes in one write. A larger entry is written in parts."""
