"""Garbage collection after cancelled topologies: first the records go, then what they named.

An interval map is garbage once no live topology and no log refers to its incarnation. Invariant: garbage stays
garbage, because only a record written together with its map refers to an incarnation. So a master that was deposed
without notice may still drop journals and state of garbage.

A log record is different. It is deleted in a separate transaction, and only that turns its map into garbage. A
stream's name may be re-created. So its injectors are forgotten up to the sequencers of its earlier incarnation only.
"""

from __future__ import annotations

from millwheel.master.assignment import release
from millwheel.master.change_plan import ChangePlan, PlanBuilder
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import injector_group
from millwheel.model.time import Timestamp
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["collect_garbage", "drop_retired", "forget_cancelled", "forget_queries", "retire_streams"]


def retire_streams(known: Catalog, most: int, unusable: int = 0) -> ChangePlan:
    """Forget the logs and injectors of up to ``most`` streams that no live topology declares or produces any more.

    The authority forgets the injectors' watermarks first. A later stream of that name starts without them.
    """
    streams = known.streams()
    known.check_readable(keys.SEQUENCER)
    builder = PlanBuilder(known, unusable)
    forgotten: dict[str, int] = {}
    for stream, log in sorted(known.logs.items()):
        if stream not in streams and most > 0 and keys.log_key(stream) not in known.damaged:
            most -= 1
            builder.delete(keys.log_key(stream))
            release(known, log.incarnation, builder)
    for stream, process in sorted(known.injectors):
        if stream not in streams and most > 0 and keys.injector_key(stream, process) not in known.damaged:
            most -= 1
            builder.delete(keys.injector_key(stream, process))
            # A process that opens the re-created stream gets a sequencer larger than any number drawn until now.
            forgotten[injector_group(stream)] = builder.drawn_before
    return builder.plan(drop_injectors=tuple(sorted(forgotten.items())))


def forget_cancelled(known: Catalog, before: Timestamp) -> ChangePlan:
    """Forget topologies cancelled before ``before``. They were kept only for listing."""
    builder = PlanBuilder(known)
    for name, record in known.topologies.items():
        overdue = record.state == catalog.TOPOLOGY_STATE_CANCELLED and record.state_changed_at_us < before
        if overdue and not builder.is_full and keys.topology_key(name) not in known.damaged:
            builder.delete(keys.topology_key(name))
    return builder.plan()


def forget_queries(known: Catalog, before: Timestamp) -> ChangePlan:
    """Forget the cursors of queries retired before ``before``. Until then receivers can still read the mark."""
    builder = PlanBuilder(known)
    for query, retired_at in sorted(known.retired_queries.items()):
        if retired_at < before and not builder.is_full and keys.batch_key(query) not in known.damaged:
            builder.delete(keys.batch_key(query))
    return builder.plan()


def drop_retired(known: Catalog, most: int) -> ChangePlan:
    """Drop up to ``most`` journals of parents that no child needs any more, then the records that retire them."""
    journals = tuple(sorted(one for one in known.retired if keys.retired_key(one) not in known.damaged)[:most])
    builder = PlanBuilder(known)
    for journal in journals:
        builder.delete(keys.retired_key(journal))
    return builder.plan(drop_journals=journals)


def collect_garbage(known: Catalog, most: int) -> ChangePlan:
    """Drop journals and state of unreferenced incarnations, then up to ``most`` chunks of their maps.

    An incarnation's state goes with its last chunk. While a chunk remains, the catalog shows the remaining work.
    """
    referred = {log.incarnation for log in known.logs.values()}
    for _, record in known.live_topologies():
        referred.update(record.incarnations.values())
        referred.update(removed.incarnation for removed in record.removed)
    garbage = sorted(one for one in set(known.maps) - referred if not known.is_damaged(one))
    builder = PlanBuilder(known)
    journals: dict[str, None] = {}
    forgotten = []
    for incarnation in garbage:
        chunks = known.maps[incarnation].chunks
        for chunk in chunks[:most]:
            builder.delete(keys.chunk_key(incarnation, chunk.number))
            for interval in chunk.intervals:
                journals.update(dict.fromkeys([interval.journal, *(parent.journal for parent in interval.parents)]))
        if len(chunks) <= most:
            forgotten.append(incarnation)
        most -= len(chunks)
        if most <= 0:
            break
    return builder.plan(drop_journals=tuple(journals), drop_incarnations=tuple(forgotten))
