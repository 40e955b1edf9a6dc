"""The plan that follows from a seed: bounds, a topology and its input by chance, and then the options of plans."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from millwheel.model.time import seconds
from simulation.blocks import plain_node
from simulation.plan import FIRST, Plan, PlannedRecord, SourceReader
from simulation.plan_options import vary

__all__ = ["plan_for"]


def plan_for(seed: int) -> Plan:
    """The plan of a seed."""
    chance = Random(f"plan {seed}")
    plan = Plan(seed, intervals=chance.choice((1, 1, 2, 3)), span=chance.uniform(4.0, 12.0))
    _choose_tuning(plan, chance)
    _choose_topology(plan, chance)
    _choose_inputs(plan, chance)
    vary(plan)
    return plan


_TUNING: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "core": {
        "batch_records": (1, 2, 8),
        "queue_records": (4, 20),
        "outbox_records": (2, 10),
        "cache_bytes": (1, 2_000),
        "flush_interval": (10_000, 60_000_000),
        "checkpoint_entries": (2, 5, 20),
        "timer_part": (1, 3),
        "timers_kept": (1, 4),
        "timer_lead": (0, 1_000_000),
    },
    "log": {
        "batch_bytes": (400,),
        "segment_bytes": (300, 2_000),
        "memory_bytes": (2_000,),
        "checkpoint_entries": (2, 5),
        "publish_records": (1, 3),
    },
}
"""The values that a bound may have instead of its usual value."""


def _choose_tuning(plan: Plan, chance: Random) -> None:
    share = chance.choice((0.0, 0.2, 0.6))
    for where, bounds in _TUNING.items():
        for name, values in bounds.items():
            if chance.random() < share:
                plan.tuning[where][name] = chance.choice(values)


def _node(name: str, inputs: dict[str, str], outputs: list[str], chance: Random, last: bool) -> dict[str, Any]:
    kinds = ("count", "count", "window", "window", "batch", "slow", "flaky")
    kind = chance.choice(kinds if last else (*kinds, "pass", "pass", "delay", "delay"))
    arguments: list[int] = []
    if kind == "window":
        arguments = [chance.choice((seconds(1), seconds(3), seconds(20)))]
    elif kind == "batch":
        arguments = [chance.choice((seconds(1), seconds(30)))]
    elif kind == "delay":
        arguments = [chance.choice((200_000, 1_500_000))]
    strong = not (kind == "pass" and chance.random() < 0.6)
    return {
        "name": name,
        "kind": kind,
        "inputs": inputs,
        "outputs": outputs,
        **plain_node(),
        "arguments": arguments,
        "strong": strong,
    }


def _choose_topology(plan: Plan, chance: Random) -> None:
    shape = chance.choice(("chain", "chain", "fan", "join", "diamond"))
    plan.sources = [{"name": "s0", "injectors": []}]
    if shape == "join":
        plan.sources.append({"name": "s1", "injectors": []})

    def key() -> str:
        return chance.choice("ab")

    if shape == "chain":
        length = chance.randint(1, 3)
        for number in range(length):
            last = number == length - 1
            before = f"x{number - 1}" if number else "s0"
            plan.nodes.append(_node(f"c{number}", {before: key()}, [f"x{number}"], chance, last))
    elif shape == "fan":
        plan.nodes.append(_node("c0", {"s0": key()}, ["x0", "x1"], chance, False))
        plan.nodes.append(_node("c1", {"x0": key()}, ["x2"], chance, True))
    elif shape == "join":
        plan.nodes.append(_node("c0", {"s0": key(), "s1": key()}, ["x0"], chance, False))
        plan.nodes.append(_node("c1", {"x0": key()}, ["x1"], chance, True))
    else:
        plan.nodes.append(_node("c0", {"s0": key()}, ["x0", "x1"], chance, False))
        plan.nodes.append(_node("c1", {"x0": key()}, ["x2"], chance, False))
        plan.nodes.append(_node("c2", {"x2": key(), "x1": key()}, ["x3"], chance, True))


def _choose_inputs(plan: Plan, chance: Random) -> None:
    numbers = iter(range(1, 1_000_000))
    keys = [f"{chr(chance.randint(33, 125))}{chr(chance.randint(33, 125))}" for _ in range(chance.choice((1, 3, 8)))]
    for source in plan.sources:
        source["id_slack"] = chance.choice((0, seconds(1), seconds(3600)))
        names = ["r0", "r1"][: chance.choice((1, 2))]
        # Two processes are always declared. Otherwise the later one would start at the watermark that the other has
        # reached.
        if len(names) > 1 or chance.random() < 0.5:
            source["injectors"] = names
        for name in names:
            count = chance.choice((5, 15, 30))
            late = chance.choice((0.0, 0.0, 0.1))
            inputs, promises = [], []
            at = FIRST
            for _ in range(count):
                at += chance.choice((0, 10_000, 300_000, 1_000_000))
                behind = chance.random() < late and at > FIRST + 2_000_000
                stamp = at - chance.randint(1_000_000, 2_000_000) if behind else at + chance.randint(0, 500_000)
                inputs.append(PlannedRecord(next(numbers), stamp, chance.choice(keys), chance.choice(keys), behind))
                promises.append(at)
            plan.readers.append(SourceReader(source["name"], name, inputs, promises, chance.random() < 0.5))
