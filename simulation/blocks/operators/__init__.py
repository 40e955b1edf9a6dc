"""The library's operators in simulated topologies. Each has one entry: how it is built, and a naive model of it.

To add an operator, write a class with ``@operator("its name")`` in a module here. Plans then draw it.
"""

from simulation.blocks.operators import (
    broadcasting,
    changing,
    expiring,
    joining,
    keyed,
    limiting,
    single,
    tables,
    timed,
)
from simulation.blocks.operators.base import OPERATORS, Flow, Operator, Row
from simulation.blocks.operators.building import PIPELINE, add_pipeline, examine_all

__all__ = [
    "OPERATORS",
    "PIPELINE",
    "Flow",
    "Operator",
    "Row",
    "add_pipeline",
    "broadcasting",
    "changing",
    "examine_all",
    "expiring",
    "joining",
    "keyed",
    "limiting",
    "single",
    "tables",
    "timed",
]
