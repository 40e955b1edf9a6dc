"""Duplicate prevention of one interval (6.1.1): a pure state machine, with no I/O and no clock.

One :class:`Dedup` belongs to one owned interval. The interval core uses it as follows::

    dedup = Dedup(interval, journal)                           # or, and then replay:
    dedup = Dedup.restore(interval, journal, blobs, filters, batch_ids)
    verdict = dedup.check(ids, keys, timestamps, sender)       # checks a delivery; fresh records become pending
    ... verdict.outcome is CHECKED:
        verdict.all_fresh or verdict.fresh                     # run the hooks of these
        verdict.duplicates                                     # ACK now
        verdict.waiting                                        # refuse: their first copy is not committed yet
        verdict.unsure                                         # read verdict.segments, then resolve()
    dedup.resolve(verdict, blobs) -> Resolution                # blobs: the segments that were read, by name
    delta = dedup.take([(verdict, None), (other, [0, 3])])     # the ids that one entry consumes; None: all fresh ones
    entry = ... delta.to_wire() ...                            # a MessagePack-able list for the journal entry
    dedup.committed(delta)                                     # in the order of the takes
    dedup.abandon(verdict, indexes | None)                     # give up fresh records (refused as full)
    dedup.admit(sequence); dedup.retire(sequence)              # after UNKNOWN_SEQUENCE, after a change of the catalog
    dedup.retire_injector(injector); dedup.retire_query(query)   # when an operator retires them
    dedup.begin_life(group, floor)                             # the catalog shows a new life of an injected stream
    dedup.learn(computation, sequencers)                       # an authority broadcast: first its sequencers,
    dedup.advance(computation, watermark, slack)               # then its value, which collects opaque ids
    for sealed in dedup.seal(): ...                            # write sealed.ids and sealed.filter as base parts,
        dedup.segment_stored(sealed.name)                      # then report that they are stored
    snapshot = dedup.snapshot()                                # blobs to store, and the segments that must stay
    for query, batch, one in snapshot.batch_ids: ...           # further parts of the base: if one.part is None, store
        one.part = ...                                         # encode_batch_ids(query, batch, one.ids) as that part
    Dedup.inherit(interval, journal, parents)                  # a child, from its sealed parents restored and replayed
    dedup.replay(decode_delta(w))                              # at takeover, each entry after the snapshot, in order

docs/decisions/0002-duplicates.md states the contract with the caller. If exactly-once is switched off for a computation
(6.1.3), the core calls none of this.
"""

from millwheel.model.deliveries import ID_BYTES, BatchIds, DeliveryIds, OpaqueIds, PositionIds, Sender, split_ids
from millwheel.worker.dedup.decoding import decode_delta
from millwheel.worker.dedup.dedup import Dedup
from millwheel.worker.dedup.opaque import Resolution
from millwheel.worker.dedup.results import CheckOutcome, DedupError, DeliveryVerdict, IdDelta
from millwheel.worker.dedup.segments import SegmentSealed
from millwheel.worker.dedup.snapshot import DEDUP_PART, DedupSnapshot, encode_batch_ids

__all__ = [
    "DEDUP_PART",
    "ID_BYTES",
    "BatchIds",
    "CheckOutcome",
    "Dedup",
    "DedupError",
    "DedupSnapshot",
    "DeliveryIds",
    "DeliveryVerdict",
    "IdDelta",
    "OpaqueIds",
    "PositionIds",
    "Resolution",
    "SegmentSealed",
    "Sender",
    "decode_delta",
    "encode_batch_ids",
    "split_ids",
]
