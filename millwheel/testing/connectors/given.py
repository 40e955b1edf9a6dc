"""What an author of a connector defines, so that the tests of the contract can use another system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from millwheel.connectors.sink import Sink
from millwheel.connectors.source import Source
from millwheel.testing.connectors.rules import not_offered

__all__ = ["PER_SPLIT", "SinkUnderTest", "SourceUnderTest"]

T = TypeVar("T")
P = TypeVar("P")

PER_SPLIT = 1_000_000
"""A record of split 2 has a number from 2,000,000 on. So a test knows where a record comes from."""


class SourceUnderTest(ABC, Generic[T, P]):
    """What the tests know of a source and of the system that it reads.

    A record is known by its number. Each test has an instance of its own, and begins without any record.
    """

    record_type: Any = int
    """The type of the records, as for ``topology.source``."""
    options: Mapping[str, Any] = {}
    """The options of ``topology.source``, such as ``timestamp``."""
    splits_grow: bool = True
    """Whether a split gets records after it was found. A file that is never appended to does not."""
    splits_come: bool = True
    """Whether splits may come after the first search."""
    most_records: int = 12_000
    """How many records are written to one split at once, to see that a read has a bound."""
    keeps_records: bool = True
    """Whether a split still has the records whose position is committed. A queue or a replication slot forgets them."""

    @abstractmethod
    def make_source(self) -> Source[T, P]:
        """Make the source, as a topology does: it reads what :meth:`write` has written.

        It is called several times in a test. Each source stands for that of another process.
        """

    @abstractmethod
    def write(self, split: int, numbers: Sequence[int]) -> None:
        """Write a record for each number, behind those that the split has. If there is no such split, make it.

        Args:
            split: 0, 1 or 2. How the source calls the split is its own matter.
            numbers: The numbers of the records. Their event times may be anything before the next hour.
        """

    def number_of(self, value: T) -> int:
        """The number of a record. By default, the value itself."""
        return value  # type: ignore[return-value]

    def empty(self) -> None:
        """Let there be no record again, as at the beginning of a test: for a source that forgets (``keeps_records``).

        Without it, the tests that read several times from the beginning are skipped.
        """
        raise not_offered("empty()")

    def end(self) -> None:
        """Let all splits end, so that the source says so. Without it, the tests of the end are skipped."""
        raise not_offered("end()")

    def away(self) -> AbstractContextManager[object]:
        """A block in which the other system cannot be reached. Without it, the test of that is skipped."""
        raise not_offered("away()")

    def write_bad(self, split: int) -> None:
        """Write what cannot be read as a record. Without it, the test of bad records is skipped."""
        raise not_offered("write_bad()")


class SinkUnderTest(ABC, Generic[T]):
    """What the tests know of a sink and of the system that it writes to.

    A record is known by its number. Each test has an instance of its own, and begins with nothing stored.
    """

    record_type: Any = int
    """The type of the records."""
    topology: str = "contract"
    """What the names of the sinks begin with. Tests that share a system in which a writer stores them need one each."""
    keeps_order: bool = True
    """Whether :meth:`stored` returns the records of a shard in the order in which they were written."""
    knows_last_batch: bool = True
    """Whether a writer refuses a batch that does not follow the last one: it stores ids, as a database does."""

    @abstractmethod
    def make_sink(self) -> Sink[T]:
        """Make the sink, as a topology does. Each one stands for that of another process."""

    @abstractmethod
    def stored(self) -> Sequence[int]:
        """The numbers of all records that are stored, as another program would read them."""

    def value(self, number: int) -> T:
        """The record with this number. By default, the number itself."""
        return number  # type: ignore[return-value]

    def number_of(self, value: T) -> int:
        """The number of a record. By default, the value itself."""
        return value  # type: ignore[return-value]

    def away(self) -> AbstractContextManager[object]:
        """A block in which the other system cannot be reached. Without it, the test of that is skipped."""
        raise not_offered("away()")
