"""Duplicate prevention of one interval (6.1.1; design §8): a pure state machine, with no I/O and no clock.

One :class:`Dedup` belongs to one owned interval. The interval core drives it so::

    dedup = Dedup(interval, journal)                           # or Dedup.restore(interval, journal, bases), then replay
    verdict = dedup.check(ids, keys, timestamps, sender)       # judges; fresh records become pending
    ... verdict.outcome is JUDGED:
        verdict.all_fresh or verdict.fresh                     # run the hooks of these
        verdict.duplicates                                     # ACK now
        verdict.waiting                                        # refuse: their first copy is not committed yet
        verdict.unsure                                         # read verdict.segments, then resolve()
    dedup.resolve(verdict, blobs) -> Resolution                # blobs: what was read, by segment
    delta = dedup.take([(verdict, None), (other, [0, 3])])     # the ids that one entry consumes; None: all fresh ones
    entry = ... delta.to_wire() ...                            # a MessagePack-able list for the journal entry
    dedup.committed(delta)                                     # in the order of the takes
    dedup.abandon(verdict, indexes | None)                     # fresh records given up (refused as full)
    dedup.admit(sequence); dedup.retire(sequence)              # after UNKNOWN_SEQUENCE, after the catalog's news
    dedup.retire_injector(origin); dedup.retire_query(query)   # by an operator's word
    dedup.advance(computation, watermark, slack, sequencers)   # an authority broadcast: collects opaque ids
    for sealed in dedup.seal(): ...                            # write sealed.ids and sealed.filter as base parts,
        dedup.segment_stored(sealed.name)                      # then say so
    snapshot = dedup.snapshot()                                # blobs to store, and the segments that must stay
    Dedup.inherit(interval, journal, parents)                  # a child, from its sealed parents restored and replayed
    dedup.replay(IdDelta.from_wire(w))                         # at takeover, each entry after the snapshot, in order

The contract with the caller is stated in docs/decisions/0002-duplicates.md. With exactly-once switched
off for a computation (6.1.3) the core does not call any of it.
"""

from millwheel.worker.dedup.dedup import Counts, Dedup
from millwheel.worker.dedup.delta import IdDelta
from millwheel.worker.dedup.ids import ID_BYTES, BatchIds, DeliveryIds, OpaqueIds, PositionIds, Sender, split_ids
from millwheel.worker.dedup.segments import SegmentSealed
from millwheel.worker.dedup.snapshot import Snapshot
from millwheel.worker.dedup.verdict import DedupError, Outcome, Resolution, Verdict

__all__ = [
    "ID_BYTES",
    "BatchIds",
    "Counts",
    "Dedup",
    "DedupError",
    "DeliveryIds",
    "IdDelta",
    "OpaqueIds",
    "Outcome",
    "PositionIds",
    "Resolution",
    "SegmentSealed",
    "Sender",
    "Snapshot",
    "Verdict",
    "split_ids",
]
