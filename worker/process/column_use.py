"""How the records of computations run in this process: by columns, many at a time, or one by one, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.worker.interval import IntervalCore
from millwheel.worker.process.tallies import ComputationName

__all__ = ["columns_of"]

_OFF: Final = (
    "its worker keeps no windows by columns: worker.columns is false (start-dev: --no-columns), or the cluster's "
    "format is below 3"
)


def columns_of(cores: Mapping[ComputationName, IntervalCore]) -> Iterator[wire.ComputationColumns]:
    """How the records of each computation run. ``cores``: an interval of each."""
    for (topology, computation), core in sorted(cores.items(), key=lambda item: item[0]):
        program = core.state.program
        found = wire.ComputationColumns(
            topology=topology, computation=computation, in_batches=program.batches is not None
        )
        if not found.in_batches:
            found.by_records = program.columns.by_hooks or ("" if core.state.column_windows is not None else _OFF)
        if not found.by_records:
            for stream, why in sorted(program.columns.by_values.items()):
                found.inputs.add(stream=stream, by_values=why)
        yield found
