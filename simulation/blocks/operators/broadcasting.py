"""Entries for joins with a broadcast table: each record meets the row of its own key there."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from simulation.blocks.operators.base import Flow, operator, paired
from simulation.blocks.operators.joining import JoinAsOf, JoinLatest
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
    def draw(self, chance: Random) -> list[Any]:
        return [True]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        _join(flow, as_of=True)
