"""What the tests of readers do: they write records, and read them by readers that they open themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

from millwheel.connectors.source import MAX_RECORDS, BadRecord, Source, SplitReader
from millwheel.model.time import Timestamp
from millwheel.sdk.codecs import ValueCodec, codec_for
from millwheel.testing.connectors.given import PER_SPLIT, SourceUnderTest
from millwheel.testing.connectors.probes import position_type
from millwheel.testing.connectors.rules import POLL_SECONDS, call, close_quietly, deadline, require, until

__all__ = ["ReadPart", "ReaderSteps"]

T = TypeVar("T")
P = TypeVar("P")

_AGAIN: Final = 3
"""How many reads look whether more comes than there is."""


@dataclass
class ReadPart:
    """What one read got, with the position behind it as it is stored."""

    records: list[tuple[int, Timestamp | None]]
    position: bytes
    behind: int | None
    ended: bool
    returned: Any
    """The position as the reader has returned it."""


class ReaderSteps(SourceUnderTest[T, P]):
    """Steps that several tests of readers take. Each of them fails if what is read is not what was written."""

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

    async def _first_records(self, split: str, position: Any, *, come_again: bool = False) -> tuple[Any, ReadPart]:
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
        self, written: dict[int, list[int]], source: Source[T, P] | None = None, most: int = MAX_RECORDS
    ) -> dict[str, list[ReadPart]]:
        """Read each split from its beginning, until all that was written is there. Returns the reads, by split."""
        source = source or self.make_source()
        missing, found = sum(map(len, written.values())), dict[str, list[ReadPart]]()
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

    async def _part(self, reader: SplitReader[T, P]) -> ReadPart:
        read = await call(reader.read(), "read()")
        records = [(self.number_of(value), at) for value, at in read.records if not isinstance(value, BadRecord)]
        return ReadPart(records, self._positions.encode(read.position), read.behind, read.ended, read.position)

    @cached_property
    def _positions(self) -> ValueCodec:
        return codec_for(position_type(self.make_source()), "the positions of the source")

    def _decoded(self, position: bytes) -> Any:
        return self._positions.decode(position)
