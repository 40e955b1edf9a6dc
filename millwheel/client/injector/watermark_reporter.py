"""Reports an injector process's watermark to the authority, and follows low watermarks (sections 4.5, 5.2, 7.2)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from millwheel.client.authorities import ShardPlaces
from millwheel.client.injector.messages import Published
from millwheel.client.shards import ShardedWatermarks
from millwheel.model.backoff import Backoff
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import PendingWork, ReportNotReceivedError, WatermarkReport, injector_computation

__all__ = ["WatermarkReporter"]

_POLL_BACKOFF: Final = Backoff(0.005, 0.25)


class WatermarkReporter:
    """Announces the process to the authority, reports its watermark, and follows the low watermarks that it needs."""

    def __init__(
        self,
        places: ShardPlaces,
        stream: str,
        process: str,
        sequencer: int,
        *,
        on_superseded: Callable[[str], None],
        on_lost: Callable[[str], None],
        on_watermarks: Callable[[Mapping[str, int]], None],
        pending_work: Callable[[], PendingWork],
    ) -> None:
        """Create a reporter.

        Args:
            places: Finds the shards of the authority.
            stream: The stream of the injector.
            process: The name of the process.
            sequencer: The sequencer of the process.
            on_superseded: Called with the reason when a newer process has this name.
            on_lost: Called with the reason when low watermarks cannot be followed any more.
            on_watermarks: Called with new low watermarks, by computation, in microseconds.
            pending_work: Returns the process's un-ACKed timestamps, when the authority requests them.
        """
        self.computation = injector_computation(stream)
        self._process = process
        self._sequencer = sequencer
        self._on_superseded = on_superseded
        self._on_lost = on_lost
        self._on_watermarks = on_watermarks
        self._client = ShardedWatermarks(
            places, on_refused=self._refused, pending_of=lambda _: {process: pending_work()}, refresh=1.0
        )
        self._values: dict[str, int] = {}
        self._received = asyncio.Event()
        self._watched: frozenset[str] = frozenset()
        self._watcher: asyncio.Task[None] | None = None
        self._last: Published | None = None
        self._reported = 0
        """The number of the report that carried ``_last``."""

    @property
    def together(self) -> int:
        """The broadcast low watermark of all processes of this injector, in microseconds."""
        return self._values.get(self.computation, MIN_TIMESTAMP)

    async def open(self, patience: float) -> int:
        """Announce the process (G4).

        Returns:
            The watermark to start from, in microseconds: the larger of this process's last value and the broadcast low
            watermark of all processes.

        Raises:
            AcceptRefusedError: A newer process has this name.
            RequestError: The authority refuses, or does not answer within ``patience`` seconds.
            TimeoutError: No low watermark arrives within ``patience`` seconds.
        """
        await self._client.__aenter__()
        own = await self._client.accept(self.computation, self._process, self._sequencer, patience)
        self.follow(())
        async with asyncio.timeout(patience):
            await self._received.wait()
        return max(own, self.together)

    async def close(self) -> None:
        """Stop reports and updates."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self._client.close()

    def follow(self, consumers: Iterable[str]) -> None:
        """Follow the low watermarks of ``consumers`` and of the injector itself."""
        wanted = frozenset((*consumers, self.computation))
        if wanted == self._watched:
            return
        self._watched = wanted
        if self._watcher is not None:
            self._watcher.cancel()
        # Consumers join and leave as long as the stream exists, so the client drops those that left.
        self._client.keep(wanted)
        self._watcher = asyncio.create_task(self._watch(wanted), name="watermarks")

    async def _watch(self, computations: frozenset[str]) -> None:
        try:
            async for news in self._client.watch(computations):
                values = {name: update.watermark for name, update in news.items()}
                self._values.update(values)
                self._received.set()
                self._on_watermarks(values)
        except RequestError as error:
            self._on_lost(f"the watermarks of {', '.join(sorted(computations))} are not to be had: {error}")
            self._received.set()

    def report(self, published: Published) -> None:
        """Queue a report, unless it equals the last one."""
        if published == self._last:
            return
        self._last = published
        self._reported = self._client.report(
            WatermarkReport(
                self.computation,
                self._process,
                self._sequencer,
                published.watermark,
                published.watermark,
                HoldKind.HOLD_KIND_UNSPECIFIED,
                "",
                published.idle,
            )
        )

    async def settle(self, published: Published, patience: float) -> int:
        """Report, and wait until the authority has journaled the report, so that it survives restarts.

        Returns:
            The process's watermark in the authority's journal, in microseconds. While the process is not idle, no
            broadcast low watermark passes this value.

        Raises:
            TimeoutError: The authority does not confirm within ``patience`` seconds.
            RequestError: The authority refuses.
        """
        self.report(published)
        number, polls = self._reported, 0
        async with asyncio.timeout(patience):
            while True:
                # A repeated announcement is idempotent and answered from the journal. It also checks that the report
                # has arrived: the shard may have moved since to an authority that never received the report.
                with suppress(ReportNotReceivedError):
                    return await self._client.accept(
                        self.computation, self._process, self._sequencer, patience, report_number=number
                    )
                polls += 1
                await asyncio.sleep(_POLL_BACKOFF.delay(polls, random.random()))

    def _refused(self, report: WatermarkReport) -> None:
        self._on_superseded(f"the low watermark authority refused sequencer {report.sequencer}")
