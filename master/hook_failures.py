"""Which computations' hooks raise, or do not end, by what workers reported last. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from millwheel.core.catalog import ACTIVE_STATES, Catalog
from millwheel.core.time import Duration
from millwheel.master.load_book import LoadBook
from millwheel.rpc.hook_failures import AWAITED_SHOWN, blocks, computation_text, failed_lately, merged
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import inspection_pb2 as inspection

__all__ = ["hook_failures"]


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
    """The computations that have keys blocked, stand still, failed in the last minute, or await a hook for long.

    Args:
        known: the catalog. What earlier owners reported, or owners of what is paused, does not count.
        book: what workers reported.
        now: the wall time, in microseconds.
        topology: only computations of this topology; empty: all.
        computation: only those of this name; empty: all.
        stream: only consumers of this stream; empty: all.
        awaited_for: an asynchronous hook counts that has run for so long.
    """
    consumers = {one.incarnation for one in known.consumers(stream)} if stream else None
    reported = _reported(known, book)
    found: list[wire.ComputationFailures] = []
    for name, record in sorted(known.live_topologies()):
        if record.state not in ACTIVE_STATES or topology not in ("", name):
            continue
        for one, incarnation in sorted(record.incarnations.items()):
            wanted = computation in ("", one) and (consumers is None or incarnation in consumers)
            if wanted and incarnation in reported:
                found += _of_computation(name, one, reported[incarnation], now, awaited_for)
    return found


def _reported(known: Catalog, book: LoadBook) -> dict[str, list[inspection.IntervalLoad]]:
    """By incarnation, the loads of present owners that have a failure in them."""
    found: dict[str, list[inspection.IntervalLoad]] = {}
    for journal, told in book.intervals.items():
        load = told.load
        if not (load.stopped or load.HasField("failures")):
            continue
        incarnation = journal.rpartition(".j")[0]
        table = known.tables.get(incarnation)
        interval = None if table is None or known.is_damaged(table.name) else table.of_journal(journal)
        if interval is not None and interval.HasField("owner") and interval.sequencer == load.sequencer:
            found.setdefault(incarnation, []).append(load)
    return found


def _of_computation(
    topology: str, computation: str, loads: list[inspection.IntervalLoad], now: int, awaited_for: Duration
) -> Iterator[wire.ComputationFailures]:
    failures = merged(load.failures for load in loads)
    patient = [one for one in failures.awaited if now - one.since_us >= awaited_for]
    del failures.awaited[:]
    failures.awaited.extend(patient)
    stopped = next((load.stopped for load in loads if load.stopped), "")
    blocked = blocks(failures, stopped)
    if blocked or failed_lately(failures, now):
        text = computation_text(f"{topology}/{computation}", failures, stopped, now)
        yield wire.ComputationFailures(
            topology=topology,
            computation=computation,
            text=text,
            failures=failures,
            stopped=stopped,
            blocks=blocked,
        )
