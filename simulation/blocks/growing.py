"""Blocks whose state grows: they compare their collections, which are in pages, with copies in one value (G2)."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, Final

import millwheel as mw
from simulation.blocks.base import Block, number
from simulation.blocks.records import REMAINDERS, Item, Kept, KeptMarked, KeptTwice, Marked

__all__ = ["Keep", "KeepMarked", "KeepTwice"]

_MAX_ELEMENTS: Final = 25
"""The most elements: all of them are read at each record."""


class _Keeping(Block):
    """Like :class:`Count`. It also adds each record to collections, empties them sometimes, and compares them."""

    version: ClassVar[int]

    def process_record(self, ctx: mw.Context[Any], record: mw.Record[Item]) -> None:
        """Number the record and forward it."""
        self._begin(ctx.state, ctx.state.count + 1)
        self._compare(ctx)
        number(self, ctx, record)
        state = ctx.state
        if state.count % 11 == 0:
            count = state.count
            del ctx.state
            state.count = count
            self._begin(state, count)
        if len(state.copies) == _MAX_ELEMENTS:
            self._remove_half(state)
        new = state.count
        state.copies.append(new)
        state.items.append(self._made(new))
        state.items[0] = state.items[0]
        state.found[str(new)] = new
        state.times.add(mw.Timestamp(new), new)
        if self.version == 0:
            state.seen.add(new)
        state.counts.add(new % REMAINDERS)

    def _begin(self, state: Any, first: int) -> None:
        """Note from which number on the elements are those of this version."""
        while self.version and len(state.began) < self.version:
            state.began.append(first)

    def _made(self, new: int) -> Any:
        return Marked(_text(new)) if self.version else _text(new)

    def _expected(self, state: Any, one: int) -> Any:
        """The element of a number, after the functions of the versions since then."""
        if not self.version:
            return _text(one)
        since = sum(first <= one for first in state.began)
        return Marked(_text(one), ["first", "second"][since : self.version])

    def _remove_half(self, state: Any) -> None:
        half, state.copies = state.copies[: _MAX_ELEMENTS // 2], state.copies[_MAX_ELEMENTS // 2 :]
        for one in half:
            state.items.popleft()
            del state.found[str(one)]
            if self.version == 0:
                state.seen.remove(one)
            state.counts.add(one % REMAINDERS, -1)
        state.times.remove_until(mw.Timestamp(state.copies[0]))

    def _compare(self, ctx: mw.Context[Any]) -> None:
        state = ctx.state
        remainders = Counter(one % REMAINDERS for one in state.copies)
        if dict(state.counts) != remainders:
            self.complain(f"counts of key {ctx.key} are {dict(state.counts)}, and were {remainders} (G2)")
        if (items := [*state.items]) != (expected := [self._expected(state, one) for one in state.copies]):
            self.complain(f"items of key {ctx.key} are {items}, and were {expected} (G2)")
        for name, content in {
            "found": sorted(state.found.values()),
            "times": [one for _, one in state.times],
            "seen": sorted(state.seen) if self.version == 0 else state.copies,
        }.items():
            if content != state.copies:
                self.complain(f"{name} of key {ctx.key} are {content}, and were {state.copies} (G2)")


class Keep(_Keeping, mw.Computation[Item, Kept]):
    """The first version."""

    version = 0


class KeepMarked(_Keeping, mw.Computation[Item, KeptMarked]):
    """A later version: a function converts its elements, and one collection is dropped."""

    version = 1


class KeepTwice(_Keeping, mw.Computation[Item, KeptTwice]):
    """The version after that, which may also follow on the first."""

    version = 2


def _text(one: int) -> str:
    return f"{one} " * (one % 40)
