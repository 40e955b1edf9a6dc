"""Computations whose hooks or key functions raise or do not end, from the workers' last reports. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millwheel.master.load_book import LoadBook
from millwheel.model.catalog import ACTIVE_STATES, Catalog, earlier_version
from millwheel.model.connector_parts import connector_parts
from millwheel.model.incarnation import IncarnationId, incarnation_of_journal
from millwheel.model.time import Duration, minutes
from millwheel.rpc.hook_failures import (
    AWAITED_SHOWN,
    absence_text,
    blocks,
    computation_text,
    failed_lately,
    merged,
)
from millwheel.rpc.key_failures import keys_wait, merged_key_functions
from millwheel.rpc.raised_errors import is_news, moment
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import inspection_pb2 as inspection

__all__ = ["all_reported", "hook_failures"]

_SUSPECT_FOR: Final = minutes(10)
"""A computation that begins to fail within this time after an update may fail because of it."""


def hook_failures(
    known: Catalog,
    book: LoadBook,
    now: int,
    *,
    topology: str = "",
    computation: str = "",
    stream: str = "",
    awaited_for: Duration = AWAITED_SHOWN,
) -> list[wire.ComputationFailures]:
    """Return computations with blocked keys, stopped intervals, recent failures, long-running hooks, or without code.

    A failure is recent for one minute.

    A key function that raises is a failure too. It fails for records that have no interval yet.

    Args:
        known: the catalog. Reports from earlier owners, or from owners of paused topologies, do not count.
        book: the workers' reports.
        now: the wall time, in microseconds.
        topology: only computations of this topology; empty: all.
        computation: only those of this name; empty: all.
        stream: only consumers of this stream, and key functions of this stream; empty: all.
        awaited_for: an asynchronous hook counts if it has run for at least this time, in microseconds.
    """
    consumers = {one.incarnation for one in known.consumers(stream)} if stream else None
    reported, key_functions = _reported(known, book), _key_functions(book, stream, now)
    found: list[wire.ComputationFailures] = []
    for name, record in sorted(known.live_topologies()):
        if record.state not in ACTIVE_STATES or topology not in ("", name):
            continue
        for one, incarnation in sorted(record.incarnations.items()):
            wanted = computation in ("", one) and (consumers is None or incarnation in consumers)
            if not wanted:
                continue
            loads, keys = reported.get(incarnation, []), key_functions.get(incarnation, [])
            found += _of_computation(record, one, loads, keys, now, awaited_for)
    return found


def _rollback_hint(record: catalog.TopologyRecord, failures: inspection.HookFailures, absence: str) -> str:
    """Return how to go back to the version before, if the failures may come from the last update."""
    began = [one.since_us for one in failures.oldest]
    is_suspect = bool(began) and record.version_at_us <= min(began) <= record.version_at_us + _SUSPECT_FOR
    before = earlier_version(record)
    if before is None or not (is_suspect or absence):
        return ""
    return (
        f"version {record.version} of {record.spec.name} came at {moment(record.version_at_us)}: if this began with "
        f"it, `millwheel topology rollback {record.spec.name}` goes back to version {before.version}"
    )


def all_reported(known: Catalog, book: LoadBook, topology: str, computation: str) -> bool:
    """Return whether the present owners of all intervals of a computation have reported, or none has to.

    None has to if the topology is not running, or has no such computation any more.
    """
    record = known.topologies.get(topology)
    if record is None or record.state not in ACTIVE_STATES or computation not in record.incarnations:
        return True
    interval_map = known.maps.get(IncarnationId(record.incarnations[computation]))
    return interval_map is not None and all(book.load_of(interval) is not None for interval in interval_map)


def _key_functions(book: LoadBook, stream: str, now: int) -> dict[IncarnationId, list[inspection.KeyFunctionFailure]]:
    """Return, by incarnation, the key functions (of one stream, or of all) that failed recently."""
    found = {}
    for incarnation, failures in book.key_functions().items():
        late = [one for one in failures if stream in ("", one.stream) and is_news(one.last_us, now)]
        found[incarnation] = merged_key_functions(late)
    return found


def _reported(known: Catalog, book: LoadBook) -> dict[IncarnationId, list[inspection.IntervalLoad]]:
    """Return, by incarnation, the loads with failures that present owners reported."""
    found: dict[IncarnationId, list[inspection.IntervalLoad]] = {}
    for journal, load in book.troubled:
        if not (load.stopped or load.absence or load.HasField("failures")):
            continue
        incarnation = incarnation_of_journal(journal)
        interval_map = known.maps.get(incarnation)
        interval = (
            None if interval_map is None or known.is_damaged(interval_map.name) else interval_map.of_journal(journal)
        )
        if interval is not None and interval.HasField("owner") and interval.sequencer == load.sequencer:
            found.setdefault(incarnation, []).append(load)
    return found


def _of_computation(
    record: catalog.TopologyRecord,
    computation: str,
    loads: list[inspection.IntervalLoad],
    key_functions: list[inspection.KeyFunctionFailure],
    now: int,
    awaited_for: Duration,
) -> Iterator[wire.ComputationFailures]:
    failures = merged(load.failures for load in loads)
    patient = [one for one in failures.awaited if now - one.since_us >= awaited_for]
    del failures.awaited[:]
    failures.awaited.extend(patient)
    failures.key_functions.extend(key_functions)
    stopped = next((load.stopped for load in loads if load.stopped), "")
    absence = next((load.absence for load in loads if load.absence), "")
    blocked = bool(absence) or blocks(failures, stopped) or keys_wait(failures)
    if blocked or failed_lately(failures, now):
        topology = record.spec.name
        name, hint = f"{topology}/{computation}", _rollback_hint(record, failures, absence)
        part = connector_parts(record.spec).get(computation, wire.CONNECTOR_PART_UNSPECIFIED)
        missing = f"{absence_text(name, absence)}{'; ' if hint else ''}{hint}"
        text = missing if absence else computation_text(name, failures, stopped, now, hint, part)
        yield wire.ComputationFailures(
            topology=topology,
            computation=computation,
            text=text,
            failures=failures,
            stopped=stopped,
            blocks=blocked,
            absence=absence,
        )
