"""At which offset a partition begins of which nothing was read yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from millwheel.connectors.starts import Start, checked_start
from millwheel.model.time import Timestamp
from millwheel.sdk.errors import UsageError

__all__ = ["Beginning", "KafkaStart", "PlainStart", "offset_at", "offset_since", "plain_start"]

KafkaStart = Start | Mapping[int, int]
PlainStart = Literal["earliest", "latest"] | Timestamp | dict[int, int]
"""Where partitions begin: at one end, at a time, or at offsets by the numbers of partitions."""


class Beginning(NamedTuple):
    """Where a partition begins by a time.

    Attributes:
        offset: The first offset that is read.
        uncertain: Whether the topic's retention may have removed records that belong before it.
        empty: Whether it has removed all that there were. So it is uncertain by any time.
    """

    offset: int
    uncertain: bool = False
    empty: bool = False


def plain_start(given: object) -> PlainStart:
    """What ``start=`` of a source says.

    Raises:
        UsageError: It says nothing that a topic has.
    """
    start: PlainStart = checked_start(given, "a mapping of partitions to offsets")
    if isinstance(start, dict):
        for number, offset in start.items():
            if not (_is_count(number) and _is_count(offset)):
                raise UsageError(
                    f"start= has an offset for the number of a partition, as in {{0: 4711}}, not {number!r:.40}: "
                    f"{offset!r:.40}"
                )
    return start


def _is_count(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 0


def offset_at(start: Literal["earliest", "latest"] | dict[int, int], partition: int, low: int, high: int) -> int:
    """The first offset that is read of a partition.

    A partition that a mapping has not begins at its earliest record, because it may have come later.

    Args:
        start: What the program says.
        partition: Its number.
        low: The offset of its first record.
        high: The offset behind its last record that is committed.
    """
    if isinstance(start, dict):
        return start.get(partition, low)
    return low if start == "earliest" else high


def offset_since(low: int, high: int, found: int) -> Beginning:
    """Where a partition begins by a time, which the broker looks for in what is there.

    If nothing that is there is older, what was removed before may have been as new.

    Args:
        low: The offset of its first record, after the search.
        high: The offset behind its last record that was committed, before the search.
        found: The offset of its first record that is as new as the time. -1: there is none.
    """
    offset = high if found < 0 else min(found, high)
    return Beginning(offset, uncertain=low > 0 and offset <= low, empty=low > 0 and high <= low)
