"""What a source is: splits, each with a reader that goes on where it was (section 5.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from millwheel.errors import MillwheelError
from millwheel.model.time import Timestamp
from millwheel.sdk.function_code import code_digest

__all__ = ["MAX_RECORDS", "BadRecord", "BadRecordError", "Read", "Source", "SplitReader", "Splits", "UnreadRecord"]

T = TypeVar("T")
P = TypeVar("P")

MAX_RECORDS: Final = 10_000
"""The most records of one read (G13)."""


@dataclass(frozen=True, slots=True)
class Splits:
    """The splits that a source has now. At most 100,000 are found in all.

    Attributes:
        names: Their names, each up to 512 bytes. A name always means the same split.
        final: Whether no other split will ever come. Only then can the stream of the source end. No search follows,
            also after updates.
        no_older_than: No split that comes later has a record that is older. It holds the low watermark. None: the time
            of the call, less ``out_of_order`` of the stream.
    """

    names: Sequence[str]
    final: bool = False
    no_older_than: Timestamp | None = None


class BadRecord(msgspec.Struct, frozen=True):
    """A record that cannot be read. A reader returns it in place of the value."""

    split: str
    place: str
    """Where in the split it is, such as ``line 17`` or ``offset 4711``."""
    error: str
    """What is wrong with it."""
    raw: bytes = b""
    """The record as it came."""


class UnreadRecord(BadRecord, frozen=True):
    """A record that cannot be read, where values may be BadRecords themselves.

    A stream of what others could not read has BadRecords as its values. Sources of the library return this class for
    what they cannot read, so both can be distinguished there.
    """


class BadRecordError(MillwheelError):
    """A record cannot be read, and its stream has no place for it."""

    def __init__(self, bad: BadRecord) -> None:
        super().__init__(
            f"split {bad.split!r}, {bad.place}: {bad.error}. Mend the record, or give source() a stream for such "
            'records: bad="NAME"'
        )


class UnlikelyTimeError(MillwheelError):
    """The time of a record is before 1980, or more than a year ahead of the clock. Injectors refuse it, too."""


@dataclass(frozen=True, slots=True)
class Read(Generic[T, P]):
    """What one read of a split got: at most 10,000 records, of 16 MiB in all as they are stored.

    Attributes:
        records: The values, each with its event time. None as the time: that of the read. A :class:`BadRecord` in
            place of a value is one that cannot be read.
        position: Where the next read begins. Any value that the source's position type can store.
        watermark: No later record of the split is older. None: the newest event time so far, less ``out_of_order`` of
            the stream.
        ended: Whether the split has no more records, ever.
        behind: How many records wait in the split after this read, as far as the source knows. For people. And 0 says
            that the split has nothing more for now: without it, ``idle_after`` has no effect.
        lost: How many records were lost since the read before, because nothing keeps them. For people.
        places: Says where the record of an index is in its split, as :attr:`BadRecord.place` of the source does. It is
            asked for a record whose time or type cannot be used. None: it is named by its number in the split.
    """

    records: Sequence[tuple[T | BadRecord, Timestamp | None]]
    position: P
    watermark: Timestamp | None = None
    ended: bool = False
    behind: int | None = None
    lost: int = 0
    places: Callable[[int], str] | None = field(default=None, compare=False)


class SplitReader(ABC, Generic[T, P]):
    """Reads one split, from a position on. One read runs at a time."""

    most_records: int = MAX_RECORDS
    """The most records of the next read. MillWheel sets it before each read. It is lower after records that had too
    many bytes as they are stored, which a reader need not know: values may be larger there than where they come from.
    """

    _takes_tables: bool = False
    """Whether the next read may be columns. MillWheel sets it, too. Only readers of the library look at it."""

    @abstractmethod
    async def read(self) -> Read[T, P]:
        """Return the next records: some hundred or thousand, if there are so many. Without any, return none at once.

        The next read follows at once after records. Otherwise it follows after a pause, which grows from 10 ms to a
        second. A read that waits for records keeps a place that other splits need: an interval has 256. So it waits for
        some 50 ms at most.

        At a second read, the position where the first one began is committed, so the source may forget what is before
        that. No later position is committed for certain.

        What it raises is shown as the error of the split, and the read is tried again by another reader, after a
        back-off. A split that is gone, and whose records nothing needs, returns ``ended=True``. Otherwise it holds the
        low watermark for ever.
        """

    async def close(self) -> None:
        """Give back what the reader holds. It reads no more."""


class Source(ABC, Generic[T, P]):
    """Where the records of a stream come from: a topic of a bus, a folder of files, a table.

    A source has *splits*, which are read side by side: partitions, files, shards. MillWheel keeps the position of each
    split in the state of a key, and commits it together with the records that were read (G1, G2). So each record takes
    effect once, if a split has the same records at the same positions whenever it is read.

    An instance has parameters only. It is part of the program, and exists in each process that runs it.

    For example, a source that counts::

        class Numbers(connectors.Source[int, int]):
            def __init__(self, upto: int) -> None:
                self.upto = upto

            async def splits(self) -> connectors.Splits:
                return connectors.Splits(["even", "odd"], final=True)

            async def open_reader(self, split: str, position: int | None) -> connectors.SplitReader[int, int]:
                return NumberReader(self, position if position is not None else int(split == "odd"))


        class NumberReader(connectors.SplitReader[int, int]):
            def __init__(self, source: Numbers, position: int) -> None:
                self.source, self.position = source, position

            async def read(self) -> connectors.Read[int, int]:
                found = [(n, None) for n in range(self.position, self.source.upto, 2)[: self.most_records]]
                self.position += 2 * len(found)
                return connectors.Read(found, self.position, ended=self.position >= self.source.upto, behind=0)
    """

    _times_are_checked: ClassVar[bool] = False
    """Whether the times of its records were checked where they came from. Then none is refused for its time."""

    _says_times: ClassVar[bool] = True
    """Whether it may say the times of its records. False: without ``timestamp=``, the time is that of the read."""

    def _why_one_by_one(self, record_type: Any) -> str:
        """Why each record of a stream of that type has a value. Empty: reads may be columns. Sources of tables override
        it."""
        return "its source reads no tables"

    def identity(self) -> str:
        """Say what the source reads. An update is refused if it changes this: the positions belong to it.

        By default it is the class with all attributes of the instance, in a digest. Override it if a parameter only
        says how the source reads, such as an address or a size, and may change: ``return f"topic {self.topic}"``.
        """
        slots = [name for one in type(self).__mro__ for name in vars(one).get("__slots__", ()) if hasattr(self, name)]
        parameters = {**vars(self), **{name: getattr(self, name) for name in slots}}
        return f"{type(self).__qualname__} {code_digest([parameters]).partition(':')[2]}"

    @abstractmethod
    async def splits(self) -> Splits:
        """Return the splits that are there now. It is asked again and again, until they are final."""

    @abstractmethod
    async def open_reader(self, split: str, position: P | None) -> SplitReader[T, P]:
        """Open a reader.

        Args:
            split: A name that ``splits`` returned.
            position: Where to begin: the position of a read before. None: nothing was read yet.
        """
