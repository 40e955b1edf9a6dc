"""The expected results of operators, where a record was late at its stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulation.blocks import PIPELINE, Item, plain_node
from simulation.pipelines import pipeline_differences
from simulation.plan import Plan, PlannedRecord, SourceReader


def pipeline(*steps: list[Any], sources: Sequence[str] = ("s0",)) -> dict[str, Any]:
    """The node of some steps. Each source is a side of the first one."""
    return plain_node() | {
        "name": "operators",
        "kind": PIPELINE,
        "inputs": dict.fromkeys(sources, "a"),
        "sources": [[source] for source in sources],
        "outputs": ["op", "op-late"],
        "arguments": list(steps),
    }


def judged(*results: tuple[int, list[int]], late: int) -> list[str]:
    """The differences of `enrich > ordered update` for records 1, 2 and 3, one of which was late when it was sent."""
    inputs = [PlannedRecord(number, 1_000_000 * number, "k", "k", number == late) for number in (1, 2, 3)]
    node = pipeline(["enrich", "a", [False, 0, False]], ["ordered update", "a", [1_000]])
    plan = Plan(1, nodes=[node], readers=[SourceReader("s0", "r0", inputs, [], False)])
    items = [(1_000_000 * at, Item(ids, "k", str(len(ids)))) for at, ids in results]
    return list(pipeline_differences(plan, {"op": dict(enumerate(items))}))


def test_a_record_that_was_not_diverted_must_be_in_the_results() -> None:
    """Also if it was late at its stream: what is on time at the first step is so at the second one (G14)."""
    assert judged((1, [1]), (2, [1, 2]), (3, [1, 2, 3]), late=2) == []
    assert judged((1, [1]), (3, [1, 3]), late=2) != []
    assert judged((1, [1]), (3, [1, 3]), late=0) != []
    assert judged((1, [1]), (3, [1, 3]), late=3) != []
    assert judged((2, [2]), (3, [2, 3]), late=2) != []


def spread(*results: tuple[int, list[int]], late: int, spread: int = 3) -> list[str]:
    """The differences of sessions: records 1 and 2 are in the first one, and 9 in the second one."""
    second = 1_000_000
    inputs = [PlannedRecord(one, one * second, "k", "k", one == late) for one in (1, 2, 9)]
    node = pipeline(["sessions", "a", [2 * second, 0, spread]])
    plan = Plan(1, nodes=[node], readers=[SourceReader("s0", "r0", inputs, [], False)])
    items = [(at * second, Item(ids, "k", str(len(ids)))) for at, ids in results]
    return list(pipeline_differences(plan, {"op": dict(enumerate(items))}))


def test_the_second_phase_drops_nothing_that_the_first_one_took() -> None:
    """Also what was late at its stream (G14)."""
    for shards in (1, 3):
        assert spread((4, [1, 2]), (11, [9]), late=2, spread=shards) == []
        assert spread((3, [1]), (11, [9]), late=2, spread=shards) != []
        assert spread((3, [1]), (11, [9]), late=0, spread=shards) != []


def joined(*results: tuple[int, list[int]], late: int) -> list[str]:
    """The differences of `join broadcast as of`: records 1, 3, 5 and 6 meet rows 2 and 4, one of which was late.

    Each has its number as its timestamp.
    """
    numbers = {"s0": (1, 3, 5, 6), "s1": (2, 4)}
    node = pipeline(["join broadcast as of", "a", [True]], sources=("s0", "s1"))
    readers = [
        SourceReader(source, "r0", [PlannedRecord(one, one, "k", "k", one == late) for one in each], [], False)
        for source, each in numbers.items()
    ]
    items = [(at, Item([at, *rows], "k", f"1+{len(rows)}")) for at, rows in results]
    return list(pipeline_differences(Plan(1, nodes=[node], readers=readers), {"op": dict(enumerate(items))}))


def test_a_late_row_may_hold_from_a_later_time_on() -> None:
    """A new owner of the step before the table may take it for one in time, and the table knows better (G14)."""
    assert joined((1, []), (3, [2]), (5, [4]), (6, [4]), late=4) == []
    assert joined((1, []), (3, [2]), (5, [2]), (6, [4]), late=4) == []
    assert joined((1, []), (3, [2]), (5, [2]), (6, [2]), late=4) == []
    assert joined((1, []), (3, []), (5, [4]), (6, [4]), late=2) == []


def test_a_late_row_neither_goes_nor_hides_a_newer_one() -> None:
    assert joined((1, []), (3, [2]), (5, [4]), (6, [2]), late=4) != []
    assert joined((1, []), (3, []), (5, [2]), (6, [4]), late=2) != []
    assert joined((1, [2]), (3, [2]), (5, [4]), (6, [4]), late=2) != []
    assert joined((1, []), (3, [2]), (5, [4]), late=4) != []


def test_a_row_in_time_holds_from_its_time_on() -> None:
    """Also if another one is late."""
    assert joined((1, []), (3, [2]), (5, [2]), (6, [4]), late=0) != []
    assert joined((1, []), (3, []), (5, [4]), (6, [4]), late=0) != []
    assert joined((1, []), (3, [2]), (5, [2]), (6, [4]), late=2) != []
    assert joined((1, []), (3, []), (5, [4]), (6, [4]), late=4) != []
