"""What sources have read as runs of a commit's entry (5.2, 6.1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millwheel.sdk.context import Context
from millwheel.sdk.effects import ProducedRead, Production
from millwheel.worker.interval.entry import ProductionRun

__all__ = ["produced_by", "rows_behind", "runs_of_reads"]


def runs_of_reads(contexts: Mapping[bytes, Context[Any]], position: int) -> list[ProductionRun]:
    """What the hooks of several splits have read, as runs: one for neighbours of one stream and with the same consumers.

    Invariant (G15): the records of a split keep their order, and come before all else that its hooks have produced.

    Args:
        contexts: By split: the contexts of a batch. What they have read is in the runs, and nothing else.
        position: That of the first record.
    """
    runs: list[ProductionRun] = []
    for key, context in contexts.items():
        read = context._read
        if read is None:
            continue
        if not runs or not _joins(runs[-1], read):
            at = runs[-1].positions.stop if runs else position
            targets = tuple((name, list(keys) if isinstance(keys, list) else keys) for name, keys in read.targets)
            runs.append(ProductionRun(at, read.stream, targets, [], [], []))
        else:
            for (_, known), (_, more) in zip(runs[-1].targets, read.targets, strict=True):
                if isinstance(known, list):
                    known += more
        runs[-1].producers.append((len(read.values), key))
        runs[-1].values.extend(read.values)
        runs[-1].times.extend(read.timestamps)
    return runs


def _joins(run: ProductionRun, read: ProducedRead) -> bool:
    """Whether a read has the stream and the consumers of a run, and its keys where these are those of all records."""
    return run.stream == read.stream and _form(run.targets) == _form(read.targets)


def _form(targets: Any) -> list[tuple[str, bytes | None]]:
    return [(name, None if isinstance(keys, list) else keys) for name, keys in targets]


def rows_behind(context: Context[Any], runs: Sequence[ProductionRun]) -> Sequence[Production]:
    """The productions of a context that are in no run, in their order. ``runs``: those of its batch."""
    others = context._productions or ()
    return others if context._read is None or runs else [*context._read.productions(), *others]


def produced_by(context: Context[Any]) -> int:
    """How many productions a context has."""
    return (0 if context._read is None else len(context._read.values)) + len(context._productions or ())
