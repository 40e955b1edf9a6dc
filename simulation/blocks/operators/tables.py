"""The entry for the join of two tables, whose records are kept for ever or for a time."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from simulation.blocks.operators.base import SPANS, Flow, Operator, Row, duration, operator, paired
from simulation.blocks.operators.joining import OUTER, pair_of, sides_of

__all__: list[str] = []

Pair = tuple[Row | None, Row | None]


@operator("join tables")
class _JoinTables(Operator):
    """The joined records of each side get newer, up to the newest ones. With a time, a side is let go of after it."""

    certain = False

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice(OUTER), chance.choice((None, *SPANS))]

    def forgets(self, arguments: list[Any]) -> bool:
        return arguments[1] is not None

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        outer, keep = arguments
        left, right = flow.sides()
        left.join_tables(flow.name, right, paired, outer=outer, keep=duration(keep), **flow.options)

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        outer, keep = arguments
        left, right = sides_of(rows)
        both: list[Pair] = [(one, other) for one in left for other in right]
        both += [(one, None) for one in left if outer in ("left", "both")]
        both += [(None, one) for one in right if outer in ("right", "both")]
        possible = {pair_of(*one, max(row.at for row in one if row))[:4]: one for one in both}
        if unknown := [one for one in found if one[:4] not in possible]:
            yield f"pairs of tables from nowhere: {unknown}"
            return
        pairs = [possible[one[:4]] for one in found]
        if len(set(pairs)) != len(pairs):
            yield f"tables have results without a change: {found}"
        for side in (0, 1):
            yield from _disorder(pairs, side, keep)
        yield from _missing(pairs, (left, right), outer, keep)


def _disorder(pairs: list[Pair], side: int, keep: int | None) -> Iterator[str]:
    """Within a side, a record is replaced by a newer one. It goes only when its time is over."""
    held: Row | None = None
    for pair in pairs:
        one, other = pair[side], pair[1 - side]
        if one is not None and held is not None and one.rank < held.rank:
            yield f"older records of side {side} came after newer ones: {pairs}"
        if one is None and held is not None and other is not None and (keep is None or other.at < held.at + keep):
            yield f"record {held} of side {side} was let go of before {other}"
        held = one or held


def _missing(pairs: list[Pair], sides: tuple[list[Row], list[Row]], outer: str, keep: int | None) -> Iterator[str]:
    """The newest records of both sides meet, unless one is let go of before the other. An outer one has a result."""
    newest = [max(side, key=lambda row: row.rank, default=None) for side in sides]
    left, right = newest
    if left and right and (keep is None or abs(left.at - right.at) < keep) and (left, right) not in pairs:
        yield f"the newest records {newest} have not met: {pairs}"
    for side, name in enumerate(("left", "right")):
        if newest[side] and outer in (name, "both") and newest[side] not in [pair[side] for pair in pairs]:
            yield f"the newest record of side {side} has no result: {newest[side]}"
