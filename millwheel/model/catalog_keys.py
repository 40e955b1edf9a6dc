"""The coordinator keys of the catalog's records: one function per key (section 7.1).

Names are percent-encoded. A slash in a name therefore never leads to the key of another record.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from millwheel.model.incarnation import IncarnationId

__all__ = [
    "AUTHORITIES",
    "BATCHES",
    "CANDIDATES",
    "CLUSTER_SETTINGS",
    "DEPARTURES",
    "ELECTIONS",
    "EVENTS",
    "INJECTORS",
    "INTERVALS",
    "LEADERSHIP",
    "LEASED",
    "LOGS",
    "MASTERS",
    "RESTORES",
    "RETIRED",
    "SEQUENCER",
    "SHARD_LEADERSHIPS",
    "TOPOLOGIES",
    "WORKERS",
    "authority_key",
    "batch_key",
    "candidate_key",
    "chunk_key",
    "chunks_prefix",
    "departure_key",
    "event_key",
    "injector_key",
    "log_key",
    "master_key",
    "restore_key",
    "retired_key",
    "shard_leadership_key",
    "split_key",
    "topology_key",
    "worker_key",
]

TOPOLOGIES: Final = "topologies/"
INTERVALS: Final = "intervals/"
LOGS: Final = "logs/"
WORKERS: Final = "workers/"
DEPARTURES: Final = "departures/"
MASTERS: Final = "masters/"
RETIRED: Final = "retired/"
RESTORES: Final = "restores/"
AUTHORITIES: Final = "authorities/"
CANDIDATES: Final = "candidates/"
INJECTORS: Final = "injectors/"
BATCHES: Final = "batches/"
EVENTS: Final = "events/"
SEQUENCER: Final = "sequencer"
"""The counter for sequencers and for the numbers in incarnation ids.

Its value is the last allocated number, in decimal text.
"""
CLUSTER_SETTINGS: Final = "cluster/settings"
"""The key of the ClusterSettingsRecord."""
LEADERSHIP: Final = "leadership/master"
"""The key that the leading master holds under its lease."""
SHARD_LEADERSHIPS: Final = "leadership/authority/"
ELECTIONS: Final = "leadership/"
"""The prefix of the two above."""
LEASED: Final = (WORKERS, DEPARTURES, MASTERS, AUTHORITIES, CANDIDATES, ELECTIONS)
"""The prefixes of keys that announce processes or their end. Such a key has a lease, or is written at each start."""


_MAX_CACHED: Final = 10_000
"""The number of names and keys whose other form is kept. Each change, and each look at an owner, asks for some."""


@lru_cache(_MAX_CACHED)
def _quoted(name: str) -> str:
    return quote(name, safe="")


def topology_key(name: str) -> str:
    """The key of a topology's TopologyRecord."""
    return TOPOLOGIES + _quoted(name)


def chunks_prefix(incarnation: IncarnationId) -> str:
    """The common prefix of the keys of all chunks of an incarnation's interval map."""
    return f"{INTERVALS}{_quoted(incarnation)}/"


def chunk_key(incarnation: IncarnationId, number: int) -> str:
    """The key of one chunk of an incarnation's interval map: an IntervalMapRecord with adjacent intervals."""
    return f"{chunks_prefix(incarnation)}{number}"


def log_key(stream: str) -> str:
    """The key of a stream's StreamLogRecord."""
    return LOGS + _quoted(stream)


def worker_key(worker_id: str) -> str:
    """The key of a worker's WorkerRecord, bound to the worker's lease."""
    return WORKERS + _quoted(worker_id)


def departure_key(worker_id: str) -> str:
    """The key of the last WorkerRecord of a worker that was stopped in order. It has a lease of its own, of a day."""
    return DEPARTURES + _quoted(worker_id)


def master_key(address: str) -> str:
    """The key of a master replica's MasterRecord, bound to that replica's own lease."""
    return MASTERS + _quoted(address)


def event_key(number: int) -> str:
    """The key of the EventRecord with this number."""
    return f"{EVENTS}{number}"


def retired_key(journal: str) -> str:
    """The key of the RetiredJournalRecord of a journal that the master will drop."""
    return RETIRED + _quoted(journal)


def restore_key(number: int) -> str:
    """The key of the RestoreRecord with this number, which was reserved for the restore."""
    return f"{RESTORES}{number}"


def authority_key(shard: int) -> str:
    """The key of an authority shard's AuthorityRecord, bound to the shard's lease."""
    return f"{AUTHORITIES}{shard}"


def shard_leadership_key(shard: int) -> str:
    """The key that the process which serves an authority shard holds under its lease."""
    return f"{SHARD_LEADERSHIPS}{shard}"


def candidate_key(name: str) -> str:
    """The key that announces a candidate for authority shards, bound to that process's own lease."""
    return CANDIDATES + _quoted(name)


def injector_key(stream: str, process: str) -> str:
    """The key of an injector process's InjectorRecord."""
    return f"{INJECTORS}{_quoted(stream)}/{_quoted(process)}"


def batch_key(query: str) -> str:
    """The key of a batch source's BatchCursorRecord."""
    return BATCHES + _quoted(query)


@lru_cache(_MAX_CACHED)
def split_key(key: str) -> tuple[str, tuple[str, ...]]:
    """A key's prefix (with its slash) and its decoded names; a key without a slash is its own prefix."""
    kind, slash, rest = key.partition("/")
    if not slash:
        return key, ()
    return kind + slash, tuple(unquote(part) for part in rest.split("/"))
