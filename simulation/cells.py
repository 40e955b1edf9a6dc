"""The cells of a simulated Cassandra. Of two writes of a cell, the one with the larger write time wins.

A deletion also wins against a later write with a smaller write time. So mutations may be applied in any order, and
several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from simulation.cql import Condition, Statement, holds, schemas

__all__ = ["CellMutation", "CellTables", "Partition", "Place", "mutation_of"]

Place = tuple[str, tuple[Any, ...]]
"""Table, and the values of its partition key."""
Row = tuple[Any, ...]
"""The values of the clustering columns."""
Range = tuple[tuple[int, str, Any], ...]
"""The rows that a deletion covers: conditions (index of a clustering column, operator, value), which all must hold."""

_MARKER: Final = ""
"""The column that marks a row as inserted."""


@dataclass(slots=True)
class CellMutation:
    """Changes of one partition, which take effect together."""

    place: Place
    cells: list[tuple[Row | None, str, int, Any]] = field(default_factory=list)
    """Row (None: static), column, write time, value (None: deleted)."""
    deletions: list[tuple[Range, int]] = field(default_factory=list)


@dataclass(slots=True)
class Partition:
    """One partition. Each cell is (write time, value)."""

    static: dict[str, tuple[int, Any]] = field(default_factory=dict)
    rows: dict[Row, dict[str, tuple[int, Any]]] = field(default_factory=dict)
    deletions: dict[tuple[Any, ...], tuple[Range, int]] = field(default_factory=dict)

    def apply(self, mutation: CellMutation) -> None:
        """Apply a mutation. Newer cells stay."""
        for covered, stamp in mutation.deletions:
            self._delete(covered, stamp)
        for row, column, stamp, value in mutation.cells:
            if row is None:
                _put(self.static, column, stamp, value)
            elif not any(stamp <= deleted and _covers(where, row) for where, deleted in self.deletions.values()):
                _put(self.rows.setdefault(row, {}), column, stamp, value)

    def _delete(self, covered: Range, stamp: int) -> None:
        # A deletion replaces an earlier one if it differs only in reaching further.
        shape = (stamp, *((index, operator, None if operator == "<" else value) for index, operator, value in covered))
        before = self.deletions.get(shape)
        pairs = [] if before is None else zip(covered, before[0], strict=True)
        if all(value >= old for (_, operator, value), (_, _, old) in pairs if operator == "<"):
            self.deletions[shape] = (covered, stamp)
        for row in [row for row in self.rows if _covers(covered, row)]:
            cells = self.rows[row]
            for column in [column for column, (written, _) in cells.items() if written <= stamp]:
                del cells[column]
            if not cells:
                del self.rows[row]

    def value(self, column: str) -> Any:
        """The value of a static column, or None."""
        return self.static.get(column, (0, None))[1]

    def live(self, row: Row) -> bool:
        """Whether the row exists."""
        return any(value is not None for _, value in self.rows.get(row, {}).values())


class CellTables:
    """All partitions, as a majority read sees them."""

    def __init__(self) -> None:
        self.partitions: dict[Place, Partition] = {}

    def partition(self, place: Place) -> Partition:
        """The partition at ``place``; it is created if it does not exist."""
        found = self.partitions.get(place)
        if found is None:
            found = self.partitions[place] = Partition()
        return found

    def select(self, statement: Statement, values: Sequence[Any], seen: Callable[[Place], None]) -> list[Row]:
        """The rows of a SELECT. ``seen`` is called with each place before it is read."""
        schema = schemas()[statement.table]
        conditions = {one.column: one for one in statement.where if one.column in schema.partition}
        where = [one for one in statement.where if one.column not in schema.partition]
        found: list[Row] = []
        for key in _keys([conditions[column] for column in schema.partition], values):
            place = statement.table, key
            seen(place)
            if place in self.partitions:
                rows = self._rows(place, where, values)
                if statement.grouped:
                    rows = iter({row[: len(statement.columns)]: row for row in rows}.values())
                found += [_read(statement.columns, place, row, self.partitions[place]) for row in rows]
        return found if statement.limit is None else found[: statement.limit.of(values)]

    def _rows(self, place: Place, where: list[Condition], values: Sequence[Any]) -> Iterator[Row]:
        partition, clustering = self.partitions[place], schemas()[place[0]].clustering
        asked = [(clustering.index(one.column), one.operator, one.term.of(values)) for one in where]
        for row in sorted(partition.rows):
            if partition.live(row) and all(holds(operator, row[index], value) for index, operator, value in asked):
                yield row


def mutation_of(statement: Statement, values: Sequence[Any], stamp: int) -> CellMutation:
    """The changes of a statement. Its write time is ``stamp``, unless the statement has its own."""
    schema = schemas()[statement.table]
    stamp = stamp if statement.stamp is None else statement.stamp.of(values)
    sets = {column: term.of(values) for column, term in statement.sets}
    equal = {one.column: one.term.of(values) for one in statement.where if one.operator == "="} | sets
    place = statement.table, tuple(equal[column] for column in schema.partition)
    mutation = CellMutation(place)
    row = tuple(equal[column] for column in schema.clustering if column in equal)
    whole = row if len(row) == len(schema.clustering) else None
    if statement.kind == "delete" and not statement.columns:
        indexes = {column: index for index, column in enumerate(schema.clustering)}
        clustered = [one for one in statement.where if one.column in indexes]
        covered = tuple((indexes[one.column], one.operator, one.term.of(values)) for one in clustered)
        mutation.deletions.append((covered, stamp))
        return mutation
    for column in statement.columns or [one for one in sets if one not in (*schema.partition, *schema.clustering)]:
        at = None if column in schema.static else whole
        assert at is not None or column in schema.static, f"{column} of {statement.table} belongs to no row"
        mutation.cells.append((at, column, stamp, sets.get(column)))
    if statement.marks_row and whole is not None:
        mutation.cells.append((whole, _MARKER, stamp, True))
    return mutation


def _put(cells: dict[str, tuple[int, Any]], column: str, stamp: int, value: Any) -> None:
    held = cells.get(column)
    # Of two cells with the same write time, a deletion wins; otherwise the larger value wins.
    if held is None or held[0] < stamp or (held[0] == stamp and held[1] is not None and _stands(value, held[1])):
        cells[column] = (stamp, value)


def _stands(value: Any, held: Any) -> bool:
    return value is None or bool(value > held)


def _covers(covered: Range, row: Row) -> bool:
    return all(holds(operator, row[index], value) for index, operator, value in covered)


def _keys(conditions: list[Condition], values: Sequence[Any]) -> list[tuple[Any, ...]]:
    keys: list[tuple[Any, ...]] = [()]
    for one in conditions:
        asked = one.term.of(values)
        keys = [(*key, value) for key in keys for value in (asked if one.operator == "IN" else [asked])]
    return keys


def _read(columns: Sequence[str], place: Place, row: Row, partition: Partition) -> Row:
    schema = schemas()[place[0]]
    known = {**dict(zip(schema.partition, place[1], strict=True)), **dict(zip(schema.clustering, row, strict=True))}
    cells = partition.rows[row]
    return tuple(
        known[column]
        if column in known
        else partition.value(column)
        if column in schema.static
        else cells.get(column, (0, None))[1]
        for column in columns
    )
