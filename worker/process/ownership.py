"""Which of the assigned intervals run here: those lost, given up, quarantined or not to be built do not (6.2, 7.1)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from millwheel.model.catalog import Catalog, OwnedInterval, code_of
from millwheel.model.incarnation import IncarnationId
from millwheel.sdk.error_texts import error_message
from millwheel.worker.process.hook_reports import HookReports
from millwheel.worker.process.host import CoreHost, HostPeers
from millwheel.worker.process.hosts import Hosted, Hosts, Quarantined
from millwheel.worker.process.internal_errors import RESTART_BACKOFF, InternalErrors
from millwheel.worker.process.programs import Programs
from millwheel.worker.process.refused_batches import MOVE_SECONDS
from millwheel.worker.process.tallies import ComputationName
from millwheel.worker.process.tasks import BackgroundTasks

__all__ = ["Absent", "Ownership"]

log = logging.getLogger("millwheel.worker")

OwnerId = tuple[str, int]
"""One owner of a journal: (journal, sequencer)."""

_STAYS_DOWN: Final = "too many errors in succession: it stays down until this worker restarts"


class Absent(NamedTuple):
    """An interval that is assigned to this worker and cannot run here: ``why``."""

    incarnation: IncarnationId
    why: str


class Ownership:
    """Decides which hosts there are."""

    def __init__(
        self,
        hosts: Hosts,
        catalog: Catalog,
        programs: Programs,
        hooks: HookReports,
        background: BackgroundTasks,
        renew: Callable[[], None],
        peers: Callable[[Callable[[CoreHost, str], None]], HostPeers],
    ) -> None:
        """
        Args:
            hosts: Starts and ends hosts.
            catalog: What the coordinator says.
            programs: The loaded code.
            hooks: Receives the hosts' hooks.
            background: Runs the ends of hosts.
            renew: Registers this worker again, so that it gets fresh sequencers.
            peers: Creates what hosts need besides the store, given what is called with a host that is lost.
        """
        self.hosts = hosts
        self._renew = renew
        self.quarantined: dict[OwnerId, Quarantined] = {}
        """The intervals among those given up that have a damaged stored value."""
        self._given_up: dict[OwnerId, str] = {}
        """The reason. Under that sequencer the interval is not opened again."""
        self._unbuilt: dict[str, str] = {}
        """Why an interval cannot be run, by journal."""
        self._unopened: list[OwnedInterval] = []
        """The intervals that were assigned to this worker when it last followed the assignments, and do not run."""
        self._errors = InternalErrors()
        self._catalog = catalog
        self._programs = programs
        self._hooks = hooks
        self._background = background
        self.peers = peers(self.lost)

    # Following the assignments.

    def release(self, owned: Sequence[OwnedInterval]) -> list[asyncio.Future[None]]:
        """Stop what is not assigned to this worker any more. Returns what must be awaited."""
        assigned = {one.interval.journal: one for one in owned}
        gone = [
            journal
            for journal, hosted in self.hosts.hosted.items()
            if journal not in assigned
            or (assigned[journal].interval.sequencer != hosted.sequencer and not self._awaits_code(assigned[journal]))
        ]
        return [asyncio.ensure_future(self.hosts.stop(journal)) for journal in gone]

    def start(self, owned: Sequence[OwnedInterval]) -> tuple[list[Hosted], bool]:
        """Run what is assigned to this worker and may be opened. Returns the new hosts, and whether all were built."""
        assigned = {(one.interval.journal, one.interval.sequencer) for one in owned}
        journals = {journal for journal, _ in assigned}
        self._given_up = {place: why for place, why in self._given_up.items() if place in assigned}
        self.quarantined = {place: one for place, one in self.quarantined.items() if place in self._given_up}
        self._unbuilt = {journal: why for journal, why in self._unbuilt.items() if journal in journals}
        started: list[Hosted] = []
        complete = True
        for one in owned:
            journal = one.interval.journal
            if journal in self.hosts.hosted or (journal, one.interval.sequencer) in self._given_up:
                continue
            try:
                hosted = self.hosts.start(one, self.peers, self._hooks)
            except Exception as error:
                # Other intervals are not delayed.
                self._not_built(journal, f"it cannot be built: {error_message(error)}")
                complete = False
                continue
            self._unbuilt.pop(journal, None)
            if hosted is not None:
                started.append(hosted)
        self._unopened = [one for one in owned if one.interval.journal not in self.hosts.hosted]
        return started, complete

    def _not_built(self, journal: str, why: str) -> None:
        if self._unbuilt.get(journal) != why:
            log.exception("interval %s: %s", journal, why)
        self._unbuilt[journal] = why

    def _awaits_code(self, owned: OwnedInterval) -> bool:
        """Whether the code that the interval will run next is still being loaded. Until then the old code continues."""
        found = self._catalog.computation(owned.incarnation)
        return found is not None and self._programs.is_loading(code_of(found[0].spec, found[1]))

    def absence(self, owned: OwnedInterval) -> str:
        """Why an interval that is assigned to this worker does not run here."""
        given_up = self._given_up.get((owned.interval.journal, owned.interval.sequencer), "it is being opened")
        return self._obstacle(owned) or given_up

    def absent(self) -> dict[OwnerId, Absent]:
        """The assigned intervals that cannot run here until something is mended."""
        waiting = [(one, self._obstacle(one)) for one in self._unopened]
        return {
            (one.interval.journal, one.interval.sequencer): Absent(one.incarnation, why) for one, why in waiting if why
        }

    def _obstacle(self, owned: OwnedInterval) -> str:
        """Why an interval's code cannot be loaded, or the interval cannot be built. Empty if neither is known."""
        found = self._catalog.computation(owned.incarnation)
        failure = self._programs.failure(code_of(found[0].spec, found[1])) if found is not None else ""
        return failure or self._unbuilt.get(owned.interval.journal, "")

    def quarantined_places(self) -> list[ComputationName]:
        """The topology and computation of each quarantined interval, for metrics."""
        return [(one.topology, one.computation) for one in list(self.quarantined.values())]

    # The end of ownership.

    async def prepare_releases(self, seconds: float) -> None:
        """For up to ``seconds``, reduce what the next owners of the intervals have to read."""
        hosts = [one.host for one in self.hosts.hosted.values() if not one.built.log_of]
        if not hosts or seconds <= 0:
            return
        log.info("%d intervals are made ready for other workers", len(hosts))
        tasks = [asyncio.ensure_future(host.prepare_release()) for host in hosts]
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
        if late:
            log.warning("%d intervals were not ready in time; their next owners have more to read", len(late))

    async def drop_all(self) -> None:
        """Release every interval: the lease has ended, or this worker ends."""
        hosted = self.hosts.hosted
        # The catalog may still assign them to this worker. Invariant: a sequencer opens a journal only once.
        self._given_up.update(((journal, one.sequencer), "it was given up") for journal, one in hosted.items())
        # Stop all at once. Otherwise slow hooks of one interval would let the others continue to serve.
        await asyncio.gather(*(self.hosts.stop(journal) for journal in list(hosted)))

    def lost(self, host: CoreHost, reason: str) -> None:
        """The core has lost its interval to a successor, or this worker must get a fresh sequencer for it."""
        hosted = self.hosts.hosted.get(host.journal)
        moves = asyncio.get_running_loop().time() - host.handed_over_at < MOVE_SECONDS
        if moves and not (host.fault or host.damage or host.not_installed):
            log.info("interval %s: handed over to its next owner: %s", host.journal, reason)
        else:
            log.log(logging.ERROR if host.fault else logging.WARNING, "interval %s: lost: %s", host.journal, reason)
        if hosted is None or hosted.host is not host:
            return
        self._given_up[host.journal, hosted.sequencer] = reason
        if host.damage:
            self._quarantine(hosted, host.damage)
        self.hosts.remove(host.journal)
        self._background.run(host.close())
        if host.not_installed or (host.fault and not self._restart_later(host.journal)):
            self._unbuilt[host.journal] = host.not_installed or f"{reason}; {_STAYS_DOWN}"
            self._unopened.append(hosted.owned)

    def _quarantine(self, hosted: Hosted, why: str) -> None:
        """Stop the interval: it is not served, and its stored data is not overwritten, until it is assigned again."""
        incarnation, journal = hosted.owned.incarnation, hosted.host.journal
        self.quarantined[journal, hosted.sequencer] = Quarantined(incarnation, *self.hosts.place_of(incarnation), why)
        log.error(
            "interval %s is quarantined: restore what is damaged from a snapshot or a replica, then have it opened "
            "again by `millwheel interval move %s` or by a restart of this worker",
            journal,
            journal,
        )

    def _restart_later(self, journal: str) -> bool:
        """Only a takeover under a fresh sequencer starts the interval again. False: there have been too many."""
        loop = asyncio.get_running_loop()
        errors = self._errors.fault(journal, loop.time())
        if errors is None:
            log.error("interval %s: %s", journal, _STAYS_DOWN)
            return False
        delay = RESTART_BACKOFF.delay(errors, random.random())
        log.warning("interval %s: is opened again in %.1f s", journal, delay)
        loop.call_later(delay, self._renew)
        return True
