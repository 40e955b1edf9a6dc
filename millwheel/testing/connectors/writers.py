"""The rules of writers, each tried by calls without a topology: ids, chains, zombies, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeVar

from millwheel.connectors.sink import SinkBatch, SinkShard, SinkWriter
from millwheel.testing.connectors.given import SinkUnderTest
from millwheel.testing.connectors.rules import (
    BrokenContractError,
    call,
    cancel_after,
    close_quietly,
    error_of,
    not_offered,
    open_things,
    require,
    run,
    start_of_clock,
    until,
)

__all__ = ["WriterRules"]

T = TypeVar("T")

_WRITERS: Final = 20
"""How many writers one after the other show that each gives back what it holds."""


class WriterRules(SinkUnderTest[T]):
    """Tests of a sink that open its writers themselves."""

    def test_a_batch_that_comes_again_changes_nothing(self) -> None:
        """To the same writer, and to one of another process."""
        first, second = self._batches([1, 2], [3])

        async def write() -> None:
            writer = await self._open()
            await self._written(writer, first, first)
            await close_quietly(writer)
            other = await self._open()
            await self._written(other, first, second, second)
            await close_quietly(other)

        self._expect(write(), [1, 2, 3])

    def test_a_writer_that_wakes_up_changes_nothing(self) -> None:
        """A former process writes its last batches, after its successor has written them and later ones (6.2)."""
        first, second, third, fourth = self._batches([1], [2], [3], [4])

        async def write() -> None:
            former = await self._open()
            await self._written(former, first)
            present = await self._open()  # it may shut the former one out
            await self._written(present, second, third)
            for late in (second, first, third):
                await error_of(former.write(late), "write()")  # it may say that it is shut out
            await self._written(present, fourth)
            await close_quietly(former)
            await close_quietly(present)

        self._expect(write(), [1, 2, 3, 4])

    def test_two_writers_at_once_write_once(self) -> None:
        """A former process is still writing a batch while its successor writes it, too."""
        *batches, last = self._batches([1], [2, 3], [4], [5])

        async def write() -> None:
            writers = [await self._open() for _ in range(2)]
            for batch in batches:
                await asyncio.gather(*(error_of(writer.write(batch), "write()") for writer in writers))
                await self._until_written(batch)  # one of both may have failed, and is tried again
            for writer in writers:
                await error_of(writer.write(last), "write()")  # both have begun before this batch was there
            await self._until_written(last)
            for writer in writers:
                await close_quietly(writer)

        self._expect(write(), [1, 2, 3, 4, 5])

    def test_a_cancelled_write_loses_nothing(self) -> None:
        """A worker cancels a write, which may go on by itself. The batch comes again to another writer."""
        cancelled_after = (0, 1, 2, 5, 20)
        batches = self._batches(*([number] for number in range(len(cancelled_after))))

        async def write() -> None:
            for ticks, batch in zip(cancelled_after, batches, strict=True):
                writer = await self._open()
                await cancel_after(ticks, writer.write(batch))
                await close_quietly(writer)
                await self._until_written(batch)

        self._expect(write(), list(range(len(cancelled_after))))

    def test_a_batch_that_does_not_follow_is_refused(self) -> None:
        """The topology or the other system was set back, and a record would be missing or twice."""
        first, second, third = self._batches([1], [2], [3])
        other = SinkBatch(2, third.records, _id_of("other"), _id_of("another"))

        async def write() -> None:
            await self._until_written(first)
            for wrong in (third, other):
                await self._refused(wrong, self._place(), "it does not follow the last batch")
            await self._until_written(second)

        self._only_with_ids(write(), [1, 2])

    def test_a_former_run_is_refused(self) -> None:
        """A topology that was deleted and submitted again counts from 1. The former one may write no more."""
        first, second = self._batches([1], [2])
        (again,) = self._batches([3], salt="later")

        async def write() -> None:
            await self._until_written(first)
            await self._until_written(again, self._place(run=2))
            await self._refused(second, self._place(), "a later run has written")

        self._only_with_ids(write(), [1, 3])

    def test_each_name_has_batches_of_its_own(self) -> None:
        """A fork goes on under another name, with any number. The original goes on, too."""
        first, second = self._batches([1], [2])
        _, forked = self._batches([3], [4], salt="fork")
        begins = SinkBatch(2, forked.records, forked.id, "")

        async def write() -> None:
            await self._until_written(first)
            await self._until_written(begins, self._place(topology=f"{self.topology}-fork"))
            await self._until_written(second)

        self._expect(write(), [1, 2, 4])

    def test_each_shard_has_batches_of_its_own(self) -> None:
        """The batches of two shards may have equal numbers."""
        first, second = self._batches([1], [2])
        others = self._batches([3], [4], salt="other shard")

        async def write() -> None:
            for mine, its in zip((first, second), others, strict=True):
                await self._until_written(mine)
                await self._until_written(its, self._place(shard=1))

        self._expect(write(), [1, 2, 3, 4])

    def test_a_system_that_is_away_loses_nothing(self) -> None:
        """A write raises while it is away. The batch comes again when it is back."""
        away = self.away()
        first, second = self._batches([1], [2])

        async def write() -> None:
            await self._until_written(first)
            with away:
                await self._refused(second, self._place(), "the other system is away")
            await self._until_written(second)

        self._expect(write(), [1, 2])

    def test_close_gives_back_what_a_writer_holds(self) -> None:
        """Writers are opened and closed for ever: no file, connection or thread of them may stay."""
        batches = self._batches(*([number] for number in range(_WRITERS + 1)))

        async def write() -> None:
            await self._until_written(batches[0])  # what is made once is there from now on
            before = open_things()
            for batch in batches[1:]:
                await self._until_written(batch)

            async def few() -> bool:
                return open_things() < before + _WRITERS

            await until(
                few, lambda: f"{_WRITERS} writers were closed, and left {open_things() - before} files or threads"
            )

        self._expect(write(), list(range(_WRITERS + 1)))

    def _batches(self, *numbers: Sequence[int], salt: str = "") -> list[SinkBatch[T]]:
        """A chain of batches with these records."""
        batches: list[SinkBatch[T]] = []
        for index, own in enumerate(numbers, 1):
            records = [(self.value(number), start_of_clock()) for number in own]
            batches.append(SinkBatch(index, records, _id_of(salt, index), batches[-1].id if batches else ""))
        return batches

    def _place(self, *, topology: str = "", shard: int = 0, run: int = 1) -> SinkShard:
        return SinkShard(f"{topology or self.topology}/table", shard, 2, run)

    async def _open(self, place: SinkShard | None = None) -> SinkWriter[T]:
        return await call(self.make_sink().open_writer(place or self._place()), "open_writer()")

    async def _written(self, writer: SinkWriter[T], *batches: SinkBatch[T]) -> None:
        for batch in batches:
            await call(writer.write(batch), f"write() of batch {batch.number}")

    async def _until_written(self, batch: SinkBatch[T], place: SinkShard | None = None) -> None:
        """Write a batch as a worker does: after an error again, by another writer."""
        error: Exception | None = None

        async def written() -> bool:
            nonlocal error
            error = await self._error_of_write(batch, place)
            return error is None

        await until(written, lambda: f"batch {batch.number} cannot be written: {error!r}")

    async def _refused(self, batch: SinkBatch[T], place: SinkShard, why: str) -> None:
        error = await self._error_of_write(batch, place)
        require(error is not None, f"{why}, so the write of batch {batch.number} raises an error")

    async def _error_of_write(self, batch: SinkBatch[T], place: SinkShard | None) -> Exception | None:
        """Write a batch by a writer of another process."""
        try:
            writer = await self._open(place)
        except BrokenContractError:
            raise
        except Exception as error:
            return error
        try:
            return await error_of(writer.write(batch), f"write() of batch {batch.number}")
        finally:
            await close_quietly(writer)

    def _expect(self, test: Coroutine[Any, Any, None], numbers: Sequence[int]) -> None:
        """Run a test, and look that these records are stored, each once."""
        run(test)
        stored = sorted(self.stored())
        require(stored == numbers, f"each record is stored once: {numbers}, and not {stored}")

    def _only_with_ids(self, test: Coroutine[Any, Any, None], numbers: Sequence[int]) -> None:
        if not self.knows_last_batch:
            test.close()
            raise not_offered("knows_last_batch")
        self._expect(test, numbers)


def _id_of(*parts: object) -> str:
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()
