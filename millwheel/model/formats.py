"""The format of a cluster: which stored and sent forms all of its processes must understand. See docs/upgrading.md."""

from __future__ import annotations

from typing import Final

__all__ = [
    "COLUMNS",
    "DEFLATED_ENTRIES",
    "FORKS",
    "NEWEST_FORMAT",
    "OLDEST_FORMAT",
    "POSITION_RANGES",
    "RESULT_COLUMNS",
]

NEWEST_FORMAT: Final = 4
"""The newest format that this version knows. A new cluster begins with it."""

FORKS: Final = 2
"""The first format of clusters that may have forks: TopologyRecord.fork, and code that is loaded under another name."""

COLUMNS: Final = 3
"""The first format of clusters that may have windows by columns: entries of format 3, and base parts ``panes``."""

POSITION_RANGES: Final = 4
"""The first format of clusters whose injectors state complete positions: ids of format 2 in entries and base parts.
They may also send records as columns."""

RESULT_COLUMNS: Final = 4
"""The first format of clusters whose workers write productions as columns: entries of format 4. They also state
complete positions."""

DEFLATED_ENTRIES: Final = 4
"""The first format of clusters whose entries in Cassandra may be deflated: envelopes of version 2."""

OLDEST_FORMAT: Final = 1
"""The oldest format that this version still reads and writes. Version 0.1.0 stored no format, which reads as 0."""
