"""Entries for joins with a broadcast table: each record meets the row of its own key there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from millwheel.model.time import MAX_TIMESTAMP
from simulation.blocks.operators.base import Flow, Row, compared, operator, paired
from simulation.blocks.operators.joining import JoinAsOf, JoinLatest, pair_of, sides_of
from simulation.blocks.records import Item

__all__: list[str] = []

_COPIES = 3


def _same(state: int, item: Item) -> tuple[int, list[Item]]:
    return state, [item]


def _join(flow: Flow, as_of: bool) -> None:
    """Late rows are diverted before the table. In the table, a late row would hold only from a later time on."""
    left, right = flow.sides()
    rows = right.update(f"{flow.name}-rows", 0, _same, Item, state=int, **flow.options).key_by("a")

    def met(item: Item, table: Mapping[str, Item]) -> Item:
        return paired(item, table.get(item.a))

    left.join_broadcast(flow.name, rows, met, Item, as_of=as_of, copies=_COPIES, **flow.options)


@operator("join broadcast")
class _JoinBroadcast(JoinLatest):
    """Its records keep their order by key, and the rows of a key come in one order."""

    def draw(self, chance: Random) -> list[Any]:
        return [True]  # the function is called for a record without a row, too

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        _join(flow, as_of=False)


@operator("join broadcast as of")
class _JoinBroadcastAsOf(JoinAsOf):
    """A row that is late at its stream may be on time for a new owner of the step that diverts late rows (G14).

    Then it is late at the table, which has seen the watermark of the former owner. So it holds from a later time on, or
    never. The first record that meets it shows since when. No other row holds from another time, or for an older one.
    """

    def draw(self, chance: Random) -> list[Any]:
        return [True]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        _join(flow, as_of=True)

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        met: dict[tuple[int, ...], int] = {}
        for one in sorted(found):
            left_ids = int(one.b.partition("+")[0])
            met.setdefault(one.ids[left_ids:], one.at)
        left, right = sides_of(rows)
        since = {row: max(row.at, met.get(row.ids, MAX_TIMESTAMP)) if row.late else row.at for row in right}

        def joined(record: Row) -> Row:
            holding = [row for row in right if since[row] <= record.at]
            row = max(holding, key=lambda row: (row.at, since[row], row.rank), default=None)
            return pair_of(record, row, record.at)

        yield from compared(map(joined, left), found)
