"""The plan option for the library's operators, over streams that carry injected records unchanged.

No operator is drawn twice in a plan. So each is in as many plans as possible.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from simulation.blocks import OPERATORS, PIPELINE, plain_node
from simulation.blocks.operators import Operator
from simulation.combined_options import known_streams, small_pages
from simulation.plan import Plan

__all__ = ["operators"]

_TICK: Final = 250_000
"""The timestamps of some plans are multiples of it. So several records have the same one."""
_PIPELINES: Final = (1, 2)
"""How many pipelines a plan has that has operators."""
_STEPS: Final = (1, 2, 3, 4)
"""How many operators a pipeline has at most: a step before the last one costs no log and no subscriber."""
_CERTAIN: Final = 0.4
"""The share of pipelines whose last step has certain results. The steps before the last one always have them."""


def operators(plan: Plan, chance: Random) -> None:
    """One or two pipelines of several operators.

    A process that must not be ahead of the low watermark would wait for itself, where an operator holds its records.
    """
    skewed = {source["name"] for source in plan.sources if "skew" in source}
    known = {stream: sources for stream, sources in known_streams(plan).items() if stream not in skewed}
    if plan.returns_at or not known:
        return
    sources = set[str]().union(*known.values())
    readers = [reader for reader in plan.readers if reader.stream in sources]
    if chance.random() < 0.5:
        for reader in readers:
            reader.inputs = [replace(one, timestamp=-(-one.timestamp // _TICK) * _TICK) for one in reader.inputs]
    late = {reader.stream for reader in readers for one in reader.inputs if one.late}
    # Nothing reads the log of dead letters here, so it would fill up where logs have a small cap.
    letters = "cap_bytes" in plan.tuning["log"] or any("letters" in node for node in plan.nodes)
    names = sorted(name for name, one in OPERATORS.items() if not (one.has_letters and letters))
    chance.shuffle(names)
    for number in range(chance.choice(_PIPELINES)):
        _add(plan, chance, number, names, known, late)


def _add(plan: Plan, chance: Random, number: int, names: list[str], known: dict[str, set[str]], late: set[str]) -> None:
    """Add a pipeline. Its operators are removed from ``names``. ``late``: the sources that may have late records."""
    pairs = [[one, other] for one in sorted(known) for other in sorted(known) if not known[one] & known[other]]
    streams = chance.choice(pairs) if pairs and chance.random() < 0.8 else [chance.choice(sorted(known))]
    is_late = any(known[stream] & late for stream in streams)
    certain = chance.random() < _CERTAIN
    # An operator that repeats ids has few places, so it is drawn first where it may be drawn.
    ranked = sorted(names, key=lambda name: not (certain and OPERATORS[name].repeats))
    chosen = [next(name for name in ranked if OPERATORS[name].certain is certain)]
    before = [name for name in ranked if name not in chosen and _may_precede(OPERATORS[name], certain)]
    # A late record may be late at a later step alone.
    for name in [] if is_late else before[: chance.choice(_STEPS) - 1]:
        if not (OPERATORS[name].multiplies and any(OPERATORS[one].multiplies for one in chosen)):
            chosen.insert(0, name)
    names[:] = [name for name in names if name not in chosen]
    if any(OPERATORS[name].has_pages for name in chosen):
        small_pages(plan, chance)
    diverts = OPERATORS[chosen[0]].has_options and chance.random() < (0.9 if is_late else 0.15)
    plan.nodes.append(
        plain_node()
        | {
            "name": f"operators{number}",
            "kind": PIPELINE,
            "inputs": dict.fromkeys(streams, "a"),
            "sources": [sorted(known[stream]) for stream in streams],
            "outputs": [f"op{number}", f"op{number}-late"] if diverts else [f"op{number}"],
            "arguments": [[name, chance.choice("ab"), OPERATORS[name].draw(chance)] for name in chosen],
        }
    )


def _may_precede(step: Operator, certain: bool) -> bool:
    """Whether the results of an operator are known.

    Where the last results are not ``certain``, they are recognised by their ids.
    """
    return step.certain and not step.by_clock and (certain or not step.repeats)
