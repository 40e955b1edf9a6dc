"""Batches of Spark: the end of a task, and the ids of its rows (sections 5.2, 6.1.1)."""

from __future__ import annotations

from millwheel.injectors import batches
from simulation.mutations.base import rewriting

__all__: list[str] = []

_SEEDS = 300

rewriting(
    "tasks_unacked",
    "G1",
    "a task succeeds when every row of it is ACKed",
    batches.finish_task,
    "await injector.flush()",
    "pass",
    seeds=_SEEDS,
)

rewriting(
    "rows_of_their_driver",
    "G1",
    "a row's id says nothing of the driver that has sent it",
    batches.open_task,
    "source=BATCH_SOURCE",
    'source=f"{BATCH_SOURCE}-{sequencer}"',
    seeds=_SEEDS,
)
