"""The rules of readers, each tried by calls without a topology: positions, bounds, cancellation, the end."""

from __future__ import annotations

from typing import Final, TypeVar

from millwheel.connectors.source import MAX_RECORDS
from millwheel.testing.connectors.reader_steps import ReaderSteps
from millwheel.testing.connectors.rules import (
    cancel_after,
    close_quietly,
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


class ReaderRules(ReaderSteps[T, P]):
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
                    most = f"a read returns {MAX_RECORDS:,} records at most, not {len(part.records):,}"
                    require(len(part.records) <= MAX_RECORDS, most)

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
        written, source = self._write_some(), self.make_source()

        async def use() -> None:
            # As in a worker: all readers are of one source, which may keep its search for splits a while.
            await self._read_all(written, source)

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
