"""Pipelines of operators in topologies: the plan's node names them, and the streams that they read."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import millwheel as mw
from simulation.blocks.operators.base import OPERATORS, UNREAD, Flow
from simulation.blocks.records import Item

__all__ = ["PIPELINE", "add_pipeline", "examine_all"]

PIPELINE: Final = "pipeline"
"""The kind of such nodes in a plan. Arguments: for each step its operator, the field that is its key, its arguments."""


def add_pipeline(topology: mw.Topology, node: dict[str, Any]) -> None:
    """Add the steps of a node. The last one produces the node's first output; its second one gets late records."""
    result, *late = node["outputs"]
    steps, streams = node["arguments"], [*node["inputs"]]
    for number, (name, field, arguments) in enumerate(steps, 1):
        output = result if number == len(steps) else f"{node['name']}-{number}"
        options = {"late": late[0]} if late and number == 1 else {}
        OPERATORS[name].build(Flow(topology, output, streams, field, options), arguments)
        streams = [output]
        if number < len(steps):
            topology.stream(output, Item, retention=UNREAD)


def examine_all() -> None:
    """Examine a topology with every operator, and so fill the product's caches of types before processes fork.

    A seed with eight operators takes a tenth less time then.
    """
    topology, chance = mw.Topology("all"), Random(0)
    for source in ("left", "right"):
        topology.source(source, Item)
    for number, (name, one) in enumerate(OPERATORS.items()):
        step = [name, "a", one.draw(chance)]
        node = {"name": f"all{number}", "inputs": {"left": "a", "right": "a"}, "arguments": [step]}
        add_pipeline(topology, node | {"outputs": [f"of{number}"]})
    topology.check()
