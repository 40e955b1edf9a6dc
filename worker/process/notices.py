"""Brings changes of the catalog and broadcast watermarks to the hosts of this process (sections 4.5, 6.1.1, 7.2)."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from typing import Final

from millwheel.coordination.contract import Coordinator, CoordinatorError
from millwheel.model.backoff import jittered
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import SEQUENCER, injector_key
from millwheel.model.deliveries import Sender
from millwheel.model.incarnation import INJECTOR_PREFIX, injector_group, is_injector
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.worker.log import LogCore, RetentionChanged
from millwheel.worker.messages import CatalogChanged, SequenceChecked
from millwheel.worker.owner import OwnerPhase
from millwheel.worker.process.building import retention_of
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.hosts import Hosted, Hosts
from millwheel.worker.process.lineage import dead_computations, dead_journals
from millwheel.worker.process.tasks import BackgroundTasks
from millwheel.worker.process.watermarks import Authority, GroupWatch

__all__ = ["HostNotices"]

log = logging.getLogger("millwheel.worker")

SETTLED_AFTER_SECONDS: Final = 90.0
"""Maximum seconds after the opening of an interval until its state of journals retired meanwhile is dropped."""


class HostNotices:
    """What hosts receive without a request of their cores."""

    def __init__(
        self,
        hosts: Hosts,
        catalog: Catalog,
        coordinator: Coordinator,
        authority: Authority,
        background: BackgroundTasks,
    ) -> None:
        self.watch = GroupWatch(authority.watch, hosts.hosted)
        self._hosts = hosts
        self._catalog = catalog
        self._coordinator = coordinator
        self._background = background
        self._reported_retired: frozenset[str] = frozenset()
        self._posted: dict[CoreHost, CatalogChanged] = {}
        """What each host last received of the catalog."""
        self._revision = 0
        """The revision of the catalog that the hosts last received."""
        self._computations: frozenset[str] = frozenset()
        """The incarnations in the catalog when the hosts last received it."""

    def started(self, hosted: Hosted) -> None:
        """A host was started. ``notify`` then brings it the catalog and all broadcasts so far."""
        self.forget_dead_later(hosted)

    def notify(self) -> None:
        """The catalog has changed: bring each host what concerns it."""
        hosted = self._hosts.hosted.values()
        retired = frozenset(self._catalog.retired) - self._reported_retired
        self._reported_retired = frozenset(self._catalog.retired)
        gone, self._computations = self._computations - self._catalog.maps.keys(), frozenset(self._catalog.maps)
        if gone:
            # A removed sender never advances its ACK mark again, so its duplicate-check state is dropped here.
            self.forget_dead_later(*hosted)
        changes = self._changes(retired)
        followed = frozenset().union(*(changed.groups | changed.beside for _, changed in changes))
        # Invariant: what was broadcast of a group's former life is dropped before hosts receive what is known (G7).
        self.watch.follow(followed, self._catalog.injector_lives())
        posted, self._posted = self._posted, {}
        for one, changed in changes:
            # A late delivery may restore the state of a retired sender, so its end is repeated.
            if retired or changed.ended_injectors or changed.ended_queries or changed != posted.get(one.host):
                one.host.post(changed)
            self._posted[one.host] = changed
            self._follow(one, changed)
        self._notify_logs()
        self._revision = self._catalog.revision

    def _changes(self, retired: frozenset[str]) -> list[tuple[Hosted, CatalogChanged]]:
        """What the catalog says to each host. Most of it is computed once for all hosts with the same inputs.

        ``retired``: the journals that were retired since the last call.
        """
        hosted, builder = self._hosts.hosted.values(), self._hosts.builder
        ended, queries = self._catalog.retired_injectors(), frozenset(self._catalog.retired_queries)
        floors = self._catalog.injector_floors()
        by_inputs: dict[tuple[tuple[str, ...], tuple[str, ...]], CatalogChanged] = {}
        for inputs, feedback in {(one.built.inputs, one.built.feedback): None for one in hosted}:
            streams = (*inputs, *feedback)
            groups, slack = builder.groups(inputs), builder.slack(streams)
            mine = frozenset().union(*(ended.get(stream, frozenset()) for stream in streams))
            lives = {group: floors[group] for group in map(injector_group, streams) if group in floors}
            beside = frozenset(slack) - groups
            by_inputs[inputs, feedback] = CatalogChanged(groups, slack, retired, mine, queries, lives, beside)
        return [(one, self._for(one, by_inputs[one.built.inputs, one.built.feedback])) for one in hosted]

    def _follow(self, one: Hosted, changed: CatalogChanged) -> None:
        """From now on the host receives the broadcasts of ``changed``, and checks its senders again."""
        groups = changed.groups | changed.beside
        if not groups <= one.groups:
            # The watch may have broadcast values of new groups already: to other intervals here.
            one.host.post(self.watch.known(groups))
        one.groups = groups
        one.known_senders.clear()
        # Intervals have moved: refused batches are sent to the present owners of their keys.
        one.channel.refused.resend_now()

    def _notify_logs(self) -> None:
        """Bring the logs that run here the retention that the catalog has. A log that has it by now is left alone."""
        for one in self._hosts.hosted.values():
            core, record = one.built.core, self._catalog.logs.get(one.built.log_of)
            if record is not None and isinstance(core, LogCore):
                retention = retention_of(record)
                if retention != core.state.retention:
                    one.host.post(RetentionChanged(retention))

    def _for(self, one: Hosted, changed: CatalogChanged) -> CatalogChanged:
        """What the host receives. ``changed``: the part that all intervals with the same inputs receive."""
        changed, topology = self._with_kept(one, changed), self._catalog.topologies.get(one.topology)
        if one.built.beside:
            changed = replace(changed, beside=changed.beside | one.built.beside)
        drains = topology is not None and topology.state == catalog.TOPOLOGY_STATE_DRAINING
        return replace(changed, drains=True) if drains else changed

    def _with_kept(self, one: Hosted, changed: CatalogChanged) -> CatalogChanged:
        """With what says which ids are forgotten of groups that are no inputs (any more), though the interval has some.

        An update may have taken the stream from its inputs: the watermark of a living group still says it. An injected
        stream may be gone. Its next life begins above all sequencers drawn so far, so the former one is over.
        """
        kept = one.opaque_groups() - changed.groups - changed.beside
        injected = frozenset(filter(is_injector, kept))
        slack = self._hosts.builder.slack(group.removeprefix(INJECTOR_PREFIX) for group in injected)
        living = frozenset(slack) | (kept & self._catalog.maps.keys())
        gone = injected - living if SEQUENCER not in self._catalog.damaged else frozenset()
        if not living and not gone:
            return changed
        return replace(
            changed,
            slack={**(changed.slack or {}), **slack},
            lives={**changed.lives, **dict.fromkeys(gone, self._catalog.drawn + 1)},
            beside=changed.beside | living,
        )

    def knows(self, host: CoreHost, sender: Sender) -> bool:
        """Whether ``host`` has received a catalog at least as new as the sender's opening.

        A newer injector may be of a stream's new life. The interval would take its records for those of a former life.
        """
        if sender.keys is not None or not is_injector(sender.group):
            return True
        stream = sender.group.removeprefix(INJECTOR_PREFIX)
        process = sender.name.removeprefix(f"{sender.group}/")
        record = self._catalog.injectors.get((stream, process))
        if record is None or record.sequencer < sender.sequencer or host not in self._posted:
            return False
        return self._catalog.modified(injector_key(stream, process)) <= self._revision

    def forget_dead_later(self, *hosted: Hosted) -> None:
        """Drop duplicate-check state of senders that no longer exist, after some time."""
        for one in hosted:
            delay = jittered(SETTLED_AFTER_SECONDS, random.random())
            # Pass the names, not ``one``: the timer would keep a released interval in memory.
            place = (one.host.journal, one.sequencer)
            asyncio.get_running_loop().call_later(delay, self._forget_dead_now, *place)

    def _forget_dead_now(self, journal: str, sequencer: int) -> None:
        hosted = self._hosts.hosted.get(journal)
        if hosted is not None and hosted.sequencer == sequencer:
            self._background.run(self._forget_dead(hosted))

    async def _forget_dead(self, hosted: Hosted) -> None:
        """Drop an interval's duplicate-check state for senders' journals and computations that no longer exist.

        Intervals are notified when parents are retired. But a notification is lost if the previous owner received it
        without a commit, or if it arrives during opening. The removal of computations is not notified at all.
        """
        core, known = hosted.built.core, (self._coordinator, self._catalog)
        if core.phase in (OwnerPhase.OPENING, OwnerPhase.ACCEPTING):
            # It learns of senders when it has opened: from its journal, and from what was broadcast meanwhile. And it
            # takes the deliveries that came early when it serves. They may be of senders that have ended since.
            self.forget_dead_later(hosted)
            return
        dedup = core.state.dedup
        try:
            dead = await dead_journals(*known, dedup.journals())
            dead += await dead_computations(*known, dedup.computations())
        except CoordinatorError as error:
            log.info("journal %s: it is unknown which senders have ended: %s", hosted.host.journal, error)
            self.forget_dead_later(hosted)
            return
        for sender in dead:
            hosted.host.post(SequenceChecked(sender, False))
        if dead:
            # What has pending records stays, and is tried again.
            self.forget_dead_later(hosted)
        if not hosted.opaque_groups() <= hosted.groups:
            self.notify()  # the interval has recovered ids of further groups
