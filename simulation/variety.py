"""What plans vary beyond topology and input: policies, cycles, ways of injecting.

Each has a chance of its own, so that a new one changes nothing of what a seed decides otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from simulation.plan import Plan

__all__ = ["vary"]

_PER_RECORD: Final = frozenset({"pass", "count", "slow", "flaky", "delay"})
"""Blocks that send on each record by itself."""


def vary(plan: Plan) -> None:
    """Change a plan, here and there."""
    for name, change, share in _CHANGES:
        chance = Random(f"{name} {plan.seed}")
        if chance.random() < share:
            change(plan, chance)


def _compact(plan: Plan, chance: Random) -> None:
    """Who has not followed the coordinator for some revisions must read everything anew."""
    plan.revisions_kept = chance.choice((1, 10, 50))


def _batches(plan: Plan, chance: Random) -> None:
    """An injector sends batches of a query, and old ones again."""
    chance.choice(plan.readers).batched = True


def _idle(plan: Plan, chance: Random) -> None:
    """An injector has nothing to send for a while; what it sends after that may be late."""
    reader = chance.choice(plan.readers)
    if not reader.batched:
        at = reader.idle_at = chance.randrange(len(reader.inputs))
        reader.inputs[at:] = [replace(one, late=True) for one in reader.inputs[at:]]


def _late(plan: Plan, chance: Random) -> None:
    """A computation that takes injected records, and those alone, drops late ones, or diverts them."""
    sources = {source["name"] for source in plan.sources}
    node = chance.choice([node for node in plan.nodes if set(node["inputs"]) <= sources])
    node["late"] = chance.choice(("drop", "divert"))
    reader = chance.choice([reader for reader in plan.readers if reader.stream in node["inputs"]])
    for index in range(2, len(reader.inputs)):
        one = reader.inputs[index]
        if not one.late and chance.random() < 0.2:
            behind = one.timestamp - chance.randint(1_000_000, 3_000_000)
            reader.inputs[index] = replace(one, timestamp=behind, late=True)


def _loose(plan: Plan, chance: Random) -> None:
    """A computation takes records as often as they come."""
    node = chance.choice(plan.nodes)
    if node["strong"]:
        node["exactly_once"] = False


def _cycle(plan: Plan, chance: Random) -> None:
    """A computation sends records back some times before it sends them on: to itself, or to the first of the chain."""
    index = chance.randrange(len(plan.nodes))
    first = 0 if chance.random() < 0.5 and all(len(node["outputs"]) == 1 for node in plan.nodes) else index
    if any(node["kind"] not in _PER_RECORD or node["late"] for node in plan.nodes[first : index + 1]):
        return
    node, back = plan.nodes[index], f"{plan.nodes[index]['name']}-again"
    node.update(kind="loop", strong=True, arguments=[], back=[back])
    plan.nodes[first]["feedback"] = {back: chance.choice("ab")}


def _added(plan: Plan, chance: Random) -> None:
    """A computation comes with a new version. What is behind when it joins is late to it."""
    plan.added = {
        "name": "extra",
        "kind": chance.choice(("count", "slow", "flaky", "pass")),
        "inputs": {chance.choice([stream for node in plan.nodes for stream in node["outputs"]]): chance.choice("ab")},
        "outputs": ["y0"],
        "arguments": [],
        "strong": True,
        "exactly_once": True,
        "late": "",
        "feedback": {},
        "back": [],
        "belated": True,
    }


def _ending(plan: Plan, chance: Random) -> None:
    """The topology is drained, or cancelled, while its input comes."""
    plan.ending = chance.choice(("drain", "drain", "cancel"))
    plan.ends_at = chance.uniform(0.2, 1.2) * plan.span


_CHANGES: Final[tuple[tuple[str, Callable[[Plan, Random], None], float], ...]] = (
    ("compact", _compact, 0.3),
    ("batches", _batches, 0.2),
    ("idle", _idle, 0.2),
    ("late", _late, 0.3),
    ("cycle", _cycle, 0.2),
    ("loose", _loose, 0.1),
    ("ending", _ending, 0.1),
    ("added", _added, 0.5),
)
"""Name, change, and in what share of all seeds."""
