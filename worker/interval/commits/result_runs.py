"""The results of panes as a run of a commit's entry (4.6, 6.1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millwheel.sdk.effects import ProducedColumns, Production
from millwheel.worker.interval.entry import ProductionRun

__all__ = ["Produced", "runs_of"]

_LEAST_RUN: Final = 8
"""Fewer results are rows: a run of them would save nothing."""

Produced = ProducedColumns | tuple[bytes, Sequence[Production]]
"""What many keys have produced together, or one key by itself."""


def runs_of(results: Sequence[Produced], position: int) -> tuple[list[ProductionRun], list[Produced]]:
    """The results at the beginning that have the stream and the targets of the first one, as a run, and the others.

    Invariant: it does not depend on which of them were made together. So traces, for which some are made by themselves,
    change no entry.

    Args:
        results: The results of a batch, in their order.
        position: That of the first one.
    """
    run: ProductionRun | None = None
    taken, left = 0, list[Produced]()
    for each in results:
        made = each if isinstance(each, ProducedColumns) else _as_columns(*each)
        if made is None:
            break
        if run is None:
            run = ProductionRun(position, made.stream, made.targets[0], [], [], [])
        count = _joining(run, made)
        if count:
            _extend(run, made, count)
            taken += 1
        if count < len(made.keys):
            if count:
                rest = made.keys[count:], made.values[count:], made.targets[count:]
                left.append(ProducedColumns(made.stream, made.timestamp, *rest))
            break
    if run is None or len(run.values) < _LEAST_RUN:
        return [], list(results)
    assert len(run.producers) == len(run.values), "no reader takes a run of columns of other lengths"
    return [run], [*left, *results[taken:]]


def _as_columns(key: bytes, productions: Sequence[Production]) -> ProducedColumns | None:
    """A result that was made by itself. None: other streams are derived from its stream."""
    if len(productions) != 1:
        return None
    (one,) = productions
    return ProducedColumns(one.stream, one.timestamp, [key], [one.value], [one.targets])


def _joining(run: ProductionRun, made: ProducedColumns) -> int:
    """How many of these productions, from the first one on, have the stream and the targets of the run."""
    targets, count = made.targets, len(made.targets)
    if made.stream != run.stream:
        return 0
    if targets.count(run.targets) == count:
        return count
    return next(at for at, each in enumerate(targets) if each != run.targets)


def _extend(run: ProductionRun, made: ProducedColumns, count: int) -> None:
    """Add the first ``count`` productions to the run."""
    run.producers.extend(made.keys[:count])
    run.values.extend(made.values[:count])
    number = count
    last = run.times[-1] if run.times else None
    if isinstance(last, tuple) and last[1] == made.timestamp:
        run.times.pop()
        number += last[0]
    run.times.append((number, made.timestamp))
