"""The latest record of each key of a stream, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Generic, TypeVar

from millwheel.client.control import DEFAULT_ADDRESS
from millwheel.client.subscription.subscriber import From, Subscription

__all__ = ["StreamTable"]

K = TypeVar("K")
V = TypeVar("V")


class StreamTable(Generic[K, V]):
    """The latest record of each key of a stream. Use it with ``async with``, and iterate over it for changes.

    When it is entered, it has read all records that the stream's log keeps. Each step of the iteration applies the next
    record, and returns its key and value. For example::

        async with StreamTable("zeitgeist/windows", lambda count: count.text, WindowCount) as table:
            print(table.rows)
            async for text, count in table:
                ...

    The latest record is the one with the largest offset. All records of one producing key have the order of their
    commits. The log keeps records for the stream's retention: a key without a record in that time is not in the table.
    For a table that keeps every key, look up the state of a computation: :class:`millwheel.client.states.StateReader`.

    It uses memory for one record of each key.

    Args:
        stream: The full name of the stream, or its short name if no other topology has a stream of that name.
        key: Returns the key of a value. That of a window's result has its start, too:
            ``lambda count: (count.text, count.start)``.
        record_type: The type to decode values as. None leaves values as bytes.
        address: A master's address, as host or host:port; several with commas between them.
        patience: Seconds to look for a log that cannot be reached.

    Raises:
        RequestError: By the first reading and the iteration, as by :class:`Subscription`.
    """

    def __init__(
        self,
        stream: str,
        key: Callable[[V], K],
        record_type: Any = None,
        *,
        address: str = DEFAULT_ADDRESS,
        patience: float = 60.0,
    ) -> None:
        self.subscription = Subscription(
            stream, start=From.OLDEST, record_type=record_type, address=address, patience=patience
        )
        self._key = key
        self._rows: dict[K, V] = {}
        self._changes: list[tuple[K, V]] = []
        """Records of the last batch that the iteration has not returned, the next one last."""

    @property
    def rows(self) -> Mapping[K, V]:
        """The latest value by key, as far as records were read. It changes with the iteration."""
        return MappingProxyType(self._rows)

    async def __aenter__(self) -> StreamTable[K, V]:
        subscription = await self.subscription.__aenter__()
        try:
            # Records that come meanwhile are left to the iteration.
            async for batch in subscription.below(subscription.end):
                for _, _, value in batch:
                    self._rows[self._key(value)] = value
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the reading."""
        await self.subscription.close()

    def __aiter__(self) -> StreamTable[K, V]:
        return self

    async def __anext__(self) -> tuple[K, V]:
        while not self._changes:
            batch = await anext(self.subscription)
            self._changes = [(self._key(value), value) for _, _, value in batch][::-1]
        key, value = self._changes.pop()
        self._rows[key] = value
        return key, value
