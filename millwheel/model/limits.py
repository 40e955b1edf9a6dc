"""The limits on users' values, and the reason for each.

A limit is checked where the user's value enters the system, so that the error names the value. All later code relies on
that check. No limit applies to the sum of what one hook call produces. A commit larger than MAX_ENTRY_BYTES is written
in parts, which take effect together (G2).
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "MAX_DELIVERED_BYTES",
    "MAX_ENTRY_BYTES",
    "MAX_KEY_BYTES",
    "MAX_PRODUCTIONS",
    "MAX_RETAINED_BYTES",
    "MAX_STATE_BYTES",
    "MAX_TAG_BYTES",
    "MAX_VALUE_BYTES",
]

MAX_KEY_BYTES: Final = 4_096
"""The largest key, in UTF-8 bytes.

Every delivery, timer and interval bound contains a copy of its key. A key is also a part of a Cassandra partition key,
which is limited to 64 KiB. With 4 KiB, copies stay cheap, and a key fits into a URL or a path.
"""

MAX_TAG_BYTES: Final = 256
"""The largest timer tag, in UTF-8 bytes. All timers of a key are written with its state row. 256 bytes hold any name.
"""

MAX_VALUE_BYTES: Final = 1 << 20
"""The largest encoded record: 1 MiB. With its key and id it stays well below gRPC's limit of 4 MiB for a message."""

MAX_STATE_BYTES: Final = 4 << 20
"""The largest encoded state of a key: 4 MiB, a quarter of Cassandra's limit for one write.

Each commit that changes the state writes all of it.
"""

MAX_DELIVERED_BYTES: Final = MAX_VALUE_BYTES + (64 << 10)
"""The largest record that an interval delivers. A dead letter contains a record of the largest size, and a description.
"""

MAX_PRODUCTIONS: Final = 15_000_000
"""The most records that the hooks of one key may produce in one commit, and the most timers that they may set.

This many take several GiB of memory. Each has a number of 24 bits within its commit. The same commit may also contain
records of other keys.
"""

MAX_RETAINED_BYTES: Final = 12 << 30
"""The most that a stream's retention keeps: 12 GiB. At 16 GiB a log refuses records.

So only a durable cursor that is behind can fill a log.
"""

MAX_ENTRY_BYTES: Final = 8 << 20
"""The largest append to the journal: 8 MiB, half of Cassandra's limit for one write.

A larger entry is written in parts.
"""
