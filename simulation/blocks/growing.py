"""A block whose state grows: it compares its collections, which are in pages, with copies in one value (G2)."""

from __future__ import annotations

from collections import Counter
from typing import Final

import millwheel as mw
from simulation.blocks.base import Block, number
from simulation.blocks.records import REMAINDERS, Item, Kept

__all__ = ["Keep"]

_MAX_ELEMENTS: Final = 25
"""The most elements: all of them are read at each record."""


class Keep(Block, mw.Computation[Item, Kept]):
    """Like :class:`Count`. It also adds each record to collections, empties them sometimes, and compares them."""

    def process_record(self, ctx: mw.Context[Kept], record: mw.Record[Item]) -> None:
        """Number the record and forward it."""
        self._compare(ctx)
        number(self, ctx, record)
        state = ctx.state
        if state.count % 11 == 0:
            count = state.count
            del ctx.state
            state.count = count
        if len(state.copies) == _MAX_ELEMENTS:
            self._remove_half(state)
        new = state.count
        state.copies.append(new)
        state.items.append(_text(new))
        state.found[str(new)] = new
        state.times.add(mw.Timestamp(new), new)
        state.seen.add(new)
        state.counts.add(new % REMAINDERS)

    def _remove_half(self, state: Kept) -> None:
        half, state.copies = state.copies[: _MAX_ELEMENTS // 2], state.copies[_MAX_ELEMENTS // 2 :]
        for one in half:
            state.items.popleft()
            del state.found[str(one)]
            state.seen.remove(one)
            state.counts.add(one % REMAINDERS, -1)
        state.times.remove_until(mw.Timestamp(state.copies[0]))

    def _compare(self, ctx: mw.Context[Kept]) -> None:
        state = ctx.state
        remainders = Counter(one % REMAINDERS for one in state.copies)
        if dict(state.counts) != remainders:
            self.complain(f"counts of key {ctx.key} are {dict(state.counts)}, and were {remainders} (G2)")
        for name, content in {
            "items": [*state.items],
            "found": [_text(one) for one in sorted(state.found.values())],
            "times": [_text(one) for _, one in state.times],
            "seen": [_text(one) for one in sorted(state.seen)],
        }.items():
            if content != [_text(one) for one in state.copies]:
                self.complain(f"{name} of key {ctx.key} are {content}, and were {state.copies} (G2)")


def _text(one: int) -> str:
    return f"{one} " * (one % 40)
