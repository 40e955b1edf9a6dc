"""Subscribes to the streams that Zeitgeist produces, while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from examples.zeitgeist.records import Anomaly, DelayModel, TrafficModel, WindowCount
from millwheel import MIN_TIMESTAMP
from millwheel.client.subscription import Subscription

__all__ = ["Found", "Watch"]


@dataclass
class Found:
    """The records received from the streams."""

    anomalies: list[Anomaly] = field(default_factory=list)
    windows: list[WindowCount] = field(default_factory=list)
    traffic_models: list[TrafficModel] = field(default_factory=list)
    delay_models: list[DelayModel] = field(default_factory=list)


class Watch:
    """Subscriptions to all of the streams, from their start to their end.

    Use it as ``async with``. The end of the block waits for the ends of the streams. A subscription that fails ends the
    block.
    """

    def __init__(self, address: str) -> None:
        self.found = Found()
        self.watermark: int = MIN_TIMESTAMP
        """The low watermark behind all computations, in microseconds. The anomalies are complete up to it."""
        self.ended_at = 0.0
        """When the last stream ended, by the monotonic clock."""
        self._address = address
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self._moved = asyncio.Event()

    async def __aenter__(self) -> Watch:
        found = self.found
        streams: list[tuple[str, Any, list[Any]]] = [
            ("anomalies", Anomaly, found.anomalies),
            ("windows", WindowCount, found.windows),
            ("traffic-models", TrafficModel, found.traffic_models),
            ("delay-models", DelayModel, found.delay_models),
        ]
        await self._group.__aenter__()
        for stream, kind, into in streams:
            self._tasks.append(self._group.create_task(self._follow(stream, kind, into)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for task in self._tasks:
                task.cancel()
        await self._group.__aexit__(kind, error, trace)

    async def ended(self, patience: float = 60.0) -> None:
        """Return when every stream has ended and all its records are here. TimeoutError after ``patience`` seconds."""
        _, pending = await asyncio.wait(self._tasks, timeout=patience)
        if pending:
            raise TimeoutError(f"{len(pending)} of the streams did not end within {patience:.0f} s of the source")

    async def until(self, done: Callable[[], bool]) -> None:
        """Return when ``done()`` is true. It is checked whenever the low watermark moves."""
        while not done():
            self._moved.clear()
            await self._moved.wait()

    async def _follow(self, stream: str, kind: Any, into: list[Any]) -> None:
        leading = stream == "anomalies"
        async with Subscription(
            stream,
            cursor="demo",
            record_type=kind,
            address=self._address,
            auto_ack=True,
            until_end=True,
            watermarks=leading,
        ) as subscription:
            async for batch in subscription:
                into.extend(batch.values)
                if leading:
                    self.watermark = batch.watermark
                    self._moved.set()
        self.ended_at = time.monotonic()
