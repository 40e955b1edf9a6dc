"""The expected results of operators, computed step by step from the injected records alone (G1).

Where a step diverts late records, the others are exactly those that it processed. So its results are known, or what
must hold of them in every order of arrival. Where late records may have been processed or not, each result has records
of its key.

A record that is late at its stream may be on time for a new owner of the first step. Then it is on time at all later
steps, too (G14). So a record that was not diverted is in the results. Which rows were late at their stream, a judge
knows by ``Row.late``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from simulation.blocks import OPERATORS, PIPELINE, Item, Row
from simulation.plan import Plan

__all__ = ["pipeline_differences"]

Sunk = Mapping[str, Mapping[int, tuple[int, Item]]]


def pipeline_differences(plan: Plan, sunk: Sunk) -> Iterator[str]:
    """Wrong or missing results of operators."""
    for node in plan.nodes:
        if node["kind"] == PIPELINE:
            steps = " > ".join(name for name, *_ in node["arguments"])
            yield from (f"{node['name']}, {steps}: {difference} (G1)" for difference in _differences(plan, node, sunk))


def _differences(plan: Plan, node: dict[str, Any], sunk: Sunk) -> Iterator[str]:
    rows, late = _injected(plan, node)
    output, *aside = node["outputs"]
    diverted = Counter(one for stream in aside for _, item in sunk.get(stream, {}).values() for one in item.ids)
    if wrong := {number: count for number, count in diverted.items() if number not in late or count > 1}:
        yield f"records {wrong} were diverted, and were in time, or come again"
    rows = [row for row in rows if row.ids[0] not in diverted]
    *before, last = node["arguments"]
    for name, field, arguments in before:
        groups = _by_key(rows, field)
        rows = [_sided(row) for group in groups.values() for row in OPERATORS[name].model(group, arguments)]
    name, field, arguments = last
    groups = _by_key(rows, field)
    found: dict[str, list[Row]] = defaultdict(list)
    for _, (at, item) in sorted(sunk.get(output, {}).items()):
        found[item.a].append(Row(at, tuple(item.ids), item.a, item.b, True))
    known = not plan.ending and (bool(aside) or not late or not OPERATORS[node["arguments"][0][0]].has_options)
    for key in sorted({*groups, *found}):
        if known:
            due = [row._replace(late=not late.isdisjoint(row.ids)) for row in groups.get(key, [])]
            yield from (f"key {key}: {wrong}" for wrong in OPERATORS[name].judge(due, found[key], arguments))
        elif not before and (foreign := _ids(found[key]) - _ids(groups.get(key, []))):
            yield f"key {key}: it has records of other keys, or from nowhere: {foreign}"


def _injected(plan: Plan, node: dict[str, Any]) -> tuple[list[Row], set[int]]:
    """The records that a node reads, and those of them that may be late."""
    rows, late, sides = [], set(), node["sources"]
    for reader in plan.readers:
        for one in reader.inputs if any(reader.stream in sources for sources in sides) else ():
            row = Row(one.timestamp, (one.number,), one.a, one.b, reader.stream in sides[0])
            rows.append(row if len(sides) > 1 else _sided(row))
            late.update([one.number] if one.late else [])
    return rows, late


def _sided(row: Row) -> Row:
    """A record of a stream that is divided by its ids."""
    return row._replace(left=sum(row.ids) % 2 == 0)


def _by_key(rows: list[Row], field: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        one = row if field == "a" else row._replace(a=row.b, b=row.a)
        groups[one.a].append(one)
    return groups


def _ids(rows: list[Row]) -> set[int]:
    return {one for row in rows for one in row.ids}
