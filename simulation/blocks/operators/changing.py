"""Entries for the step that takes back what no longer holds. A second step joins a retraction and its cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import millwheel as mw
from simulation.blocks.operators.base import (
    Flow,
    KeepingOperator,
    Row,
    duration,
    in_order,
    keyed_by_a,
    made,
    operator,
)
from simulation.blocks.records import Item

__all__: list[str] = []

_FIRST: Final = "1"
_AFTER: Final = "2"
"""A result of two records: the former one of the key, and the one that took it back."""


def _joined(former: Item | None, change: mw.Change[Item]) -> tuple[Item | None, list[Item]]:
    """Keep a retraction. The record that caused it comes next, because both steps have one key (G15)."""
    if change.weight < 0:
        return change.value, []
    items = [change.value] if former is None else [former, change.value]
    return None, [made(items, str(len(items)))]


class _Changing(KeepingOperator):
    """Each result has a record, and behind it the one that was taken back, unless the key was not known."""

    ordered = False

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        (keep,) = arguments
        changes = keyed_by_a(flow, self.ordered).changes(f"{flow.name}-changes", keep=duration(keep), **flow.options)
        changes.key_by("value.a").update(flow.name, None, _joined, Item, state=Item | None)


@operator("changes")
class _Changes(_Changing):
    """Some order of the key's records gives the results. None is forgotten while others of its time may come."""

    certain = False

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        (keep,) = arguments
        places = {row.ids: row for row in rows}
        known: list[Row] = []
        for one in found:
            former = known[-1].ids if one.b == _AFTER and known else ()
            new = places.pop(one.ids[len(former) :], None)
            if new is None or one.ids[: len(former)] != former or one.at != new.at or one.b not in (_FIRST, _AFTER):
                yield f"changes have {one} after {known[-1:]}"
                return
            if one.b == _FIRST:
                early = keep is None or any(one.at < row.at + keep for row in known)
                # A late record may be in time for a new owner, where the key was forgotten before.
                if known and early and not new.late:
                    yield f"changes forgot {known[-1]} at {one}"
                known = []
            elif not known:
                yield f"changes take back what was not there: {one}"
            known.append(new)
        if places:
            yield f"changes lack {sorted(places)}"


@operator("ordered changes")
class _OrderedChanges(_Changing):
    ordered = True
    repeats = True

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        (keep,) = arguments
        former: Row | None = None
        for row in in_order(rows):
            if former is not None and keep is not None and row.at >= former.at + keep:
                former = None
            if former is not None and (former.ids, former.b) == (row.ids, row.b):
                former = row  # an equal record changes nothing, and the key is known for longer
                continue
            ids = row.ids if former is None else (*former.ids, *row.ids)
            yield Row(row.at, ids, row.a, _FIRST if former is None else _AFTER, True)
            former = row
