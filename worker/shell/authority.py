"""The worker's client for the low watermark authority: reports, acceptances and broadcasts in the worker's types."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing

from millwheel.client.shards import OnePlace, ShardedWatermarks, ShardPlaces
from millwheel.client.watermark_streams import PendingOf, nothing_reported
from millwheel.model.keys import KeyInterval
from millwheel.rpc.channel import PASSING
from millwheel.rpc.failures import RequestError
from millwheel.rpc.watermarks import INJECTOR_PREFIX, AcceptRefusedError, WatermarkReport, is_injector
from millwheel.store.contract import SequencerRefusedError
from millwheel.worker.messages import Report

__all__ = ["AuthorityLink"]

log = logging.getLogger("millwheel.worker")


class AuthorityLink:
    """The worker's connection to the authority, over gRPC."""

    def __init__(self, places: ShardPlaces | str) -> None:
        """``places``: the addresses of the shards, or of the one server with all shards."""
        places = OnePlace(places) if isinstance(places, str) else places
        self._client = ShardedWatermarks(
            places, on_refused=self._refused, pending_of=lambda name: self.pending_of(name)
        )
        self.on_refused: Callable[[str, KeyInterval, int], None] = lambda computation, keys, sequencer: None
        """Called with a computation, keys and a sequencer whose report was refused: another owner has the keys."""
        self.pending_of: PendingOf = nothing_reported
        """The pending work of a computation's intervals (7.2)."""

    async def start(self) -> None:
        """Start sending reports."""
        await self._client.__aenter__()

    async def close(self) -> None:
        """Stop sending."""
        await self._client.close()

    def forget(self, computation: str, keys: KeyInterval) -> None:
        """Report nothing more for a released interval."""
        self._client.forget(computation, keys)

    def _refused(self, report: WatermarkReport) -> None:
        if isinstance(report.member, KeyInterval):
            self.on_refused(report.computation, report.member, report.sequencer)

    async def accept(self, computation: str, keys: KeyInterval, sequencer: int) -> int:
        """Let the authority accept a sequencer (G4). Waits while the authority is unreachable.

        Raises:
            SequencerRefusedError: A larger sequencer owns the keys, or the computation was removed.
        """
        while True:
            try:
                return await self._client.accept(computation, keys, sequencer)
            except AcceptRefusedError as error:
                raise SequencerRefusedError(computation, sequencer, 0) from error
            except RequestError as error:
                if error.code not in PASSING:
                    raise
                log.warning("%s %s waits for the authority: %s", computation, keys, error)

    def report(self, report: Report) -> None:
        """Report an interval's watermark."""
        self._client.report(
            WatermarkReport(
                report.computation,
                report.keys,
                report.sequencer,
                report.output,
                report.input,
                report.hold,
                report.subject,
            )
        )

    async def watch(
        self, computations: Iterable[str]
    ) -> AsyncIterator[Mapping[str, tuple[int, Sequence[tuple[KeyInterval | str, int]]]]]:
        """Broadcast values. Injector processes have the same names as in their deliveries."""
        async with aclosing(self._client.watch(computations)) as updates:
            async for update in updates:
                yield {
                    name: (value.watermark, [_origin(name, member, number) for member, number in value.sequencers])
                    for name, value in update.items()
                }


def _origin(computation: str, member: KeyInterval | str, sequencer: int) -> tuple[KeyInterval | str, int]:
    if isinstance(member, str) and is_injector(computation):
        return f"{INJECTOR_PREFIX}{computation.removeprefix(INJECTOR_PREFIX)}/{member}", sequencer
    return member, sequencer
