"""Nexmark beside other systems: MillWheel's programs give what the models give, and a wrong answer does not count."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millwheel as mw
from bench.figures.nexmark_table import nexmark_table
from bench.nexmark.models import COMPARED, expected
from bench.nexmark.program import between_files
from bench.nexmark.reporting import QueryRuns, figures, report_table
from bench.nexmark.rows import changelog_rows, list_rows, value_rows, written_lines
from bench.nexmark.running import QueryRun, compared
from bench.nexmark.sql import SQL
from bench.readings import Readings
from examples.nexmark.events import Event, generate
from millwheel.testing import TopologyHarness

START = QueryRun(whole_s=1.0, cpu_s=2.0)
SLOW, FAST = QueryRun(whole_s=10.0, cpu_s=12.0), QueryRun(whole_s=5.0, cpu_s=7.0)
WRONG = QueryRun(whole_s=1.1, cpu_s=2.1, wrong="3 rows are missing")


@pytest.fixture(scope="module")
def events() -> list[Event]:
    """Fifty seconds of events: five tumbling windows."""
    return list(generate(2_000, 3, mw.milliseconds(25)))


@pytest.mark.parametrize("query", COMPARED)
def test_a_program_between_files_gives_the_model_s_rows(query: str, events: list[Event], tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(events))
    written = tmp_path / "results"
    topology = between_files(query, str(tmp_path / "events.jsonl"), str(written), mw.seconds(4))
    with TopologyHarness(topology) as harness:
        harness.advance_clock(mw.minutes(1))
    found = value_rows(query, map(msgspec.json.decode, written_lines(written)))
    wanted = expected(query, events)
    assert wanted
    assert compared(found, wanted) == ""


def test_each_query_has_its_sql() -> None:
    assert set(SQL) == set(COMPARED)


def test_a_missing_and_a_wrong_row_are_named(events: list[Event]) -> None:
    wanted = expected("q5", events)
    found = Counter(wanted)
    missing = next(iter(found))
    found[missing] -= 1
    found[0, 0, 0, 0] += 2
    assert compared(found, wanted) == (
        f"1 rows are missing, such as {missing}; 2 rows too many, such as (0, 0, 0, 0)"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("query", "lines", "rows"),
    [
        ("q4", ["+I[10, 1, 5]", "a line between", "-U[10, 1, 5]", "+U[10, 2, 9]"], [(10, 2, 9)]),
        ("q4", ["+I[10, 1, 5]", "+U[10, 2, 9]"], [(10, 2, 9)]),
        ("q4", ["+I[10, 1, 5]", "-D[10, 1, 5]"], []),
        ("q9", ["+I[1, a b, 7]"], [(1, "a b", 7)]),
        ("q19", ["+I[1, 2, 30, a, u, 5, x, 1]", "+I[1, 2, 30, b, u, 6, x, 2]"], [(1, 30), (1, 30)]),
        ("q19", ["+I[1, 2, 30, a, u, 5, x, 1]", "+U[1, 2, 40, b, u, 6, x, 1]"], [(1, 40)]),
    ],
)
def test_a_log_of_changes_leaves_its_last_rows(query: str, lines: list[str], rows: list[Any]) -> None:
    assert changelog_rows(query, lines) == Counter(rows)


@pytest.mark.parametrize(
    ("query", "lists", "rows"),
    [
        ("q2", [[1, 5], [1, 5]], [(1, 5), (1, 5)]),
        ("q4", [[10, 1, 5], [11, 1, 3], [10, 2, 9]], [(10, 2, 9), (11, 1, 3)]),
        ("q18", [[1, 2, 30], [1, 3, 40], [1, 2, 50]], [(1, 2, 50), (1, 3, 40)]),
        ("q19", [[1, [[1, 2, 30]]], [1, [[1, 2, 30], [1, 3, 40]]]], [(1, 30), (1, 40)]),
    ],
)
def test_of_corrected_lists_the_last_ones_count(query: str, lists: list[Any], rows: list[Any]) -> None:
    assert list_rows(query, lists) == Counter(rows)


def test_the_price_of_the_start_is_not_counted() -> None:
    (rate, wall, _) = figures([QueryRuns("q5", "bytewax", 100, START, [SLOW, FAST])])
    assert (rate.name, rate.value, rate.runs) == ("nexmark.q5.bytewax.records_per_core_s", 20.0, (10.0, 20.0))
    assert (wall.value, wall.runs) == (20.0, (10.0, 20.0)), "records/s of the clock have the start in them"


@pytest.mark.parametrize("bad", [WRONG, QueryRun(error="it has ended | here")])
def test_a_wrong_answer_has_no_rate(bad: QueryRun) -> None:
    one = QueryRuns("q5", "bytewax", 100, START, [FAST, bad])
    assert figures([one]) == []
    cells = report_table([one], {"bytewax": {"bytewax": "1"}}).splitlines()
    assert cells[2].endswith(f"| {(bad.wrong or bad.error).replace('|', '/')} |")
    assert cells[-1] == "- bytewax: bytewax 1"


def test_a_query_without_a_right_answer_has_a_dash() -> None:
    found = Readings("here", {"nexmark.q7.millwheel-dev.records_per_core_s": 12_345.6})
    assert nexmark_table(found).splitlines()[2] == "| q7: highest bid: tumbling windows | 12,346 | – | – |"
