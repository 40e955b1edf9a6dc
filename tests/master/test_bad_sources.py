"""The health names a source most of whose records cannot be read, and none for a few of them."""

from __future__ import annotations

import pytest

from millwheel.master.bad_sources import bad_source_problems
from millwheel.master.load_book import LoadBook
from millwheel.master.messages import PauseTopology
from millwheel.model.time import Timestamp, hours, minutes
from millwheel.rpc.v1 import inspection_pb2 as wire
from tests.master.test_unfed import running, union

NOON = 1_767_268_800_000_000
"""2026-01-01 12:00."""


def reads(records: int, bad: int, *, since: int = 0, error: str = "KeyError: 'ts'") -> wire.SourceReads:
    return wire.SourceReads(
        topology="shop", computation="files-reader", stream="shop/files", bad_stream="shop/bad",
        records=records, bad=bad, since_us=NOON + since, last_us=NOON + minutes(5) + since, last_error=error,
    )  # fmt: skip


def texts(*reports: wire.SourceReads, now: int = NOON + minutes(6), paused: bool = False) -> list[str]:
    """The problems, if each worker reports one of ``reports``."""
    master, book = running(union()), LoadBook()
    if paused:
        master.call(PauseTopology("shop"))
    for number, one in enumerate(reports):
        book.on_load(f"w{number}", wire.GetWorkerLoadResponse(sources=[one]), Timestamp(now))
    found = list(bad_source_problems(master.cluster.catalog(), book, now))
    assert {(one.runbook, one.topology, one.computation) for one in found} <= {
        ("MillwheelSourceUnreadable", "shop", "files-reader")
    }
    return [one.text for one in found]


def test_a_source_whose_records_are_mostly_bad_is_named() -> None:
    (text,) = texts(reads(1_300, 1_234))
    assert text.startswith(
        "source shop/files: 1,234 of the 1,300 records since 2026-01-01T12:00:00Z could not be read. The last error: "
        "KeyError: 'ts'. Stream shop/bad has them, each with its error: `millwheel stream tail shop/bad`. See whether"
    )


@pytest.mark.parametrize(("records", "bad"), [(1, 1), (9, 9), (1_000_000, 500_000), (100, 10)])
def test_few_bad_records_are_no_problem(records: int, bad: int) -> None:
    assert texts(reads(records, bad)) == []


def test_the_reports_of_all_workers_are_added_up() -> None:
    assert texts(reads(20, 20), reads(1_000, 0)) == []
    (text,) = texts(reads(20, 20), reads(30, 20, since=-60_000_000, error="old"))
    assert "40 of the 50 records since 2026-01-01T11:59:00Z" in text
    assert "KeyError: 'ts'" in text, "the error of the newest report"


def test_a_source_is_named_while_it_runs_and_for_a_day() -> None:
    assert texts(reads(20, 20), now=NOON + hours(24))
    assert not texts(reads(20, 20), now=NOON + hours(25))
    assert not texts(reads(20, 20), paused=True)


def test_a_long_error_is_one_line_and_cut() -> None:
    (text,) = texts(reads(20, 20, error="first\n  second " + "x" * 1_000))
    assert "The last error: first second xxx" in text
    assert "x… " not in text
    assert "x…. Stream" in text
