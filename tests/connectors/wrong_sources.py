"""Sources that each break one rule of the contract."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from threading import Event, Thread
from typing import Any

from millwheel.connectors import BadRecord, Read, Source, SplitReader, Splits
from tests.connectors.given import NumberReader, Numbers


class Wrong(Numbers):
    """Reads a world by a reader that a subclass changes."""

    async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
        return self.reader(NumberReader(self, split, position or 0))

    def reader(self, right: NumberReader) -> SplitReader[int, int]:
        return _Changed(self, right)

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        return read


class _Changed(SplitReader[int, int]):
    def __init__(self, source: Wrong, right: NumberReader) -> None:
        self.source = source
        self.right = right

    async def read(self) -> Read[int, int]:
        self.right.most_records = self.most_records
        return await self.source.change(await self.right.read(), self.right)


class BeginsAgain(Wrong):
    """Every reader begins at the beginning."""

    async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
        return NumberReader(self, split, 0)


class SaysWhereItBegan(Wrong):
    """The position is the one before the read."""

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        return replace(read, position=read.position - len(read.records))


class Skips(Wrong):
    """The position is one too far."""

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        return replace(read, position=read.position + 1)


class Reverses(Wrong):
    """Records of a read come in another order."""

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        return replace(read, records=list(reversed(read.records)))


class TimesOfReads(Wrong):
    """A record has another time at each read."""

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        return replace(read, records=[(value, (at or 0) + random.randrange(1 << 40)) for value, at in read.records])  # type: ignore[misc]


class SharesItsReader(Wrong):
    """All readers of a split are one."""

    async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
        readers: dict[str, NumberReader] = vars(self.world).setdefault("shared", {})
        reader = readers.setdefault(split, NumberReader(self, split, 0))
        reader.position = position or 0
        return reader


class Takes(Wrong):
    """A read removes what it returns, as from a queue."""

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        del self.world.splits[right.split][: len(read.records)]
        right.position = 0
        return replace(read, position=0)


class Forgets(Wrong):
    """It keeps the contract: it forgets what is before the place where the read before began. That is committed."""

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        began = right.position - len(read.records)
        self.forget(right.split, vars(right).get("former", 0))
        vars(right)["former"] = began
        return read

    def forget(self, split: str, position: int) -> None:
        forgotten: dict[str, int] = vars(self.world).setdefault("forgotten", {})
        forgotten[split] = max(forgotten.get(split, 0), position)

    async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
        forgotten: dict[str, int] = vars(self.world).setdefault("forgotten", {})
        first = forgotten.get(split, 0)
        if position is not None and position < first:
            raise LookupError(f"split {split} has records from {first} on, and {position} comes next")
        return self.reader(NumberReader(self, split, first if position is None else position))


class ForgetsTooMuch(Forgets):
    """It forgets what is before the place where a read begins, and that may not be committed."""

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        self.forget(right.split, right.position - len(read.records))
        return read


class ChangesPositions(Source[int, list[int]]):
    """All positions of a reader are one list."""

    def __init__(self, right: Numbers) -> None:
        self.right = right

    async def splits(self) -> Splits:
        return await self.right.splits()

    async def open_reader(self, split: str, position: list[int] | None) -> SplitReader[int, list[int]]:
        return _OneList(NumberReader(self.right, split, position[0] if position else 0))


class _OneList(SplitReader[int, list[int]]):
    def __init__(self, right: NumberReader) -> None:
        self.right = right
        self.position = [0]

    async def read(self) -> Read[int, list[int]]:
        read: Read[Any, Any] = await self.right.read()
        self.position[0] = read.position
        return replace(read, position=self.position)


class EndsEarly(Wrong):
    """A split ends where its present records end."""

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        return replace(read, ended=read.behind == 0)


class NeverEnds(Wrong):
    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        return replace(read, ended=False)


class EndsOnce(Wrong):
    """The end is said to one reader alone."""

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        said: set[str] = vars(self.world).setdefault("said", set())
        first = read.ended and right.split not in said
        said |= {right.split} if first else set()
        return replace(read, ended=first)


class SaysNothingWaits(Wrong):
    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        return replace(read, behind=0)


class ReadsAll(Wrong):
    """A read returns all that there is."""

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        rest = self.world.splits[right.split][right.position :]
        right.position += len(rest)
        return replace(read, records=[*read.records, *rest], position=right.position, behind=0)


class Heedless(Wrong):
    """A read has as many records as the source likes."""

    async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
        reader = await super().open_reader(split, position)

        class Reader(SplitReader[int, int]):
            async def read(self) -> Read[int, int]:
                return await reader.read()

        return Reader()


class KeepsItsLock(Wrong):
    """A cancelled read leaves the lock of its split locked."""

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        locks: dict[str, asyncio.Lock] = vars(self.world).setdefault("locks", {})
        lock = locks.setdefault(right.split, asyncio.Lock())
        await lock.acquire()
        await asyncio.sleep(0)
        lock.release()
        return read


class Leaks(Wrong):
    """Each reader has a thread that never ends while the world is there."""

    def reader(self, right: NumberReader) -> SplitReader[int, int]:
        stop: Event = vars(self.world).setdefault("stop", Event())
        Thread(target=stop.wait, args=(60,), daemon=True).start()
        return right


class Counts(Wrong):
    """It counts in an attribute, and so becomes another source."""

    async def splits(self) -> Splits:
        self.searches = getattr(self, "searches", 0) + 1
        return await super().splits()


class NamesByChance(Wrong):
    """A split has another name at each search."""

    async def splits(self) -> Splits:
        names = [f"{name}/{random.randrange(1 << 40)}" for name in self.world.splits]
        return Splits(names, final=self.world.final)

    async def open_reader(self, split: str, position: int | None) -> SplitReader[int, int]:
        return await super().open_reader(split.partition("/")[0], position)


class FindsOnce(Wrong):
    """What the first search finds is all."""

    async def splits(self) -> Splits:
        first: list[str] = vars(self.world).setdefault("first", list(self.world.splits))
        return Splits(first, final=self.world.final)


class DropsBadOnes(Wrong):
    """What cannot be read is left out."""

    async def change(self, read: Read[int, int], right: NumberReader) -> Read[int, int]:
        return replace(read, records=[one for one in read.records if not isinstance(one[0], BadRecord)])


class SaysNothingOfErrors(Wrong):
    """A split that cannot be reached looks like one that has nothing."""

    def reader(self, right: NumberReader) -> SplitReader[int, int]:
        return _Silent(right)


class _Silent(SplitReader[int, int]):
    def __init__(self, right: NumberReader) -> None:
        self.right = right

    async def read(self) -> Read[int, int]:
        try:
            return await self.right.read()
        except ConnectionError:
            return Read([], self.right.position, behind=0)
