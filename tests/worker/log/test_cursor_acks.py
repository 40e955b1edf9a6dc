"""A cursor's ACKed offset only rises, in any order of its ACKs (4.3)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.worker.log.cursors import Cursors
from millwheel.worker.log.messages import Start

STEPS = st.lists(st.one_of(st.integers(0, 20), st.sampled_from(["seal", "commit"])), max_size=20)


@pytest.mark.guarantee("G1", section="4.3")
@given(STEPS)
@settings(report_multiple_bugs=False)
def test_a_cursor_never_moves_back(steps: list[int | str]) -> None:
    cursors = Cursors()
    cursor = cursors.create("c", Start.OLDEST)
    cursors.seal(0, 0)
    cursors.committed(1)
    acked, commit, in_flight, durable = 0, 1, False, 0
    for step in [*steps, "commit", "seal", "commit"]:
        if isinstance(step, int):
            cursors.ack(cursor, step, 0)
            acked = max(acked, step)
        elif step == "seal" and not in_flight:
            cursors.seal(0, 20)
            in_flight = True
        elif step == "commit" and in_flight:
            commit += 1
            cursors.committed(commit)
            in_flight = False
        assert cursors.durable["c"] >= durable
        assert cursor.newest == acked
        durable = cursors.durable["c"]
    assert durable == acked
