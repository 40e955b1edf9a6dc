"""Topologies from plans: each node of a plan becomes a block."""

from __future__ import annotations

import json
from typing import Any, Final

import millwheel as mw
from millwheel.model.time import seconds
from simulation.blocks.connected import add_connected
from simulation.blocks.growing import Keep, KeepMarked, KeepTwice
from simulation.blocks.library import LIBRARY, add_library
from simulation.blocks.many import in_batches
from simulation.blocks.operators import PIPELINE, add_pipeline
from simulation.blocks.plain import Count, Flaky, Loop, Pass, Poison, Recount, Scatter, Slow, Tally
from simulation.blocks.records import Item
from simulation.blocks.timed import Batch, Brief, Delay, Window
from simulation.blocks.weak import WeakDelay, WeakWindow

__all__ = ["assemble", "plain_node"]

_KINDS: Final[dict[str, Any]] = {
    "pass": Pass,
    "count": Count,
    "recount": Recount,
    "tally": Tally,
    "window": Window,
    "brief": Brief,
    "delay": Delay,
    "batch": Batch,
    "slow": Slow,
    "flaky": Flaky,
    "loop": Loop,
    "poison": Poison,
    "scatter": Scatter,
    "keep": Keep,
    "keep marked": KeepMarked,
    "keep twice": KeepTwice,
}

_WEAK_KINDS: Final[dict[str, Any]] = {"window": WeakWindow, "delay": WeakDelay}
"""Kinds that use other blocks for weak productions."""


def _policy(node: dict[str, Any]) -> mw.FailurePolicy:
    """The failure policy for records on which a hook fails."""
    if "letters" in node:
        return mw.dead_letter(after=node["letters"])
    return mw.stop(after=node["stops"]) if "stops" in node else mw.retry()


def plain_node() -> dict[str, Any]:
    """The default properties of a plan's node, except name, kind, inputs and outputs."""
    return {
        "arguments": [],
        "strong": True,
        "straggler": seconds(1),
        "exactly_once": True,
        "late": "",
        "feedback": {},
        "back": [],
    }


def assemble(text: str) -> mw.Topology:
    """The topology that a plan describes; see :mod:`simulation.plan`."""
    plan = json.loads(text)
    topology = mw.Topology(plan["name"])
    for source in plan["sources"]:
        slack = mw.Duration(source["id_slack"])
        skew = mw.Duration(source["skew"]) if "skew" in source else None
        topology.source(source["name"], Item, injectors=source["injectors"], id_slack=slack, allowed_skew=skew)
    for stream in plan.get("externals", ()):
        topology.external(stream, Item)
    if "feed" in plan:
        add_connected(topology, plan["feed"])
    for node in plan["nodes"]:
        if node["kind"] == LIBRARY:
            add_library(topology, node)
            continue
        if node["kind"] == PIPELINE:
            add_pipeline(topology, node)
            continue
        kinds = _KINDS if node["strong"] else _KINDS | _WEAK_KINDS
        made = in_batches(node) or kinds[node["kind"]]
        block = made(node.get("signed", node["name"]), node["outputs"], *node["arguments"])
        block.loose = not node["exactly_once"] or "belated" in node
        block.joins = frozenset(node.get("joins", ()))
        block.feedback = node["feedback"]
        belated = f"{node['name']}-late"
        diverted = [belated] if node["late"] == "divert" else []
        topology.add(
            block,
            name=node["name"],
            inputs={stream: mw.key(field) for stream, field in node["inputs"].items()}
            | {stream: mw.key(field, feedback=True) for stream, field in block.feedback.items()},
            outputs=dict.fromkeys([*node["outputs"], *node["back"], *diverted], Item),
            strong=node["strong"],
            exactly_once=node["exactly_once"],
            straggler_delay=mw.Duration(node["straggler"]),
            on_failure=_policy(node),
            late={"": mw.Late.PROCESS, "drop": mw.Late.DROP, "divert": mw.divert(belated)}[node["late"]],
        )
    return topology
