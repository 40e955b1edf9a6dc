"""The catalog: a read model of the coordinator's records about topologies, intervals, workers and injectors.

Masters, workers and clients follow the same coordinator keys (:mod:`millwheel.model.catalog_keys`). From these they
answer the same questions: which computations consume a stream, which worker owns a key, which groups a stream has.

Invariant: a :class:`Catalog` equals the coordinator's contents at one revision. Callers load a snapshot first, and then
apply the watch's changes in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from zlib import crc32

from google.protobuf.message import DecodeError

from millwheel.errors import DamagedValueError
from millwheel.model import catalog_keys as keys
from millwheel.model.incarnation import GroupId, IncarnationId, injector_group
from millwheel.model.interval_map import IntervalMap
from millwheel.model.key_values import KeyChange, PrefixSnapshot
from millwheel.model.stream_names import full_name, local_name, owner_of
from millwheel.model.topology_index import (
    ACTIVE_STATES,
    DEAD_LETTER_TYPE,
    LIVE_STATES,
    Consumer,
    TopologyIndex,
    code_of,
    codes_of,
    dead_letter_writers,
    outputs_of,
)
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import common_pb2 as common
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = [
    "ACTIVE_STATES",
    "DEAD_LETTER_TYPE",
    "LIVE_STATES",
    "Catalog",
    "Consumer",
    "OwnedInterval",
    "code_of",
    "codes_of",
    "dead_letter_writers",
    "earlier_version",
    "incarnations_of",
    "outputs_of",
    "shard_of",
]

_SHAPING: Final = frozenset({keys.TOPOLOGIES, keys.INTERVALS, keys.LOGS, keys.WORKERS, keys.AUTHORITIES, keys.RESTORES})


def _place(kind: str, names: tuple[str, ...]) -> object:
    """The place of a key's record within the records of its kind. None if that kind has no such record."""
    if kind == keys.INJECTORS:
        return names[:2]
    if kind in (keys.AUTHORITIES, keys.RESTORES):
        return int(names[0]) if names[0].isdecimal() else None
    return names[0] if names else None


Records: TypeAlias = dict[str, dict[Any, Any]]


@dataclass(frozen=True, slots=True)
class OwnedInterval:
    """One interval of one incarnation, as its owner sees it."""

    incarnation: IncarnationId
    interval: catalog.IntervalRecord


