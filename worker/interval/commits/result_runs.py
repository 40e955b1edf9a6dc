"""The results of panes as a run of a commit's entry (4.6, 6.1.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import Any, Final

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.packed_values import joined_values
from millwheel.sdk.effects import ProducedColumns, Production
from millwheel.worker.interval.entry import ProductionRun

__all__ = ["MIN_RUN", "Produced", "runs_of"]

MIN_RUN: Final = 8
"""Fewer results are rows: a run of them would save nothing."""

Produced = ProducedColumns | tuple[bytes, Sequence[Production]]
"""What many keys have produced together, or one key by itself."""


def runs_of(results: Sequence[Produced], position: int) -> tuple[list[ProductionRun], list[Produced]]:
    """The results at the beginning that have the stream and the consumers of the first one, as a run, and the others.

    Invariant: it does not depend on which of them were made together. So traces, for which some are made by themselves,
    change no entry.

    Args:
        results: The results of a batch, in their order.
        position: That of the first one.
    """
    taken = list[ProducedColumns]()
    for each in results:
        made = each if isinstance(each, ProducedColumns) else _as_columns(*each)
        if made is None or (taken and _form(made) != _form(taken[0])):
            break
        taken.append(made)
    if sum(len(made.values) for made in taken) < MIN_RUN:
        return [], list(results)
    return [_run_of(taken, position)], list(results[len(taken) :])


def _as_columns(key: bytes, productions: Sequence[Production]) -> ProducedColumns | None:
    """A result that was made by itself. None: other streams are derived from its stream."""
    if len(productions) != 1:
        return None
    (one,) = productions
    return ProducedColumns(one.stream, one.timestamp, [key], [one.value], one.targets)


def _form(made: ProducedColumns) -> tuple[str, list[IncarnationId]]:
    """The stream and the consumers."""
    return made.stream, [consumer for consumer, _ in made.targets]


def _run_of(results: Sequence[ProducedColumns], position: int) -> ProductionRun:
    """The run of some results of one form."""
    targets = tuple((consumer, _key_or_keys(results, at)) for at, (consumer, _) in enumerate(results[0].targets))
    producers, values = _joined(made.keys for made in results), joined_values([made.values for made in results])
    columns = producers, *(keys for _, keys in targets if isinstance(keys, list))
    assert all(len(each) == len(values) for each in columns), "no reader takes a run of columns of other lengths"
    times: list[int | tuple[int, int]] = []
    for time, alike in groupby(results, lambda made: made.timestamp):
        times.append((sum(len(made.values) for made in alike), time))
    return ProductionRun(position, results[0].stream, targets, producers, values, times)


def _keys_of(made: ProducedColumns, at: int) -> list[bytes]:
    """The keys of some results at one of their consumers."""
    keys = made.targets[at][1]
    return keys if isinstance(keys, list) else [keys] * len(made.values)


def _key_or_keys(results: Sequence[ProducedColumns], at: int) -> bytes | list[bytes]:
    """The keys of all results at one of their consumers. If they are the same, one stands for all, as for logs."""
    key = results[0].targets[at][1]
    if isinstance(key, bytes) and all(made.targets[at][1] == key for made in results):
        return key
    keys = _joined(_keys_of(made, at) for made in results)
    return keys[0] if keys[0] == keys[-1] and keys.count(keys[0]) == len(keys) else keys


def _joined(columns: Iterable[Sequence[bytes]]) -> list[Any]:
    return list(chain.from_iterable(columns))
