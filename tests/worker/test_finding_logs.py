"""A request that names no stream is about no log."""

from __future__ import annotations

from pathlib import Path

from tests.worker.test_worker import hosted, worker


async def test_an_empty_stream_finds_no_interval_of_a_computation(tmp_path: Path) -> None:
    """It found the first that runs here, which broke over the question: anybody could end an interval."""
    made = worker(tmp_path)
    hosted(made, "c.1.j2", 3)
    assert made._find_log("") is None
    await made.close()