class Catalog:
    """The coordinator's contents at ``revision``. Every method answers from memory.

    ``shape_version`` counts the changes of topologies, interval maps, logs, workers, the authority's shards and the
    cluster's format: the *shape* of the cluster. A result that depends on those alone stays valid while the number
    stays the same. Progress, such as drawn sequencers and batch cursors, does not count.

    It has many methods: each is a question that a role asks the coordinator's contents.
    """

    def __init__(self) -> None:
        self.revision = 0
        # The revision of the last snapshot. A snapshot includes the effect of all deletions up to its revision.
        self._listed = 0
        self.shape_version = 0
        self.maps: dict[IncarnationId, IntervalMap] = {}
        # By a chunk's key: a hash of the chunk in the tables. A new snapshot updates only chunks that differ.
        self._digests: dict[str, int] = {}
        self._index: TopologyIndex | None = None
        """The index of the present topologies and logs. None: one of them has changed since the last question."""
        self.damaged: dict[str, str] = {}
        """Keys whose values cannot be read, with the reason. The last readable value, if any, stays in use."""
        self._clear()

    def _clear(self) -> None:
        self.authority_shards = 1
        """The number that the cluster was created with. It is 1 before the coordinator gives it."""
        self.format = 0
        """The cluster's format (docs/upgrading.md). It is 0 before the coordinator gives it."""
        self.damaged = {}
        self._unknown: dict[str, str] = {}
        """The damaged keys, except leased ones, for which this catalog never had a readable value."""
        self.topologies: dict[str, catalog.TopologyRecord] = {}
        self.logs: dict[str, catalog.StreamLogRecord] = {}
        self.workers: dict[str, catalog.WorkerRecord] = {}
        self.departures: dict[str, catalog.WorkerRecord] = {}
        """The last records of workers that were stopped in order lately, and are not back."""
        self.authorities: dict[int, catalog.AuthorityRecord] = {}
        self.masters: dict[str, catalog.MasterRecord] = {}
        self.retired: dict[str, IncarnationId] = {}
        """By a journal that the master will drop: the incarnation that the journal belongs to."""
        self.restores: dict[int, catalog.RestoreRecord] = {}
        """Restores of snapshots that are not complete, by number."""
        self.injectors: dict[tuple[str, str], catalog.InjectorRecord] = {}
        self.batches: dict[str, int] = {}
        self.events: dict[int, bytes] = {}
        """EventRecords by number, encoded: only a master reads them."""
        self.retired_queries: dict[str, int] = {}
        """By query: when an operator retired it, in microseconds since the epoch."""
        self.drawn = 0
        # Chunks that changed in the revisions being applied. A map is complete only after all of them.
        self._chunks: dict[IncarnationId, dict[int, catalog.IntervalMapRecord | None]] = {}
        self._created: dict[str, int] = {}
        self._modified: dict[str, int] = {}

    # Following the coordinator.

    def load(self, snapshot: PrefixSnapshot) -> None:
        """Replace the contents by a snapshot of every key.

        If a value in the snapshot is damaged, the earlier value of that key stays in use.
        """
        before = {kind: dict(records) for kind, records in self._records().items()}
        settings = self.authority_shards, self.format
        self._clear()
        self.shape_version += 1
        self._index = None
        for entry in snapshot.entries:
            self._created[entry.key] = entry.created
            self._modified[entry.key] = entry.modified
            if entry.damage and entry.key == keys.CLUSTER_SETTINGS:
                self.authority_shards, self.format = settings
            self._take(entry.key, entry.value, entry.damage, before)
        for key in self._digests.keys() - self._modified.keys():
            self._delete(key)
        self._settle_maps()
        self.revision = self._listed = snapshot.revision

    def apply(self, changes: Iterable[KeyChange]) -> bool:
        """Apply the changes of one or several revisions. Returns whether any of them was new."""
        new = False
        for change in changes:
            if change.revision <= self._listed or change.revision < self.revision:
                continue
            new = True
            self.revision = change.revision
            if change.value is None:
                self._created.pop(change.key, None)
                self._modified.pop(change.key, None)
                self._forget_damage(change.key)
                with suppress(ValueError, IndexError):  # a key of no known kind has no record to delete
                    self._delete(change.key)
            else:
                self._created.setdefault(change.key, change.revision)
                self._modified[change.key] = change.revision
                self._take(change.key, change.value, change.damage, self._records())
        self._settle_maps()
        return new

    def _take(self, key: str, value: bytes, damage: str, before: Records) -> None:
        """Store one value. ``before``: the earlier records, by kind and place, which replace a damaged value."""
        self._forget_damage(key)
        if not damage:
            try:
                self._put(key, value)
                return
            except (DecodeError, ValueError, IndexError) as error:
                damage = f"it is no such record: {error}"
        self.damaged[key] = damage
        kind, names = keys.split_key(key)
        self._changes(kind)
        place = _place(kind, names)
        if place in before.get(kind, {}):
            self._records()[kind][place] = before[kind][place]
        elif key not in self._digests and not key.startswith(keys.LEASED):
            self._unknown[key] = damage

    def _changes(self, kind: str) -> None:
        """A record of this kind changes."""
        self.shape_version += kind in _SHAPING
        if kind in (keys.TOPOLOGIES, keys.LOGS):
            self._index = None

    def _forget_damage(self, key: str) -> None:
        self.damaged.pop(key, None)
        self._unknown.pop(key, None)

    def _records(self) -> Records:
        """All records except interval maps: by kind, and by place within the kind."""
        return {
            keys.TOPOLOGIES: self.topologies,
            keys.LOGS: self.logs,
            keys.WORKERS: self.workers,
            keys.DEPARTURES: self.departures,
            keys.AUTHORITIES: self.authorities,
            keys.MASTERS: self.masters,
            keys.RETIRED: self.retired,
            keys.RESTORES: self.restores,
            keys.INJECTORS: self.injectors,
            keys.BATCHES: self.batches,
        }

    # Damaged values.

    def check_readable(self, key: str) -> None:
        """Raise DamagedValueError if the value of ``key`` is damaged. No decision may depend on such a value."""
        if key in self.damaged:
            raise DamagedValueError(key, self.damaged[key])

    def check_shape(self) -> None:
        """Raise DamagedValueError if a topology or a log is damaged and no earlier value of it is known.

        Such a topology may consume any stream and own any state. Without its record, no process can decide where
        records must go, or what garbage collection may delete.
        """
        for key, why in self._unknown.items():
            if key.startswith((keys.TOPOLOGIES, keys.LOGS)):
                raise DamagedValueError(key, why)

    def is_damaged(self, incarnation: IncarnationId) -> bool:
        """Whether a chunk of an incarnation's interval map is damaged. If so, its intervals keep their owners."""
        return self._damaged_chunk(incarnation) is not None

    def check_map(self, incarnation: IncarnationId) -> None:
        """Raise DamagedValueError if a chunk of an incarnation's interval map is damaged."""
        key = self._damaged_chunk(incarnation)
        if key is not None:
            raise DamagedValueError(key, self.damaged[key])

    def _damaged_chunk(self, incarnation: IncarnationId) -> str | None:
        if not self.damaged:
            return None
        prefix = keys.chunks_prefix(incarnation)
        return next((key for key in self.damaged if key.startswith(prefix)), None)

    def _settle_maps(self) -> None:
        changed, self._chunks = self._chunks, {}
        try:
            for incarnation, chunks in changed.items():
                interval_map = self.maps.setdefault(incarnation, IntervalMap(incarnation))
                interval_map.update(chunks)
                if not interval_map:
                    del self.maps[incarnation]
        except ValueError:
            # The tables are only partly updated. A caller that continues after this error must load a new snapshot.
            self.maps, self._digests = {}, {}
            raise

    def modified(self, key: str) -> int:
        """The revision that last changed ``key``, for a transaction's compare; 0 if there is no such key."""
        return self._modified.get(key, 0)

    def _put(self, key: str, value: bytes) -> None:
        kind, names = keys.split_key(key)
        self._changes(kind)
        if kind == keys.TOPOLOGIES:
            self.topologies[names[0]] = catalog.TopologyRecord.FromString(value)
        elif kind == keys.INTERVALS:
            self._put_chunk(key, IncarnationId(names[0]), int(names[1]), value)
        elif kind == keys.LOGS:
            self.logs[names[0]] = catalog.StreamLogRecord.FromString(value)
        elif kind in (keys.WORKERS, keys.DEPARTURES):
            self._records()[kind][names[0]] = catalog.WorkerRecord.FromString(value)
        elif kind == keys.AUTHORITIES:
            self.authorities[int(names[0])] = catalog.AuthorityRecord.FromString(value)
        elif kind == keys.MASTERS:
            self.masters[names[0]] = catalog.MasterRecord.FromString(value)
        elif kind == keys.RETIRED:
            self.retired[names[0]] = IncarnationId(catalog.RetiredJournalRecord.FromString(value).incarnation)
        elif kind == keys.RESTORES:
            self.restores[int(names[0])] = catalog.RestoreRecord.FromString(value)
        elif kind == keys.INJECTORS:
            self.injectors[names[0], names[1]] = catalog.InjectorRecord.FromString(value)
        elif kind == keys.BATCHES:
            self._put_cursor(names[0], catalog.BatchCursorRecord.FromString(value))
        elif kind == keys.EVENTS:
            self.events[int(names[0])] = value
        else:
            self._put_number(key, value)

    def _put_number(self, key: str, value: bytes) -> None:
        if key == keys.SEQUENCER:
            self.drawn = int(value)
        elif key == keys.CLUSTER_SETTINGS:
            settings = catalog.ClusterSettingsRecord.FromString(value)
            self.shape_version += settings.format != self.format
            self.authority_shards, self.format = settings.authority_shards, settings.format

    def _put_cursor(self, query: str, cursor: catalog.BatchCursorRecord) -> None:
        self.batches[query] = cursor.committed_batch
        if cursor.retired_at_us:
            self.retired_queries[query] = cursor.retired_at_us

    def _put_chunk(self, key: str, incarnation: IncarnationId, number: int, value: bytes) -> None:
        if self._digests.get(key) != hash(value):
            self._chunks.setdefault(incarnation, {})[number] = catalog.IntervalMapRecord.FromString(value)
            self._digests[key] = hash(value)

    def _delete(self, key: str) -> None:
        kind, names = keys.split_key(key)
        self._changes(kind)
        if kind == keys.INTERVALS:
            self._digests.pop(key, None)
            self._chunks.setdefault(IncarnationId(names[0]), {})[int(names[1])] = None
        elif kind == keys.EVENTS:
            self.events.pop(int(names[0]), None)
        elif kind == keys.SEQUENCER:
            self.drawn = 0
        else:
            self._records().get(kind, {}).pop(_place(kind, names), None)
            if kind == keys.BATCHES:
                self.retired_queries.pop(names[0], None)

    # Streams: their declarations, producers and consumers.

    def index(self) -> TopologyIndex:
        """What follows from the topologies and logs alone. Callers must not change it.

        Raises:
            DamagedValueError: As :meth:`check_shape` does.
        """
        if self._unknown:
            self.check_shape()
        if self._index is None:
            self._index = TopologyIndex(self.topologies, self.logs)
        return self._index

    def live_topologies(self) -> Iterator[tuple[str, catalog.TopologyRecord]]:
        """The live topologies with their names, sorted. DamagedValueError as by :meth:`check_shape`."""
        yield from self.index().live

    def streams(self) -> dict[str, specs.StreamSpec]:
        """Every stream that a live topology declares, produces to or accepts injected records for, by name.

        A stream that a topology only reads as external appears only through its owner's declaration. A stream that
        appears only as an output has a declaration without a type. Callers must not change the result.
        """
        return self.index().streams

    def stream(self, name: str) -> specs.StreamSpec | None:
        """A stream's declaration; None if no live topology has the stream."""
        return self.streams().get(name)

    def id_stream(self, stream: str) -> str:
        """The name within which users' ids of a stream's records are hashed.

        An injected stream of a fork has that of its original (G1). What a fork produces has no users' ids.
        """
        record = self.topologies.get(owner_of(stream))
        if record is None or not record.HasField("fork"):
            return stream
        if not any(one.injected for one in record.spec.streams if one.name == stream):
            return stream
        return full_name(record.fork.id_topology, local_name(record.spec.name, stream))

    def injected_code(self, stream: str) -> specs.CodeReference:
        """The code that defines the type of an injected stream; an empty reference if no live topology has it."""
        for _, record in self.live_topologies():
            if any(declared.name == stream and declared.injected for declared in record.spec.streams):
                return record.spec.code
        return specs.CodeReference()

    def is_draining(self, stream: str) -> bool:
        """Whether no running or paused topology accepts injected records of ``stream``."""
        open_states = {catalog.TOPOLOGY_STATE_RUNNING, catalog.TOPOLOGY_STATE_PAUSED}
        concerned = [record for _, record in self.live_topologies() if _touches(record.spec, stream)]
        return not any(record.state in open_states for record in concerned)

    def producers(self, stream: str) -> tuple[str, ...]:
        """The incarnations of the live computations that produce to ``stream``, dead letters included.

        A removed computation stays in the result until its productions are delivered (7.1).
        """
        return tuple(self.index().producers.get(stream, ()))

    def groups_of(self, stream: str) -> tuple[GroupId, ...]:
        """The groups whose minimum is the low watermark of ``stream`` (4.5): its producers and its injectors."""
        spec = self.stream(stream)
        injectors = (injector_group(stream),) if spec is not None and spec.injected else ()
        return self.producers(stream) + injectors

    def retired_injectors(self) -> dict[str, frozenset[str]]:
        """By stream: the sender names of its retired injector processes, as their deliveries carry them."""
        found: dict[str, set[str]] = {}
        for (stream, process), record in self.injectors.items():
            if record.retired:
                found.setdefault(stream, set()).add(f"{injector_group(stream)}/{process}")
        return {stream: frozenset(origins) for stream, origins in found.items()}

    def injector_lives(self) -> dict[str, tuple[tuple[str, int, int], ...]]:
        """By injector group: the topologies that accept its records, each with the number of the stream's life.

        A stream that is removed and created again gets another value. The value also has the time of the topology's
        submission, in microseconds. A snapshot that is restored where it came from has the number of the former life.
        But its watermarks begin again, and the last ones of the former life may be above them (G7).
        """
        found: dict[str, tuple[tuple[str, int, int], ...]] = {}
        for name, record in self.live_topologies():
            for stream in record.spec.streams:
                if stream.injected:
                    group = injector_group(stream.name)
                    found[group] = (
                        *found.get(group, ()),
                        (name, record.injected_since.get(stream.name, 0), record.submitted_at_us),
                    )
        return found

    def injector_floors(self) -> dict[str, int]:
        """By injector group: the number at which the present life of its stream began, if it is known."""
        return {
            injector_group(stream.name): record.injected_since[stream.name]
            for _, record in self.live_topologies()
            for stream in record.spec.streams
            if stream.injected and stream.name in record.injected_since
        }

    def consumers(self, stream: str) -> tuple[Consumer, ...]:
        """All consumers of ``stream``: computations of topologies that are not yet drained, and the stream's log."""
        return tuple(self.index().consumers.get(stream, ()))

    def edges(self) -> frozenset[tuple[str, str]]:
        """All pairs (consumer's incarnation, consumed stream), logs included. See :meth:`consumers`."""
        return self.index().edges

    # Intervals and their owners.

    def interval_map(self, incarnation: IncarnationId) -> catalog.IntervalMapRecord | None:
        """The whole interval map of an incarnation, or None.

        To read only some intervals, use :attr:`tables`: it is cheaper.
        """
        interval_map = self.maps.get(incarnation)
        return None if interval_map is None else interval_map.record

    def locate(self, incarnation: IncarnationId, key: bytes) -> catalog.IntervalRecord | None:
        """The interval of ``incarnation`` that contains ``key``: its journal, sequencer and owner, if it has one."""
        interval_map = self.maps.get(incarnation)
        return None if interval_map is None else interval_map.locate(key)

    def owned_by(self, worker_id: str, registration: int | None = None) -> list[OwnedInterval]:
        """The intervals that a worker owns.

        With ``registration``, the revision that created the worker's record, only the intervals that were assigned
        under that registration. Intervals of an expired registration are then left out.
        """
        found = []
        for incarnation, interval_map in self.maps.items():
            for (owner, revision), intervals in interval_map.owned.items():
                if owner == worker_id and registration in (None, revision):
                    found += [OwnedInterval(incarnation, interval) for interval in intervals.values()]
        return found

    def journal_lives(self, journal: str) -> bool:
        """Whether an interval of the catalog writes to ``journal``, or was created from it by a split or a merge."""
        return any(interval_map.home(journal) is not None for interval_map in self.maps.values())

    def registration(self, worker_id: str) -> int:
        """The revision that created a worker's record; 0 if the worker is not registered."""
        return self._created.get(keys.worker_key(worker_id), 0)

    def lives(self, worker_id: str, registration: int) -> bool:
        """Whether a worker is registered, by the record that was created at this revision."""
        return worker_id in self.workers and registration == self.registration(worker_id)

    def computation(self, group: GroupId) -> tuple[catalog.TopologyRecord, specs.ComputationSpec] | None:
        """The topology and the computation of an incarnation; None for a log, an injector or a removed incarnation."""
        return self.index().computations.get(group)

    def removed_computation(
        self, incarnation: IncarnationId
    ) -> tuple[catalog.TopologyRecord, catalog.RemovedComputation] | None:
        """The topology and the record of a removed computation whose productions are still being delivered, or None."""
        return self.index().removed.get(incarnation)

    def log_of(self, incarnation: IncarnationId) -> catalog.StreamLogRecord | None:
        """The stream log that has this incarnation, or None."""
        return next((log for log in self.logs.values() if log.incarnation == incarnation), None)

    def shard_of(self, group: GroupId) -> int:
        """The authority shard of ``group`` (7.2)."""
        return shard_of(group, self.authority_shards)

    def authority_of(self, group: GroupId) -> common.Endpoint | None:
        """The endpoint that keeps the low watermark of ``group`` (7.2); None while its shard is not served."""
        record = self.authorities.get(self.shard_of(group))
        return None if record is None else record.endpoint


def earlier_version(record: catalog.TopologyRecord) -> catalog.PreviousVersion | None:
    """The version that the last update replaced, if it is kept. An update by an older release keeps a former one."""
    kept = record.HasField("previous") and record.previous.version == record.version - 1
    return record.previous if kept else None


def incarnations_of(record: catalog.TopologyRecord) -> list[IncarnationId]:
    """The incarnations of a topology's computations, in the order of their names. The map itself has no fixed order."""
    return [incarnation for _, incarnation in sorted(record.incarnations.items())]


def shard_of(group: GroupId, shards: int) -> int:
    """The authority shard, of ``shards``, that keeps the watermark of ``group`` (7.2)."""
    return crc32(group.encode()) % shards


def _touches(spec: specs.TopologySpec, stream: str) -> bool:
    reads = any(edge.stream == stream for computation in spec.computations for edge in computation.inputs)
    return reads or any(declared.name == stream and declared.injected for declared in spec.streams)
