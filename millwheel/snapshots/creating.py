"""Takes a snapshot of a running topology (docs/decisions/0034-snapshots.md).

1. Pin: the owners keep the truncation points of their journals. The heads are read.
2. Copy the state rows. Each comes from a commit before the cut.
3. Take the cut (``cut.py``).
4. Copy the base parts, and the entries up to the cut. A state that changed after step 1 is in one of them.

Invariant: the rows and the entries together are the states at the cut. A row that was copied too early to have a change
belongs to a key that an entry above the truncation point has whole. Only a truncation point that moved after step 1
could break it, so that is compared. The pins only make it unlikely.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from millwheel.master.replica import MasterReplica
from millwheel.master.topology_plans import refuse_unknown_topology
from millwheel.model.backoff import Backoff
from millwheel.model.catalog import ACTIVE_STATES, Catalog, OwnedInterval, incarnations_of, outputs_of
from millwheel.model.catalog_keys import CLUSTER_SETTINGS, SEQUENCER, topology_key
from millwheel.model.formats import OLDEST_FORMAT
from millwheel.model.incarnation import IncarnationId
from millwheel.model.stream_names import dead_letter_stream
from millwheel.model.topology_index import codes_of
from millwheel.model.wording import state_name
from millwheel.rpc.clock import wall_now
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.snapshots.chunks import ChunkWriter
from millwheel.snapshots.claims import ClaimKind, claim
from millwheel.snapshots.copying import copy_journal, copy_rows
from millwheel.snapshots.cut import Cut, CutFailedError, take_cut
from millwheel.snapshots.location import MANIFEST, SnapshotFolder
from millwheel.snapshots.manifest import SNAPSHOT_FORMAT, encode_manifest, read_manifest, reusable_chunks
from millwheel.snapshots.owners import MixedOwners, WorkerOwners
from millwheel.store.contract import CorruptValueError, JournalHead, JournalMissingError

__all__ = ["MAX_ATTEMPTS", "create_snapshot"]

MAX_ATTEMPTS: Final = 10
"""Attempts to copy everything, in about half a minute. One fails if an interval changes its owner meanwhile. It fails
at once if an interval still needs the journals of its parents, as for some seconds after a split."""
_STATES: Final = (catalog.TOPOLOGY_STATE_RUNNING, catalog.TOPOLOGY_STATE_PAUSED)
_MAX_CUTS: Final = 6
"""Attempts to take the cut within one of these."""
_BACKOFF: Final = Backoff(0.2, 5.0)
"""Seconds until the next attempt."""


async def create_snapshot(
    replica: MasterReplica, version: str, folder: SnapshotFolder, request: wire.CreateSnapshotRequest
) -> wire.CreateSnapshotResponse:
    """Take a snapshot, and return its manifest. Its name is in the request, and ``folder`` is its folder.

    A request that has taken the snapshot before has its manifest again.

    Raises:
        RequestError: The topology has no snapshot, or the folder cannot be used.
    """
    term = await replica.term()
    if (taken := await _taken(folder, request)) is not None:
        return taken
    _refuse_unfit(term.catalog, request.topology)
    async with claim(folder.location, ClaimKind.WRITING) as held:
        writer = ChunkWriter(folder.location, () if request.full else await reusable_chunks(folder.location))
        manifest, answer = await _attempts(replica, term.catalog, version, writer, request)
        manifest.written_bytes = writer.written_bytes
        content = await asyncio.to_thread(encode_manifest, manifest)
        held.check()
        # Another topology's snapshot, or that of a deposed master, may have had this name meanwhile. What is complete
        # after this look is replaced, so nothing comes between it and the write.
        if (taken := await _taken(folder, request)) is not None:
            return taken
        await folder.write(MANIFEST, content)
    answer.manifest.CopyFrom(manifest)
    return answer


async def _taken(folder: SnapshotFolder, request: wire.CreateSnapshotRequest) -> wire.CreateSnapshotResponse | None:
    """The answer of the same request before. None: nothing has the name. RequestError: another snapshot has it."""
    if not await folder.exists():
        return None
    known = await read_manifest(folder)
    same = (known.request_id, known.topology.spec.name) == (request.request_id, request.topology)
    if request.request_id and same:
        return wire.CreateSnapshotResponse(manifest=known)
    raise RequestError(
        FailureCode.ALREADY_EXISTS, f"{folder.where}: it exists already", "give another --name", reason="NAME_TAKEN"
    )


async def _attempts(
    replica: MasterReplica, known: Catalog, version: str, writer: ChunkWriter, request: wire.CreateSnapshotRequest
) -> tuple[wire.SnapshotManifest, wire.CreateSnapshotResponse]:
    """Copy everything, until an attempt succeeds. Returns the manifest."""
    failures = 0
    while True:
        try:
            return await _Attempt(replica, known, version, writer, request).run(failures + 1)
        except (CutFailedError, JournalMissingError, CorruptValueError) as error:
            failures += 1
            if failures >= MAX_ATTEMPTS:
                raise RequestError(
                    FailureCode.ABORTED,
                    f"no snapshot of {request.topology!r} after {failures} attempts: {error}",
                    "try again when its intervals have owners that stay",
                    reason="SNAPSHOT_FAILED",
                ) from error
            await asyncio.sleep(_BACKOFF.delay(failures, random.random()))


class _Attempt:
    """One attempt. If it fails, it leaves chunks that no manifest names."""

    def __init__(
        self,
        replica: MasterReplica,
        known: Catalog,
        version: str,
        writer: ChunkWriter,
        request: wire.CreateSnapshotRequest,
    ) -> None:
        self._replica = replica
        self._store = replica.store
        self._known = known
        self._topology = request.topology
        self._writer = writer
        self._record = _refuse_unfit(known, request.topology)
        self._logs = _logs_of(known, self._record.spec)
        self._manifest = wire.SnapshotManifest(
            format=SNAPSHOT_FORMAT,
            name=request.name,
            request_id=request.request_id,
            millwheel_version=version,
            cluster_format=max(known.format, OLDEST_FORMAT),  # the cut may raise it
            topology=self._record,
            logs=self._logs,
        )

    async def run(self, attempt: int) -> tuple[wire.SnapshotManifest, wire.CreateSnapshotResponse]:
        """Copy everything."""
        intervals = self._intervals()
        self._note_maps()
        owned = [one.interval for one in intervals if one.interval.HasField("owner")]
        workers = WorkerOwners(self._replica.observer.channel, owned)
        pins = await workers.pin()
        keeping = asyncio.create_task(workers.keep_pinned())
        try:
            if missing := [journal for journal in workers.sequencers if journal not in pins or not pins[journal].held]:
                raise CutFailedError(f"the owner of journal {missing[0]} does not answer")
            before = {one.interval.journal: await self._store.read_head(one.interval.journal) for one in intervals}
            resting = {journal: head for journal, head in before.items() if journal not in workers.sequencers}
            owners = MixedOwners(workers, self._store, resting)
            for number, incarnation in enumerate(self._incarnations(), 1):
                path = f"rows-{number}"
                self._manifest.rows.append(await copy_rows(self._store, incarnation, self._writer, path))
            cut = await self._cut(owners)
            await self._copy_journals(intervals, before, cut)
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping
            await workers.unpin()
        await self._copy_packages()
        return self._manifest, wire.CreateSnapshotResponse(stall_us=int(cut.stall_seconds * 1e6), attempts=attempt)

    def _incarnations(self) -> list[IncarnationId]:
        return [*incarnations_of(self._record), *(log.incarnation for log in self._logs)]

    def _intervals(self) -> list[OwnedInterval]:
        """All intervals of the topology and of its logs.

        Raises:
            CutFailedError: One has no owner now, or still needs the journals that it was split or merged from.
        """
        found: list[OwnedInterval] = []
        for incarnation in self._incarnations():
            for interval in self._known.maps.get(incarnation, ()):
                if not interval.HasField("owner") and self._record.state in ACTIVE_STATES:
                    raise CutFailedError(f"the interval of journal {interval.journal} has no owner")
                if interval.parents:
                    raise CutFailedError(f"the interval of journal {interval.journal} was just split or merged")
                found.append(OwnedInterval(incarnation, interval))
        return found

    def _note_maps(self) -> None:
        for incarnation in self._incarnations():
            interval_map = self._known.maps[incarnation]
            computation, topology = interval_map.origin
            noted = self._manifest.maps.add(incarnation=incarnation)
            noted.map.computation, noted.map.topology = computation, topology
            for interval in interval_map:
                noted.map.intervals.add(keys=interval.keys, journal=interval.journal)

    async def _cut(self, owners: MixedOwners) -> Cut:
        """Take the cut. Everything that the catalog says of the topology holds at the cut, too."""
        for query, batch in sorted(self._known.batches.items()):
            if query not in self._known.retired_queries:
                self._manifest.batches.add(query=query, committed_batch=batch)
        failures = 0
        while True:
            try:
                cut = await take_cut(owners, self._store)
                break
            except CutFailedError:
                failures += 1
                if failures >= _MAX_CUTS:
                    raise
                await asyncio.sleep(_BACKOFF.delay(failures, random.random()))
        self._manifest.taken_at_us = wall_now()
        drawn = await self._replica.coordinator.get(SEQUENCER)
        self._manifest.drawn = 0 if drawn is None else int(drawn.value)
        # Owners write forms of a newer format as soon as it has risen. It never falls, so it allows all that is copied.
        settings = await self._replica.coordinator.get(CLUSTER_SETTINGS)
        if settings is not None:
            number = catalog.ClusterSettingsRecord.FromString(settings.value).format
            self._manifest.cluster_format = max(number, self._manifest.cluster_format)
        # An owner may have seen an update that this master's catalog does not show yet. Then what it has produced since
        # is for other consumers. So the record is read, after the cut.
        stored = await self._replica.coordinator.get(topology_key(self._topology))
        present = None if stored is None else catalog.TopologyRecord.FromString(stored.value)
        if present != self._record or self._logs != _logs_of(self._known, self._record.spec):
            raise CutFailedError(f"topology {self._topology!r} was changed meanwhile")
        return cut

    async def _copy_journals(
        self, intervals: Sequence[OwnedInterval], before: dict[str, JournalHead], cut: Cut
    ) -> None:
        for number, one in enumerate(intervals, 1):
            journal = one.interval.journal
            head = cut.heads[journal]
            if head.truncation_point != before[journal].truncation_point:
                raise CutFailedError(f"journal {journal} was truncated while its states were read")
            copied = await copy_journal(
                self._store, journal, head, cut.commits[journal], self._writer, f"journal-{number}"
            )
            copied.incarnation = one.incarnation
            self._manifest.journals.append(copied)

    async def _copy_packages(self) -> None:
        packages = await self._replica.packages()
        spec = self._record.spec
        for digest in sorted({code.digest for code in codes_of(spec)}):
            content = b"".join([chunk async for chunk in packages.get(digest)])
            self._manifest.packages.append(await self._writer.write(f"package-{digest}", content))


def _logs_of(known: Catalog, spec: specs.TopologySpec) -> list[catalog.StreamLogRecord]:
    """The logs of the topology's own streams, by name."""
    streams = {stream.name for stream in spec.streams if not stream.external}
    streams.update(output for computation in spec.computations for output in outputs_of(computation))
    streams.add(dead_letter_stream(spec.name))
    return [known.logs[stream] for stream in sorted(streams & known.logs.keys())]


def _refuse_unfit(known: Catalog, topology: str) -> catalog.TopologyRecord:
    """The record of a topology that can have a snapshot. RequestError for any other one."""
    record = known.topologies.get(topology)
    if record is None:
        refuse_unknown_topology(topology, known)
    why = ""
    if record.state not in _STATES:
        why = f"it is {state_name(record.state)}"
    elif record.removed or record.switching:
        why = "an update of it is not complete"
    elif external := [stream.name for stream in record.spec.streams if stream.external]:
        why = f"it reads stream {external[0]!r} of another topology"
    elif weak := [one.name for one in record.spec.computations if not one.strong_productions]:
        why = f"computation {weak[0]!r} has weak productions, and their ids belong to this life of the topology"
    if why:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"there is no snapshot of topology {topology!r}: {why}",
            "docs/snapshots.md says which topologies have snapshots",
            reason="NO_SNAPSHOT",
        )
    return record
