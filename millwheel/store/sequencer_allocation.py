"""Blocks of sequencers: no number is drawn twice, even after etcd was restored from an older snapshot (G3, 6.2).

The coordinator's counter (``catalog_keys.SEQUENCER``) holds the last drawn number. It orders all draws. A snapshot of
etcd sets the counter back, so the counter alone cannot prevent repetition. The process that draws first reserves a
block of numbers in the store: a fence on a journal without entries, which only rises. A draw

1. takes a number of a block that the same process reserved, and that it has not taken before,
2. which is larger than the counter, and
3. writes the number to the counter, in a transaction that compares the counter's revision.

Invariant: when a number is drawn, the fence is already at that number or above. A block begins above the fence that was
read. So a block that is reserved after a restore begins above every number ever drawn. Each term of a master and each
draw of an authority candidate reserves a block of its own.

An example around a restore, with blocks of 100,000:

====================================================  =======  =======
what happens                                          counter  fence
====================================================  =======  =======
a master reads fence 0, and fences 100,000                  0  100,000
it draws 1 to 57                                           57  100,000
*etcd's snapshot is taken*                                 57  100,000
it draws 58 to 90                                          90  100,000
etcd is lost, and restored from the snapshot               57  100,000
the next master reads fence 100,000, fences 200,000        57  200,000
it draws 100,001: above the counter, in its own block  100,001 200,000
====================================================  =======  =======

The numbers 58 to 90 are not drawn again, although the counter no longer shows them.

Why no number repeats:

- Two draws from one life of the coordinator: by 2 and 3, the later number is larger.
- Two draws with a restore between them, from different blocks: blocks end at multiples of the block size, and a fence
  succeeds only for a larger value. So different blocks have no number in common.
- The same with one block: its process was paused during the restore. By 1, it continues above its earlier numbers.

A fence of unknown outcome reserves nothing. At worst its block is skipped.

Two processes may get the same block in one case only. Both read fence 0, and fence 100,000. The first one's fence
takes effect. The answer to the second one's is lost, so the store repeats it, finds 100,000 in the journal, and takes
that for the second one's success. Within one life of the coordinator the counter keeps the two apart: a draw compares
the counter's revision.

What could break it: two such processes, both paused while etcd is restored, or a restore of the store alone. So
``docs/operations.md`` has all daemons stopped first. A counter that is set back without a restart of the daemons also
leaves masters with numbers below those of others. Journals refuse such owners (6.2), so nothing is lost.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

from millwheel.store.contract import JournalExistsError, JournalMissingError, SequencerRefusedError, StateStore

__all__ = ["SequencerBlock", "reserve_sequencers"]

_JOURNAL: Final = "cluster.drawn"
"""The sequencer of this journal is an upper bound of all drawn numbers. No incarnation id ends in a word."""

_BLOCK_SIZE: Final = 100_000
"""Larger than the count of numbers in one transaction: 1 MiB, and at least 16 bytes of it for each number.

All processes of a cluster must have the same size. Otherwise blocks overlap.
"""


class SequencerBlock(NamedTuple):
    """Numbers that one process may draw, from ``first`` to ``last``."""

    first: int
    last: int


async def reserve_sequencers(store: StateStore, above: int) -> SequencerBlock:
    """Reserve a block of numbers above ``above``, and above every number that was ever drawn.

    Raises StoreError if the outcome is unknown. Then no number of the block may be drawn.
    """
    try:
        remembered = (await store.read_head(_JOURNAL)).sequencer
    except JournalMissingError:
        remembered = 0
        with suppress(JournalExistsError):
            await store.create_journal(_JOURNAL)
    while True:
        below = max(remembered, above)
        last = (below // _BLOCK_SIZE + 1) * _BLOCK_SIZE
        try:
            await store.fence(_JOURNAL, last)
        except SequencerRefusedError as error:
            remembered = error.sequencer  # another process has reserved a block in the meantime
        else:
            return SequencerBlock(below + 1, last)
