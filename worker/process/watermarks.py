"""A worker's low watermarks: its reports to the authority, and the broadcast values of all groups (section 7.2)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Final, Protocol

from millwheel.client.authorities import ShardAddresses
from millwheel.client.shards import ShardedWatermarks
from millwheel.client.watermark_streams import PendingOf, ReportStream
from millwheel.model.backoff import Backoff
from millwheel.model.keys import KeyInterval
from millwheel.rpc.channel import PASSING
from millwheel.rpc.failures import RequestError
from millwheel.rpc.watermarks import AcceptRefusedError, WatermarkReport
from millwheel.store.contract import SequencerRefusedError
from millwheel.worker.messages import GroupWatermarks, Report
from millwheel.worker.process.host import RunningInterval

__all__ = ["Authority", "AuthorityLink", "ConnectAuthority", "GroupWatch", "OnRefused"]

log = logging.getLogger("millwheel.worker")

_BACKOFF: Final = Backoff(2.0, 2.0)
"""Seconds until an ended watch begins again."""


OnRefused = Callable[[str, KeyInterval, int], None]
"""Called with a group, keys and a sequencer whose report was refused: another owner has the keys (G4)."""


class Authority(Protocol):
    """The low watermark authority's interface for a worker (7.2)."""

    def forget(self, group: str, keys: KeyInterval) -> None:
        """Report nothing more for an interval."""

    async def accept(self, group: str, keys: KeyInterval, sequencer: int) -> int:
        """Let the authority accept a sequencer.

        Returns:
            The watermark last broadcast for the keys, in microseconds.

        Raises:
            SequencerRefusedError: A larger sequencer is known.
        """

    def report(self, report: Report) -> None:
        """Report an interval's watermark. Only the newest report of an interval counts."""

    def watch(self, groups: Iterable[str]) -> AsyncIterator[GroupWatermarks]:
        """Broadcast values with new sequencers: first all of them, then changes."""

    async def close(self) -> None:
        """Stop reports."""


ConnectAuthority = Callable[[OnRefused, PendingOf], Authority]
"""Connects a worker to the authority, with the functions that the authority's responses call."""


class AuthorityLink:
    """The worker's connection to the authority, over gRPC."""

    def __init__(self, addresses: ShardAddresses, on_refused: OnRefused, pending_of: PendingOf) -> None:
        """``addresses``: the addresses of the shards. ``pending_of``: the pending work of a group's intervals."""
        self._client = ShardedWatermarks(addresses, on_refused=self._refused, pending_of=pending_of)
        self._on_refused = on_refused
        self._reports: dict[str, ReportStream] = {}
        """What carries the reports, by group. :meth:`forget` ends an entry, :meth:`report` may renew it."""

    async def close(self) -> None:
        """Stop sending."""
        await self._client.close()

    def forget(self, group: str, keys: KeyInterval) -> None:
        """Report nothing more for a released interval."""
        self._reports.pop(group, None)
        self._client.forget(group, keys)

    def _refused(self, report: WatermarkReport) -> None:
        if isinstance(report.member, KeyInterval):
            self._on_refused(report.group, report.member, report.sequencer)

    async def accept(self, group: str, keys: KeyInterval, sequencer: int) -> int:
        """Let the authority accept a sequencer (G4). Waits while the authority is unreachable.

        Raises:
            SequencerRefusedError: A larger sequencer owns the keys, or the group was removed.
        """
        while True:
            try:
                return await self._client.accept(group, keys, sequencer)
            except AcceptRefusedError as error:
                raise SequencerRefusedError(group, sequencer, 0) from error
            except RequestError as error:
                if error.code not in PASSING:
                    raise
                log.warning("%s %s waits for the authority: %s", group, keys, error)

    def report(self, report: Report) -> None:
        """Report an interval's watermark."""
        group = report.incarnation
        reports = self._reports.get(group)
        if reports is None:
            reports = self._reports[group] = self._client.client_for(group).reports
        reports.report(
            WatermarkReport(
                group,
                report.keys,
                report.sequencer,
                report.output,
                report.input,
                report.hold,
                report.subject,
            )
        )

    async def watch(self, groups: Iterable[str]) -> AsyncIterator[GroupWatermarks]:
        """Broadcast values. Injector processes have the same names as in their deliveries."""
        async with aclosing(self._client.watch(groups)) as updates:
            async for update in updates:
                yield GroupWatermarks(
                    {name: value.watermark for name, value in update.items()},
                    {
                        name: [(f"{name}/{one}" if isinstance(one, str) else one, number) for one, number in members]
                        for name, (_, members) in update.items()
                        if members
                    },
                )


