"""Runs in forked processes end with their caller. The death of one is reported."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from simulation.forking import apart


def _stand(reported: Path) -> int:
    reported.write_text(str(os.getpid()))
    signal.pause()
    return 1


@pytest.mark.timeout(20)
def test_what_is_under_way_ends_with_the_look_at_it(tmp_path: Path) -> None:
    """Otherwise the run would write into a directory that its caller has removed."""
    reported = tmp_path / "reported"

    def ends_when_the_other_stands() -> int:
        while not (reported.exists() and reported.read_text()):
            os.sched_yield()
        return 2

    work = [("the one that stands", lambda: _stand(reported)), ("the one that ends", ends_when_the_other_stands)]
    with closing(apart(work, processes=2)) as found:
        assert next(found) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(int(reported.read_text()), 0)


@pytest.mark.timeout(20)
def test_one_that_dies_without_an_answer_is_named() -> None:
    """Such a run must not count as one that holds."""
    with pytest.raises(RuntimeError, match="the third run died"):
        list(apart([("the third run", lambda: os._exit(9))]))
