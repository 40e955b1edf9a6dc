"""An injector process and the low watermark authority: what it reports, and what it hears (sections 4.5, 5.2, 7.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from millwheel.client.injector.publication import Published
from millwheel.client.shards import ShardedWatermarks, ShardPlaces
from millwheel.core.time import MIN_TIMESTAMP
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import PendingWork, ReportNotHeardError, WatermarkReport, injector_computation

__all__ = ["WatermarkSeed"]

_POLL_FIRST: Final = 0.005
_POLL_LAST: Final = 0.25


class WatermarkSeed:
    """Announces the process, reports for it, and follows the watermarks that it needs."""

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
        """``on_superseded``, ``on_lost``: called with what ended the process, or the hearing of watermarks.
        ``pending_work``: what is not ACKed, told when the authority asks."""
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
        self._heard = asyncio.Event()
        self._watched: frozenset[str] = frozenset()
        self._watcher: asyncio.Task[None] | None = None
        self._last: Published | None = None
        self._reported = 0
        """The number of the report of it."""

    @property
    def together(self) -> int:
        """What is broadcast for all processes of this injector, in microseconds."""
        return self._values.get(self.computation, MIN_TIMESTAMP)

    async def open(self, patience: float) -> int:
        """Announce the process (G4); where it may start: its own last value, or that of all processes if it is larger.

        AcceptRefusedError: the name is a newer process's. Other RequestErrors: not within ``patience`` seconds.
        """
        await self._client.__aenter__()
        own = await self._client.accept(self.computation, self._process, self._sequencer, patience)
        self.follow(())
        async with asyncio.timeout(patience):
            await self._heard.wait()
        return max(own, self.together)

    async def close(self) -> None:
        """Report and hear nothing more."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self._client.close()

    def follow(self, consumers: Iterable[str]) -> None:
        """Hear the watermarks of ``consumers``, beside the injector's own."""
        wanted = frozenset((*consumers, self.computation))
        if wanted == self._watched:
            return
        self._watched = wanted
        if self._watcher is not None:
            self._watcher.cancel()
        # Consumers come and go for as long as the stream lives.
        self._client.keep(wanted)
        self._watcher = asyncio.create_task(self._watch(wanted), name="watermarks")

    async def _watch(self, computations: frozenset[str]) -> None:
        try:
            async for news in self._client.watch(computations):
                values = {name: update.watermark for name, update in news.items()}
                self._values.update(values)
                self._heard.set()
                self._on_watermarks(values)
        except RequestError as error:
            self._on_lost(f"the watermarks of {', '.join(sorted(computations))} are not to be had: {error}")
            self._heard.set()

    def report(self, published: Published) -> None:
        """Report, soon, unless that is what was reported last."""
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
        """Report, and wait until the authority has it in its journal: from then on no restart forgets it.

        Returns what the process stands at there, which no broadcast passes while it takes part. TimeoutError after
        ``patience`` seconds; RequestError: the authority refuses.
        """
        self.report(published)
        number, delay = self._reported, _POLL_FIRST
        async with asyncio.timeout(patience):
            while True:
                # Accepting again changes nothing, and is answered from the journal. Whether the report has come is
                # asked with it: whoever was asked before may have lost the shard since, to one that never heard it.
                with suppress(ReportNotHeardError):
                    return await self._client.accept(
                        self.computation, self._process, self._sequencer, patience, report_number=number
                    )
                await asyncio.sleep(delay)
                delay = min(delay * 2, _POLL_LAST)

    def _refused(self, report: WatermarkReport) -> None:
        self._on_superseded(f"the low watermark authority refused sequencer {report.sequencer}")