class LatestWatermarks:
    """Merges many updates into one. It serves receivers that join later."""

    def __init__(self) -> None:
        self._values: dict[str, int] = {}
        self._sequencers: dict[str, dict[KeyInterval | str, int]] = {}

    def add(self, update: GroupWatermarks) -> None:
        """Merge an update. Neither values nor sequencers go back."""
        for group, value in update.values.items():
            self._values[group] = max(value, self._values.get(group, value))
            known = self._sequencers.setdefault(group, {})
            for member, sequencer in update.sequencers.get(group, ()):
                known[member] = max(sequencer, known.get(member, sequencer))

    def keep(self, groups: Collection[str]) -> None:
        """Drop all groups except these."""
        for group in self._values.keys() - groups:
            del self._values[group], self._sequencers[group]

    def update(self) -> GroupWatermarks:
        """The merged update."""
        sequencers = {group: list(members.items()) for group, members in self._sequencers.items()}
        return GroupWatermarks(dict(self._values), sequencers)


class WatermarkReceiver(RunningInterval, Protocol):
    """An interval that runs in this process, and the groups whose watermarks it receives."""

    groups: frozenset[str]


class GroupWatch:
    """One watch for all groups of the intervals here. Each interval receives the updates about its own groups."""

    def __init__(
        self,
        watch: Callable[[Iterable[str]], AsyncIterator[GroupWatermarks]],
        hosted: Mapping[str, WatermarkReceiver],
    ) -> None:
        self._watch = watch
        self._hosted = hosted
        self._groups: frozenset[str] = frozenset()
        self._lives: dict[str, object] = {}
        self._latest = LatestWatermarks()
        self._task: asyncio.Task[None] | None = None

    def known(self, groups: frozenset[str]) -> GroupWatermarks:
        """All broadcasts of these groups so far, for a new host of theirs. Later ones name new sequencers only."""
        return _about(groups, self._latest.update())

    def follow(self, groups: frozenset[str], lives: Mapping[str, object] = MappingProxyType({})) -> None:
        """Watch exactly these groups from now on.

        ``lives``: for a group whose name may be used again, a value that identifies its life. Broadcasts of one life
        do not apply to the next one (G7). This holds even if this process has not seen the time between them.
        """
        before, self._lives = self._lives, {group: lives[group] for group in groups & lives.keys()}
        same = {group for group in groups if before.get(group) == self._lives.get(group)}
        if groups == self._groups and same == groups:
            return
        self._groups = groups
        self._latest.keep(same)
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._run(groups)) if groups else None

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, groups: frozenset[str]) -> None:
        while True:
            try:
                async with aclosing(self._watch(sorted(groups))) as updates:  # type: ignore[type-var]
                    async for update in updates:
                        self._latest.add(update)
                        self.publish(update)
            except Exception:
                log.exception("low watermarks cannot be followed; trying again")
            await asyncio.sleep(_BACKOFF.delay(1, random.random()))

    def publish(self, news: GroupWatermarks) -> None:
        """Bring broadcast values to the intervals here that have one of these groups."""
        for one in self._hosted.values():
            if not one.groups.isdisjoint(news.values):
                one.host.post(news if len(news.values) == 1 else _about(one.groups, news))


def _about(groups: frozenset[str], update: GroupWatermarks) -> GroupWatermarks:
    """What an update says of these groups."""
    return GroupWatermarks(
        {group: value for group, value in update.values.items() if group in groups},
        {group: members for group, members in update.sequencers.items() if group in groups},
    )
