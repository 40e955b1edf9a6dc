"""The minimum over the members of a group (7.2; G7, G13).

Each member has a *slot* with its watermark. Slots are in blocks, and blocks are in rows of blocks. A block and a row
each have their own minimum. A change touches one slot, and marks its block only if it may have changed the block's
minimum. The next question reads the marked blocks, and no others.

A heap would keep replaced watermarks until they reach its top. To drop 100,000 of them, it stops the shard for tens of
milliseconds (:class:`~millwheel.model.watermarks.MinTracker`). Here nothing is left to drop.
"""

from __future__ import annotations

from typing import Final

from millwheel.model.time import MAX_TIMESTAMP

__all__ = ["SlotMinimum"]

_BLOCK: Final = 64
"""The slots of a block, and the blocks of a row. 100,000 members have 1,563 blocks, in 25 rows."""


class SlotMinimum:
    """Watermarks in numbered slots, and the smallest of them.

    Invariant: an unmarked block's minimum is that of its slots, and a row's minimum is that of its blocks' minima. A
    free slot has MAX_TIMESTAMP, which holds nothing back.

    The cost has a bound (G13). A change costs the same for any number of slots. A question reads one block for each
    change since the last question at most, then their rows, then the minima of the rows. Memory has one slot for each
    of the most members at any time.
    """

    __slots__ = ("_blocks", "_free", "_least", "_marked", "_rows", "_slots")

    def __init__(self) -> None:
        self._slots: list[int] = []
        self._blocks: list[int] = []
        """The minimum of each block."""
        self._rows: list[int] = []
        """The minimum of each row of blocks."""
        self._least: int = MAX_TIMESTAMP
        """The minimum of the rows."""
        self._marked: set[int] = set()
        """The blocks whose minimum may have changed."""
        self._free: list[int] = []

    def add(self, watermark: int) -> int:
        """Give ``watermark`` a slot, and return its number."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._slots)
            self._slots.append(MAX_TIMESTAMP)
            if slot % _BLOCK == 0:
                self._blocks.append(MAX_TIMESTAMP)
            if slot % (_BLOCK * _BLOCK) == 0:
                self._rows.append(MAX_TIMESTAMP)
        self.set(slot, watermark)
        return slot

    def set(self, slot: int, watermark: int) -> None:
        """Replace the watermark of a slot. It may be smaller than before."""
        slots, block = self._slots, slot // _BLOCK
        before, slots[slot] = slots[slot], watermark
        smallest = self._blocks[block]
        if before == smallest or watermark < smallest:
            self._marked.add(block)

    def free(self, slot: int) -> None:
        """Take the watermark of a slot away. A later :meth:`add` gives the slot to another one."""
        self.set(slot, MAX_TIMESTAMP)
        self._free.append(slot)

    def least(self) -> int:
        """The smallest watermark; MAX_TIMESTAMP if there is none."""
        if self._marked:
            self._read_marked()
        return self._least

    def _read_marked(self) -> None:
        slots, blocks, rows = self._slots, self._blocks, self._rows
        changed: set[int] = set()
        for block in self._marked:
            first = block * _BLOCK
            smallest = min(slots[first : first + _BLOCK])
            if smallest != blocks[block]:
                blocks[block] = smallest
                changed.add(block // _BLOCK)
        self._marked.clear()
        for row in changed:
            first = row * _BLOCK
            rows[row] = min(blocks[first : first + _BLOCK])
        if changed:
            self._least = min(rows)
