"""Finds the log of this process that a request names."""

from __future__ import annotations

from pathlib import Path

import pytest

from millwheel.model.incarnation import IncarnationId
from tests.worker.test_worker import hosted, worker


async def test_an_empty_stream_finds_no_interval_of_a_computation(tmp_path: Path) -> None:
    """Regression: the look-up found the first interval here, which failed at the question.

    Any client could end an interval so.
    """
    made = worker(tmp_path)
    hosted(made, "c.1.j2", 3)
    assert made.hosts.find_log("", IncarnationId("")) is None
    await made.close()


@pytest.mark.guarantee("G7", section="7.1")
async def test_a_returned_stream_does_not_find_its_former_log(tmp_path: Path) -> None:
    made = worker(tmp_path)
    hosted(made, "x.log.1.j2", 3)
    one = made.hosts.hosted["x.log.1.j2"]
    one.built.log_of = "x"
    assert one.owned.incarnation == "c.1"
    assert made.hosts.find_log("x", IncarnationId("")) is made.hosts.find_log("x", IncarnationId("c.1")) is one.host
    assert made.hosts.find_log("x", IncarnationId("c.7")) is None
    await made.close()
