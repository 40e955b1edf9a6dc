"""What cancelled topologies leave behind, and how it goes: records first, then what they named.

An interval map is litter once no live topology and no log refers to its incarnation. That never changes
back, for an incarnation is referred to only by a record written together with its map: so journals and
state of litter may be dropped by a master that, unknown to itself, has just been deposed. A log record is
different: it goes in a transaction of its own, and only that makes litter of its map. And a stream's name may
come back: its injectors are forgotten up to the sequencers of its earlier life, and no further.
"""

from __future__ import annotations

from millwheel.core import catalog_keys as keys
from millwheel.core.catalog import Catalog, injector_sender
from millwheel.core.time import Timestamp
from millwheel.master.assignment import release
from millwheel.master.draft import Draft, Plan
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["collect_litter", "drop_retired", "forget_cancelled", "forget_queries", "retire_streams"]


def retire_streams(known: Catalog, most: int) -> Plan:
    """Forget the logs and injectors of up to ``most`` streams that no live topology knows any more.

    The authority forgets the injectors' watermarks first: who declares a stream of that name later begins anew.
    """
    streams = known.streams()
    known.check_readable(keys.SEQUENCER)
    draft = Draft(known)
    silenced: dict[str, int] = {}
    for stream, log in sorted(known.logs.items()):
        if stream not in streams and most > 0 and keys.log_key(stream) not in known.damaged:
            most -= 1
            draft.delete(keys.log_key(stream))
            release(known, log.incarnation, draft)
    for stream, process in sorted(known.injectors):
        if stream not in streams and most > 0 and keys.injector_key(stream, process) not in known.damaged:
            most -= 1
            draft.delete(keys.injector_key(stream, process))
            # Whoever opens the stream in its next life is given a larger one than any that was drawn until now.
            silenced[injector_sender(stream)] = known.drawn
    return draft.plan(silence=tuple(sorted(silenced.items())))


def forget_cancelled(known: Catalog, before: Timestamp) -> Plan:
    """Forget the topologies that were cancelled before ``before``: they were kept only to be listed."""
    draft = Draft(known)
    for name, record in known.topologies.items():
        overdue = record.state == catalog.TOPOLOGY_STATE_CANCELLED and record.state_changed_at_us < before
        if overdue and not draft.is_full and keys.topology_key(name) not in known.damaged:
            draft.delete(keys.topology_key(name))
    return draft.plan()


def forget_queries(known: Catalog, before: Timestamp) -> Plan:
    """Forget the cursors of queries that were retired before ``before``: until then receivers could hear of it."""
    draft = Draft(known)
    for query, retired_at in sorted(known.retired_queries.items()):
        if retired_at < before and not draft.is_full and keys.batch_key(query) not in known.damaged:
            draft.delete(keys.batch_key(query))
    return draft.plan()


def drop_retired(known: Catalog, most: int) -> Plan:
    """Drop up to ``most`` journals of parents that no child needs any more, then the word that they are to go."""
    journals = tuple(sorted(one for one in known.retired if keys.retired_key(one) not in known.damaged)[:most])
    draft = Draft(known)
    for journal in journals:
        draft.delete(keys.retired_key(journal))
    return draft.plan(drop_journals=journals)


def collect_litter(known: Catalog, most: int) -> Plan:
    """Drop journals and state of incarnations that nothing refers to, then up to ``most`` chunks of their maps.

    State goes with the last of an incarnation's chunks: as long as one is there, it is known what is left to be done.
    """
    referred = {log.incarnation for log in known.logs.values()}
    for _, record in known.live_topologies():
        referred.update(record.incarnations.values())
        referred.update(leaving.incarnation for leaving in record.leaving)
    litter = sorted(one for one in set(known.tables) - referred if not known.is_damaged(one))
    draft = Draft(known)
    journals: dict[str, None] = {}
    computations = []
    for incarnation in litter:
        chunks = known.tables[incarnation].chunks
        for chunk in chunks[:most]:
            draft.delete(keys.chunk_key(incarnation, chunk.number))
            for interval in chunk.intervals:
                journals.update(dict.fromkeys([interval.journal, *(parent.journal for parent in interval.parents)]))
        if len(chunks) <= most:
            computations.append(incarnation)
        most -= len(chunks)
        if most <= 0:
            break
    return draft.plan(drop_journals=tuple(journals), drop_computations=tuple(computations))
