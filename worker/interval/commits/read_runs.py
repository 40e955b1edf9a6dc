"""What sources have read as runs of a commit's entry (5.2, 6.1.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

from millwheel.sdk.context import Context
from millwheel.sdk.effects import ProducedRead, ProducedTable, Production
from millwheel.worker.interval.column_run import UnsentTable
from millwheel.worker.interval.entry import ProductionRun

__all__ = ["places_of_reads", "reads_in", "rows_behind", "runs_of_reads", "tables_in"]


def reads_in(contexts: Mapping[bytes, Context[Any]]) -> Iterator[tuple[bytes, ProducedRead]]:
    """What the hooks of a batch have produced at once and as values, with the producing key of each."""
    reads = ((key, context._read) for key, context in contexts.items())
    return ((key, read) for key, read in reads if isinstance(read, ProducedRead))


def tables_in(contexts: Mapping[bytes, Context[Any]], position: int) -> list[UnsentTable]:
    """What the hooks of a batch have produced as columns. ``position``: that of the first record.

    Invariant (G15): a key has one read in a commit. So it does not matter for its order that tables come behind runs.
    """
    found: list[UnsentTable] = []
    for key, context in contexts.items():
        if isinstance(read := context._read, ProducedTable):
            found.append(UnsentTable(position, key, read))
            position += len(read.values)
    return found


def places_of_reads(contexts: Mapping[bytes, Context[Any]]) -> dict[bytes, range]:
    """By key: the places of what it has produced at once, among all that is in runs and tables of its commit."""
    sizes = [(key, len(read.values)) for key, read in reads_in(contexts)]
    sizes += [(one.producer, len(one.table.values)) for one in tables_in(contexts, 0)]
    found: dict[bytes, range] = {}
    at = 0
    for key, size in sizes:
        found[key] = range(at, at + size)
        at += size
    return found


def runs_of_reads(reads: Iterable[tuple[bytes, ProducedRead]], position: int) -> list[ProductionRun]:
    """What the hooks of splits have read, as runs: one for neighbours of one stream with the same consumers.

    Invariant (G15): the records of a split keep their order, and come before all else that its hooks have produced.

    Args:
        reads: What was read, and from which split.
        position: That of the first record.
    """
    runs: list[ProductionRun] = []
    for _, some in groupby(reads, lambda one: _form(one[1])):
        runs.append(_run_of(list(some), runs[-1].positions.stop if runs else position))
    return runs


def _form(read: ProducedRead) -> Any:
    """The stream and the consumers of a read, with a key where that is the key of all records."""
    return read.stream, [(name, None if isinstance(keys, list) else keys) for name, keys in read.targets]


def _run_of(reads: Sequence[tuple[bytes, ProducedRead]], position: int) -> ProductionRun:
    """The run of some reads of one form."""
    first = reads[0][1]
    columns: list[Any] = [[read.targets[at][1] for _, read in reads] for at in range(len(first.targets))]
    targets = [
        (name, _joined(keys) if isinstance(keys[0], list) else keys[0])
        for (name, _), keys in zip(first.targets, columns, strict=True)
    ]
    return ProductionRun(
        position,
        first.stream,
        tuple(targets),
        [(len(read.values), key) for key, read in reads],
        _joined(read.values for _, read in reads),
        _joined(read.timestamps for _, read in reads),
    )


def _joined(columns: Iterable[Sequence[Any]]) -> list[Any]:
    return list(chain.from_iterable(columns))


def rows_behind(context: Context[Any], reads_in_runs: bool) -> Sequence[Production]:
    """The productions of a context that are in no run, in their order. ``reads_in_runs``: its read is in one."""
    others = context._productions or ()
    return others if context._read is None or reads_in_runs else [*context._read.productions(), *others]
