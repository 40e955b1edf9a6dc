"""The expected results of operators, where a record is late at one of two steps only."""

from __future__ import annotations

from typing import Any

from simulation.blocks import PIPELINE, Item, plain_node
from simulation.pipelines import pipeline_differences
from simulation.plan import Plan, PlannedRecord, SourceReader


def judged(*results: tuple[int, list[int]], late: int) -> list[str]:
    """The differences of `enrich > ordered update` for records 1, 2 and 3, one of which was late when it was sent."""
    inputs = [PlannedRecord(number, 1_000_000 * number, "k", "k", number == late) for number in (1, 2, 3)]
    node: dict[str, Any] = plain_node() | {
        "name": "operators",
        "kind": PIPELINE,
        "inputs": {"s0": "a"},
        "sources": [["s0"]],
        "outputs": ["op", "op-late"],
        "arguments": [["enrich", "a", [False, 0, False]], ["ordered update", "a", [1_000]]],
    }
    plan = Plan(1, nodes=[node], readers=[SourceReader("s0", "r0", inputs, [], False)])
    items = [(1_000_000 * at, Item(ids, "k", str(len(ids)))) for at, ids in results]
    return list(pipeline_differences(plan, {"op": dict(enumerate(items))}))


def test_a_late_record_may_be_dropped_by_the_second_step() -> None:
    """A new owner of the first step may take it for one in time, and the second step knows better (G14)."""
    assert judged((1, [1]), (2, [1, 2]), (3, [1, 2, 3]), late=2) == []
    assert judged((1, [1]), (3, [1, 3]), late=2) == []


def test_a_record_in_time_must_be_in_the_results() -> None:
    """Also if another one is late."""
    assert judged((1, [1]), (3, [1, 3]), late=0) != []
    assert judged((1, [1]), (3, [1, 3]), late=3) != []
    assert judged((2, [2]), (3, [2, 3]), late=2) != []
