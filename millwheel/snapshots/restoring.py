"""Makes a topology of a snapshot (docs/decisions/0034-snapshots.md).

Incarnation ids are never used twice, so all incarnations and journals get fresh ones. Commits, positions and ids stay.
First everything is written into the store under these ids, which no record of the coordinator names. Then one
transaction of the master makes the topology. A RestoreRecord names the ids until then, so the master drops what a
restore without an end has left (``millwheel/master/restores.py``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from millwheel.master.forks import refuse_fork
from millwheel.master.messages import AbandonRestore, BeginRestore, RestoreTopology
from millwheel.master.replica import MasterReplica
from millwheel.master.restores import repeated_restore
from millwheel.master.term import Term
from millwheel.master.topology_plans import name_taken, refuse_problems
from millwheel.master.validation import validate
from millwheel.model.catalog import LIVE_STATES, Catalog
from millwheel.model.formats import COLUMNS
from millwheel.model.incarnation import IncarnationId, name_of_incarnation, new_incarnation, new_journal
from millwheel.model.page_keys import row_owner
from millwheel.rpc.clock import wall_now
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.chunks import read_file
from millwheel.snapshots.files import RowItem, read_items
from millwheel.snapshots.forking import begin_lives, refuse_unnamed_queries, restored_lives, restored_record
from millwheel.snapshots.location import SnapshotFolder
from millwheel.snapshots.manifest import read_manifest
from millwheel.snapshots.renaming import RenamedJournal
from millwheel.store.contract import Append, JournalExistsError, PartId, StateRow, StateStore
from millwheel.store.repetition import RetriedCalls
from millwheel.store.sequencer_allocation import SequencerBlock, reserve_sequencers
from millwheel.worker.names import RestoredNames

__all__ = ["refuse_older_cluster", "restore_snapshot"]

_ROWS: Final = 200
_ROWS_BYTES: Final = 2 << 20
"""Rows of one write to the store."""
_FORMER: Final = 8
"""How many former ids of a computation or a log are known."""


async def restore_snapshot(
    replica: MasterReplica, folder: SnapshotFolder, paused: bool, request_id: str = "", name: str = ""
) -> catalog.TopologyRecord:
    """Make the topology of the snapshot. Returns its record.

    A ``request_id`` whose restore has made the topology before returns that topology. With a ``name`` other than that
    in the snapshot, it is a fork.

    Raises:
        RequestError: The snapshot is damaged, its code lacks a signature that the policy wants, or its topology or one
            of its streams exists in this cluster. Or there can be no such fork, or the cluster's format is too old.
    """
    manifest = await read_manifest(folder)
    original = manifest.topology.spec.name
    record = restored_record(manifest, name or original)
    spec = record.spec
    for code in (spec.code, *(one.code for one in spec.computations if one.HasField("code"))):
        replica.admit_code(code)
    term = await replica.term()
    if (done := repeated_restore(term.catalog, spec.name, request_id)) is not None:
        return done
    known = term.catalog
    # The transaction refuses these, too. But much would be written until then.
    taken = known.topologies.get(spec.name)
    if taken is not None and taken.state in LIVE_STATES:
        raise name_taken(taken)
    refuse_problems(spec.name, validate(spec, known))
    refuse_fork(known, record, renamed=spec.name != original)
    refuse_older_cluster(known, manifest)
    fresh = _FreshNames(manifest, spec.name, await reserve_sequencers(replica.store, max(manifest.drawn, known.drawn)))
    try:
        await term.ask(BeginRestore(fresh.sequencer, _restore_record(spec.name, fresh)))
        ends = await _write(folder, manifest, fresh, _StoreWriter(replica.store, fresh, term))
        packages = await replica.packages()
        for file in manifest.packages:
            await packages.put(file.path.removeprefix("package-"), await read_file(folder, file))
        if spec.name != original:
            refuse_unnamed_queries(fresh.names, spec.name)
        answer = await term.ask(_request(manifest, record, fresh, ends, paused, request_id))
    except BaseException:
        # If this fails, too, the next term gives up the restore.
        with suppress(RequestError):
            await term.ask(AbandonRestore(fresh.sequencer))
        raise
    assert isinstance(answer, catalog.TopologyRecord)
    return answer


def refuse_older_cluster(known: Catalog, manifest: wire.SnapshotManifest) -> None:
    """Raise RequestError if the snapshot may have stored forms that not all processes here may read.

    The formats before ``COLUMNS`` have no other entries and base parts than the first one.
    """
    taken = manifest.cluster_format
    if taken > max(known.format, COLUMNS - 1):
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"the snapshot is of a cluster of format {taken}, and this cluster has format {known.format}: what is "
            f"stored from format {taken} on cannot be read by all processes here",
            f"let all processes run this version, and raise the format by cluster.format = {taken}, or by `millwheel "
            f"server start-dev --cluster-format {taken}` (docs/upgrading.md)",
            reason="FORMAT_TOO_OLD",
        )


def _restore_record(topology: str, fresh: _FreshNames) -> catalog.RestoreRecord:
    record = catalog.RestoreRecord(topology=topology, begun_at_us=wall_now())
    for incarnation, interval_map in fresh.maps.items():
        journals = [interval.journal for interval in interval_map.intervals]
        record.incarnations.add(incarnation=incarnation, journals=journals)
    return record


async def _write(
    folder: SnapshotFolder, manifest: wire.SnapshotManifest, fresh: _FreshNames, writer: _StoreWriter
) -> dict[str, int]:
    """Write journals and rows. Returns where each log ends, by its incarnation in the snapshot."""
    ends: dict[str, int] = {log.incarnation: 0 for log in manifest.logs}
    for journal in manifest.journals:
        renamed = RenamedJournal(folder, journal, journal.incarnation in ends, fresh.names)
        await writer.write_journal(journal, renamed)
        if journal.incarnation in ends:
            ends[journal.incarnation] = renamed.log_end
    for rows in manifest.rows:
        async for row in read_items(folder, rows.files, RowItem):
            await writer.add_row(rows.incarnation, row)
        await writer.flush()
    return ends


def _request(
    manifest: wire.SnapshotManifest,
    record: catalog.TopologyRecord,
    fresh: _FreshNames,
    ends: dict[str, int],
    paused: bool,
    request_id: str,
) -> RestoreTopology:
    names = fresh.names
    record.restore_request_id = request_id
    record.state = catalog.TOPOLOGY_STATE_PAUSED if paused else catalog.TOPOLOGY_STATE_RUNNING
    for name, incarnation in manifest.topology.incarnations.items():
        record.incarnations[name] = IncarnationId(names(incarnation))
    _note_former(record, manifest.topology, names)
    renamed = record.spec.name != manifest.topology.spec.name
    if renamed:
        begin_lives(record, fresh.sequencer)
    logs = tuple(_restored_log(log, ends[log.incarnation], names) for log in manifest.logs)
    batches = tuple(
        catalog.BatchCursorRecord(query=names.query(cursor.query), committed_batch=cursor.committed_batch)
        for cursor in manifest.batches
        if cursor.query in names.queries
    )
    return RestoreTopology(fresh.sequencer, record, fresh.maps, logs, batches, fresh.drawn, renamed)


def _restored_log(saved: catalog.StreamLogRecord, end: int, names: RestoredNames) -> catalog.StreamLogRecord:
    """The record of a log, which notes its former ids: readers have positions in those logs.

    *Invariant (G1): a log has the same records as a former one below the offset that is noted.* That is where the
    former one ended in the snapshot. Behind it, both have records of their own.
    """
    restored = catalog.StreamLogRecord()
    restored.CopyFrom(saved)
    restored.stream, restored.incarnation = names.stream(saved.stream), IncarnationId(names(saved.incarnation))
    restored.former_ends[saved.incarnation] = end
    for oldest in _by_age(restored.former_ends)[:-_FORMER]:
        del restored.former_ends[oldest]
    return restored


def _by_age(incarnations: Iterable[str]) -> list[str]:
    return sorted(incarnations, key=lambda one: int(one.rpartition(".")[2]))


def _note_former(record: catalog.TopologyRecord, saved: catalog.TopologyRecord, names: RestoredNames) -> None:
    """Note the former ids of computations, because dead letters name them."""
    record.former_incarnations.clear()
    for incarnation in saved.incarnations.values():
        former = [one for one, present in saved.former_incarnations.items() if present == incarnation]
        newest = _by_age([*former, incarnation])[-_FORMER:]
        record.former_incarnations.update(dict.fromkeys(newest, names(incarnation)))


class _FreshNames:
    """The fresh ids of everything in a snapshot, and the interval maps with them."""

    def __init__(self, manifest: wire.SnapshotManifest, topology: str, block: SequencerBlock) -> None:
        numbers = iter(range(block.first, block.last + 1))
        names: dict[str, str] = {}
        original = manifest.topology.spec.name
        self.sequencer = next(numbers)
        """The writer of the restored journals. Every owner's sequencer is larger. It also numbers the lives of a fork's
        injected streams: it is above all sequencers of earlier lives under these names."""
        lives = {} if topology == original else restored_lives(manifest, topology)
        self.names = RestoredNames(names, original, topology, lives, self.sequencer)
        self.maps: dict[IncarnationId, catalog.IntervalMapRecord] = {}
        self.drawn = self.sequencer
        """The last number that is used here."""
        self.intervals: dict[str, tuple[list[bytes], list[str]]] = {}
        """By incarnation in the snapshot: the first keys of its intervals, and their fresh journals."""
        for one in manifest.maps:
            self.drawn = next(numbers)
            incarnation = new_incarnation(self.names.stream(name_of_incarnation(one.incarnation)), self.drawn)
            names[one.incarnation] = incarnation
            record = self.maps[incarnation] = catalog.IntervalMapRecord()
            record.CopyFrom(one.map)
            record.topology = topology if one.map.topology else ""
            for interval in record.intervals:
                self.drawn = next(numbers)
                names[interval.journal] = interval.journal = new_journal(incarnation, self.drawn)
                interval.sequencer = self.sequencer
            starts = [interval.keys.start for interval in record.intervals]
            self.intervals[one.incarnation] = starts, [interval.journal for interval in record.intervals]


class _StoreWriter:
    """Writes journals and rows under their fresh ids, while the term lasts."""

    def __init__(self, store: StateStore, fresh: _FreshNames, term: Term) -> None:
        self._store = store
        self._fresh = fresh
        self._term = term
        self._retried = RetriedCalls("restore")
        self._rows: list[StateRow] = []
        self._size = 0
        self._rows_of: tuple[IncarnationId, str] = IncarnationId(""), ""
        """The incarnation and the journal of the collected rows."""

    async def write_journal(self, saved: wire.SnapshotJournal, renamed: RenamedJournal) -> None:
        """Write a journal. Its last commit and its truncation point are those of the snapshot."""
        store, call = self._store, self._call
        journal, sequencer, point = self._fresh.names(saved.journal), self._fresh.sequencer, saved.truncation_point
        # The append of the truncation point names the base. Its entry is never read.
        await call(partial(self._create, journal, max(point - 1, 0)))
        named: list[PartId] = []
        async for part, blob in renamed.parts():
            await call(partial(store.write_part, journal, part, blob))
            named.append(part)
        if point:
            await self._append(journal, Append(sequencer, point, point, tuple(sorted(named)), b""))
        async for entry in renamed.entries(sequencer):
            for part, blob in entry.parts.items():
                await call(partial(store.write_part, journal, part, blob))
                named.append(part)
            append = Append(sequencer, entry.commit, point, tuple(sorted(named)), entry.blob)
            await self._append(journal, append)
        if point:
            await call(partial(store.delete_entries, journal, point + 1))

    async def _create(self, journal: str, commit: int) -> None:
        """Idempotent: nothing else has this journal's name."""
        with suppress(JournalExistsError):
            await self._store.create_journal(journal, commit)
        if (await self._store.read_head(journal)).sequencer != self._fresh.sequencer:
            await self._store.fence(journal, self._fresh.sequencer)

    async def add_row(self, incarnation: str, row: RowItem) -> None:
        """Write a row of an incarnation of the snapshot, at the latest with ``flush``. Its journal is written."""
        starts, journals = self._fresh.intervals[incarnation]
        journal = journals[0] if len(journals) == 1 else journals[bisect_right(starts, row_owner(row.key)) - 1]
        rows_of = IncarnationId(self._fresh.names(incarnation)), journal
        if rows_of != self._rows_of or len(self._rows) >= _ROWS or self._size >= _ROWS_BYTES:
            await self.flush()
        self._rows_of = rows_of
        self._rows.append(StateRow(row.key, row.commit, row.blob))
        self._size += len(row.key) + len(row.blob)

    async def flush(self) -> None:
        """Write what is collected."""
        if self._rows:
            (incarnation, journal), sequencer, rows = self._rows_of, self._fresh.sequencer, self._rows
            await self._call(lambda: self._store.write_states(incarnation, journal, sequencer, rows))
        self._rows, self._size = [], 0

    async def _call(self, call: Callable[[], Awaitable[object]]) -> None:
        self._term.check()
        await self._retried.call(call)

    async def _append(self, journal: str, append: Append) -> None:
        self._term.check()
        await self._retried.append(self._store, journal, append)
