"""The input of the count, and the results that follow from it. Pure: each record follows from its number alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple
from zlib import crc32

__all__ = ["EPOCH_MS", "Hits", "Message", "Window"]

EPOCH_MS: Final = 1_700_000_000_000
"""The event time of the first record, unless a run gives another one: a moment in 2023."""
_LATE_IN: Final = 100
"""One of so many records is out of order."""
_TEXT: Final = "x" * 40

Window = tuple[str, int]
"""A key, and the milliseconds at which a window of it starts."""


class Message(NamedTuple):
    """A record as Kafka has it. ``at``: its timestamp, which is the event time, in milliseconds."""

    key: bytes
    value: bytes
    partition: int
    at: int


@dataclass(frozen=True, slots=True)
class Hits:
    """The records of one run: ``records`` that are counted, and then one for each key that closes all windows.

    Keys are spread evenly. Event times rise by ``per_second`` records a second. One record of a hundred is older than
    that, by up to a fifth of a window. Each key has its partition, so there is no other disorder in a partition.

    Attributes:
        records: How many are counted.
        keys: How many keys there are. At least as many as partitions, so that each partition is closed.
        per_second: Records in a second of event time.
        window_ms: The size of the tumbling windows, in milliseconds. It divides ``first_ms``.
        partitions: Of the topic.
        first_ms: The event time of the first record, in milliseconds.
    """

    records: int
    keys: int
    per_second: float
    window_ms: int
    partitions: int = 4
    first_ms: int = EPOCH_MS

    def __post_init__(self) -> None:
        if self.records < 1 or self.keys < self.partitions or self.per_second <= 0 or self.first_ms % self.window_ms:
            raise ValueError(f"no input can be made like this: {self}")

    @property
    def total(self) -> int:
        """All records of the topic, with those that close the windows."""
        return self.records + self.keys

    @property
    def out_of_order_ms(self) -> int:
        """How much disorder a program has to expect. Records have less."""
        return self.window_ms // 2

    @property
    def end_ms(self) -> int:
        """The end of the last window that is counted. Only records that close windows are later."""
        last = self.first_ms + int((self.records - 1) * 1_000 / self.per_second)
        return last - last % self.window_ms + self.window_ms

    def place(self, number: int) -> tuple[int, int]:
        """The number of the key of a record, and the record's event time in milliseconds."""
        if number >= self.records:
            return number - self.records, self.end_ms + self.out_of_order_ms + self.window_ms
        mixed = crc32(b"%d" % number)
        at = self.first_ms + int(number * 1_000 / self.per_second)
        if (mixed >> 16) % _LATE_IN == 0:
            at = max(self.first_ms, at - mixed % (self.window_ms // 5))
        return mixed % self.keys, at

    def message(self, number: int) -> Message:
        """A record of the topic, of about 100 bytes. Its value has its number and its key."""
        key, at = self.place(number)
        text = f'{{"key":"key-{key:05d}","number":{number},"text":"{_TEXT}"}}'
        return Message(b"key-%05d" % key, text.encode(), key % self.partitions, at)

    def counts(self) -> Counter[Window]:
        """How many records each key has in each window. It uses no stream processor."""
        found: Counter[Window] = Counter()
        for key, at in self._places():
            found[f"key-{key:05d}", at - at % self.window_ms] += 1
        return found

    def sums(self) -> Counter[Window]:
        """The sum of the numbers of the records that each key has in each window. It says which ones were counted."""
        found: Counter[Window] = Counter()
        for number, (key, at) in enumerate(self._places()):
            found[f"key-{key:05d}", at - at % self.window_ms] += number
        return found

    def _places(self) -> Iterator[tuple[int, int]]:
        return map(self.place, range(self.records))
