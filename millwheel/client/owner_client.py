"""Calls to the owners of intervals: a master says where they are, and after a failure it is asked again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from types import TracebackType
from typing import Self, TypeVar

import grpc

from millwheel.client.control import ControlClient
from millwheel.rpc.channel import PASSING, open_channel, retrying
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["OwnerClient", "with_successor"]

Answer = TypeVar("Answer")


class OwnerClient(ABC):
    """What reads from owners. Use it with ``async with``."""

    def __init__(self, address: str, patience: float, passing: Collection[FailureCode] = PASSING) -> None:
        """
        Args:
            address: A master's address, as host or host:port; several with commas between them.
            patience: Seconds to look for an owner that cannot be reached.
            passing: The failures after which it is looked for again.
        """
        self._control = ControlClient(address)
        self._patience = patience
        self._passing = passing
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        """Find what is read."""
        try:
            await self.retried(self._find)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._close_channels()
        await self._control.close()

    async def retried(self, attempt: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of an attempt. It is repeated after a failure that may pass."""
        return await retrying(attempt, patience=self._patience, passing=self._passing)

    @abstractmethod
    async def _find(self) -> None:
        """Read from a master where the owners are."""

    def _channel_to(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = open_channel(address)
        return self._channels[address]

    async def _close_channels(self) -> None:
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.close(None)


def with_successor(error: RequestError) -> RequestError:
    """The error of an owner that has a successor, as one after which the owner is looked for again."""
    return RequestError(FailureCode.UNAVAILABLE, error.message, error.remedy, reason=error.reason)
