"""The rules of readers, each tried by calls without a topology: positions, bounds, cancellation, the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

from millwheel.connectors.source import MOST_RECORDS, BadRecord, Source, SplitReader
from millwheel.model.time import Timestamp
from millwheel.sdk.codecs import ValueCodec, codec_for
from millwheel.testing.connectors.given import PER_SPLIT, SourceUnderTest
from millwheel.testing.connectors.probes import position_type
from millwheel.testing.connectors.rules import (
    POLL_SECONDS,
    call,
    cancel_after,
    close_quietly,
    deadline,
    not_offered,
    open_things,
    require,
    run,
    until,
)

__all__ = ["ReaderRules"]

T = TypeVar("T")
P = TypeVar("P")

_NAME_BYTES: Final = 512
_READERS: Final = 20
"""How many readers one after the other show that each gives back what it holds."""
_ROUNDS: Final = 200
"""How many rounds of the event loop a cancelled call goes on at most. A call that needs none has ended before."""
_FEW: Final = 2
"""A bound of a read that is lower than the records of a split."""
_AGAIN: Final = 3
"""How many reads look whether more comes than there is."""


@dataclass
class _ReadPart:
    """What one read got, with the position behind it as it is stored."""

    records: list[tuple[int, Timestamp | None]]
    position: bytes
    behind: int | None
    ended: bool
    returned: Any
    """The position as the reader has returned it."""


class ReaderRules(SourceUnderTest[T, P]):
    """Tests of a source that open its readers themselves."""

    def test_a_position_always_means_the_same_place(self) -> None:
        """From each position that was ever returned, another reader gets the same records (G1).

        If the source forgets records, that holds from the position on that is committed for certain.
        """
        written = self._write_some()
        run(self._replay(written) if self.keeps_records else self._repeat(written))

    def test_readers_of_a_split_do_not_disturb_each_other(self) -> None:
        """After a move, the former owner has an open reader of the split. Each reader gets all records."""
        if not self.keeps_records:
            raise not_offered("keeps_records")
        run(self._read_side_by_side(self._write_some()))

    def test_a_read_has_a_bound(self) -> None:
        """A read returns 10,000 records at most, also where more of them wait (G13)."""
        numbers = range(self.most_records)
        self.write(0, numbers)

        async def read() -> None:
            for parts in (await self._read_all({0: list(numbers)})).values():
                for part in parts:
                    most = f"a read returns {MOST_RECORDS:,} records at most, not {len(part.records):,}"
                    require(len(part.records) <= MOST_RECORDS, most)

        run(read())

    def test_a_read_has_no_more_records_than_it_may(self) -> None:
        """A reader heeds ``most_records``: those of a former read were too many bytes as they are stored (G13)."""
        written = self._write_some()

        async def read() -> None:
            for parts in (await self._read_all(written, most=_FEW)).values():
                for part in parts:
                    heeds = f"a reader whose most_records is {_FEW} returned {len(part.records)} records at once"
                    require(len(part.records) <= _FEW, heeds)

        run(read())

    def test_behind_says_whether_records_wait(self) -> None:
        """``behind=0`` says that nothing waits. Then an idle split lets its watermark follow the clock (G7)."""
        written = self._write_some()

        async def read() -> None:
            for split, parts in (await self._read_all(written)).items():
                left = sum(len(part.records) for part in parts)
                for part in parts:
                    left -= len(part.records)
                    waiting = f"split {split!r}: behind=0 says that nothing waits, but {left} records do"
                    require(part.behind is None or part.behind > 0 or left == 0, waiting)
                    require(part.behind is None or part.behind >= 0, f"split {split!r}: behind is below 0")

        run(read())

    def test_a_cancelled_call_loses_nothing(self) -> None:
        """A worker cancels calls when its interval goes away. The next reader gets all records."""
        written = self._write_some()

        async def cancel() -> None:
            for ticks in (0, 1, 3, 10, _ROUNDS):
                await cancel_after(ticks, self.make_source().splits())
                for split in await self._names():
                    source = self.make_source()
                    opened = await cancel_after(ticks, source.open_reader(split, None))
                    if opened is not None:
                        await cancel_after(ticks, opened.read())
                        await close_quietly(opened)
            await self._read_all(written)

        run(cancel())

    def test_close_gives_back_what_a_reader_holds(self) -> None:
        """Readers are opened and closed for ever: no file, connection or thread of them may stay."""
        written = self._write_some()

        async def use() -> None:
            await self._read_all(written)

        async def count() -> None:
            await use()  # what is made once, such as a pool of threads, is there from now on
            before = open_things()
            for _ in range(_READERS):
                await use()

            async def few() -> bool:
                return open_things() < before + _READERS

            await until(
                few, lambda: f"{_READERS} readers were closed, and left {open_things() - before} files or threads"
            )

        run(count())

    def test_use_does_not_change_what_a_source_is(self) -> None:
        """All processes make the same source. One that is used has the identity that it had (G1)."""
        written = self._write_some()
        used, other = self.make_source(), self.make_source()
        identity = used.identity()
        require(other.identity() == identity, "two sources with equal parameters have the same identity()")
        run(self._read_all(written, used))
        require(used.identity() == identity, "an instance has parameters only: its use has changed its identity()")

    def test_splits_have_names_that_stay(self) -> None:
        """A name has up to 512 bytes, and always means the same split."""
        self._write_some()

        async def names() -> None:
            first, second = await self._names(), await self._names()
            for name in first:
                fits = isinstance(name, str) and 0 < len(name.encode()) <= _NAME_BYTES
                require(fits, f"the name of a split is a text of 1 to {_NAME_BYTES} bytes, not {name!r:.80}")
            require(set(first) <= set(second), f"a second search calls the splits {second}, and not {first}")

        run(names())

    def test_a_split_that_has_ended_says_so_again(self) -> None:
        """The commit of the last read may be lost, so another reader comes to the end once more."""
        written = self._write_some()
        self.end()

        async def read() -> None:
            source = self.make_source()
            for split, parts in (await self._read_all(written)).items():
                for position in [None, *(self._decoded(part.position) for part in parts if not part.ended)]:
                    reader = await self._open(source, split, position)
                    await self._read_to_end(reader, split)
                    await close_quietly(reader)

        run(read())

    # What the tests do.

    def _write_some(self) -> dict[int, list[int]]:
        """Write records to two splits. Returns their numbers, by split."""
        written = {split: [split * PER_SPLIT + number for number in range(7 - 3 * split)] for split in (0, 1)}
        for split, numbers in written.items():
            self.write(split, numbers)
        return written

    def _written_again(self, written: dict[int, list[int]]) -> dict[int, list[int]]:
        """What the next topology reads from the beginning: the same records, if the source has not forgotten them."""
        if self.keeps_records:
            return written
        self.empty()
        return self._write_some()

    async def _names(self) -> Sequence[str]:
        return (await call(self.make_source().splits(), "splits()")).names

    async def _open(self, source: Source[T, P], split: str, position: P | None) -> SplitReader[T, P]:
        return await call(source.open_reader(split, position), f"open_reader({split!r})")

    async def _replay(self, written: dict[int, list[int]]) -> None:
        source = self.make_source()
        for split, parts in (await self._read_all(written)).items():
            whole = [record for part in parts for record in part.records]
            done = 0
            for part in parts:
                done += len(part.records)
                reader = await self._open(source, split, self._decoded(part.position))
                rest = await self._read_rest(reader, len(whole) - done)
                await close_quietly(reader)
                require(
                    rest == whole[done:],
                    f"split {split!r} has had the records {whole[done:]} at position {self._decoded(part.position)!r}, "
                    f"and has {rest} there now",
                )

    async def _repeat(self, written: dict[int, list[int]]) -> None:
        """Read from each position twice, as after the death of a process that has not committed its read."""
        positions: dict[str, Any] = dict.fromkeys(await self._names())
        found: list[int] = []

        async def complete() -> bool:
            for split, position in positions.items():
                began, part = await self._first_records(split, position)
                if part.records:
                    again = (await self._first_records(split, began, come_again=True))[1].records
                    both = min(len(part.records), len(again))
                    require(
                        both and part.records[:both] == again[:both],
                        f"split {split!r} has had the records {part.records} at position {began!r}, where "
                        f"a read began whose commit may be lost, and has {again} there now",
                    )
                    positions[split] = self._decoded(part.position)
                found.extend(number for number, _ in part.records)
            return len(found) >= sum(map(len, written.values()))

        await until(complete, lambda: f"some records never came: {written} are there, and {found} were read")
        expected = sorted(number for numbers in written.values() for number in numbers)
        require(sorted(found) == expected, f"the records {expected} are there, and {sorted(found)} were read")

    async def _first_records(self, split: str, position: Any, *, come_again: bool = False) -> tuple[Any, _ReadPart]:
        """The first read that finds something, or that says that nothing waits, and the position where it began.

        The reader reads once more then, and its process dies. So that position is committed, and no later one.
        """
        reader = await self._open(self.make_source(), split, position)
        again, end, part = _AGAIN, deadline(), await self._part(reader)
        while again > 0 and time.monotonic() < end and not (part.records or part.ended or part.behind == 0):
            again -= part.behind is None and not come_again
            await asyncio.sleep(POLL_SECONDS)
            if part.returned is not None:  # it has not found out where the beginning is
                position = self._decoded(part.position)
            part = await self._part(reader)
        if part.records and not part.ended:
            await self._part(reader)
        await close_quietly(reader)
        return position, part

    async def _read_side_by_side(self, written: dict[int, list[int]]) -> None:
        for split, parts in (await self._read_all(written)).items():
            whole = [record for part in parts for record in part.records]
            readers = [await self._open(self.make_source(), split, None) for _ in range(2)]
            rests = await asyncio.gather(*(self._read_rest(reader, len(whole)) for reader in readers))
            for reader in readers:
                await close_quietly(reader)
            for rest in rests:
                require(rest == whole, f"split {split!r} has {whole}, and one of two readers at once got {rest}")

    async def _read_all(
        self, written: dict[int, list[int]], source: Source[T, P] | None = None, most: int = MOST_RECORDS
    ) -> dict[str, list[_ReadPart]]:
        """Read each split from its beginning, until all that was written is there. Returns the reads, by split."""
        source = source or self.make_source()
        missing, found = sum(map(len, written.values())), dict[str, list[_ReadPart]]()
        readers = {
            name: await self._open(source, name, None) for name in (await call(source.splits(), "splits()")).names
        }

        for reader in readers.values():
            reader.most_records = most

        async def complete() -> bool:
            """Read until all is there, or nothing comes."""
            nonlocal missing
            before = missing + 1
            while 0 < missing < before:
                before = missing
                for name, reader in readers.items():
                    parts = found.setdefault(name, [])
                    if not parts or not parts[-1].ended:
                        parts.append(await self._part(reader))
                        missing -= len(parts[-1].records)
            return missing <= 0

        try:
            await until(complete, lambda: f"{missing} records never came: {written} are there, and {found} were read")
        finally:
            for reader in readers.values():
                await close_quietly(reader)
        got = sorted(number for parts in found.values() for part in parts for number, _ in part.records)
        expected = sorted(number for numbers in written.values() for number in numbers)
        require(got == expected, f"the records {expected} are there, and {got} were read")
        for part in (part for parts in found.values() for part in parts):
            stays = self._positions.encode(part.returned) == part.position
            require(stays, f"the position {part.returned!r} was another one when its read returned it: return a copy")
        return found

    async def _read_rest(self, reader: SplitReader[T, P], count: int) -> list[tuple[int, Timestamp | None]]:
        """Read until so many records are there, and look whether more come."""
        found: list[tuple[int, Timestamp | None]] = []
        again, end = _AGAIN, deadline()
        while again > 0 and time.monotonic() < end:
            part = await self._part(reader)
            found.extend(part.records)
            if part.ended:
                break
            again -= len(found) >= count
            await asyncio.sleep(0 if part.records else POLL_SECONDS)
        return found

    async def _read_to_end(self, reader: SplitReader[T, P], split: str) -> None:
        async def ended() -> bool:
            return (await self._part(reader)).ended

        await until(ended, lambda: f"split {split!r} has ended, but no read from an earlier position says so")

    async def _part(self, reader: SplitReader[T, P]) -> _ReadPart:
        read = await call(reader.read(), "read()")
        records = [(self.number_of(value), at) for value, at in read.records if not isinstance(value, BadRecord)]
        return _ReadPart(records, self._positions.encode(read.position), read.behind, read.ended, read.position)

    @cached_property
    def _positions(self) -> ValueCodec:
        return codec_for(position_type(self.make_source()), "the positions of the source")

    def _decoded(self, position: bytes) -> Any:
        return self._positions.decode(position)
