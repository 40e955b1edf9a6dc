"""Ids of a base that take many parts: a takeover reads them in the order in which they were written (6.1.1, 6.2)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import JournalHead
from millwheel.worker.dedup import DEDUP_PART, PositionIds, Sender
from millwheel.worker.messages import (
    Accepted,
    AnswerDelivery,
    AppendEntry,
    Delivery,
    Opened,
    Started,
)
from tests.worker.interval.driver import INJECTOR, IntervalDriver

SEQUENCES = 12
"""More than ten parts: the name of part 10 sorts before that of part 2."""


class Passing(mw.Computation[tuple[str, str], None]):
    """Forwards each record."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Any]) -> None:
        ctx.produce("out", record.value[1])


def delivery(number: int) -> Delivery:
    """One record with its own sequence, from one of two processes.

    So the base has a row for a counter and two for sequencers; then each sequence has a row, and its ids the next.
    """
    sender = Sender(f"injector/in/p{number % 2}", 1, None, INJECTOR)
    value = msgspec.msgpack.encode(("k", "v"))
    return Delivery(
        IncarnationId("test.1"), "test.1.j1", "in", sender, PositionIds(f"table/{number}", 0, [7]), [b"k"], [value], [1]
    )


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_takeover_knows_ids_that_fill_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.worker.dedup.snapshot.BLOB_BYTES", 1)
    driver = IntervalDriver(Passing())
    for number in range(SEQUENCES):
        driver.handle(delivery(number))
    driver.commit_all()
    write = driver.base()
    parts = {part: write.parts[part] for part in sorted(write.parts)}  # in the order of the head's names
    assert sum(part.name.startswith(DEDUP_PART) for part in parts) > SEQUENCES

    successor = IntervalDriver(Passing())
    core = type(successor.core)(successor.state.config, successor.state.program, {}, lambda consumer, key: "")
    core.step(Started(), 1)
    commit = driver.state.committed
    core.step(Opened(JournalHead(7, commit, commit, tuple(parts)), parts, []), 1)
    core.step(Accepted(0), 1)
    for number in range(SEQUENCES):
        out = core.step(delivery(number), 1)
        assert [one.outcome for one in out if isinstance(one, AnswerDelivery)] == [
            DeliveryOutcome.DELIVERY_OUTCOME_ACKED
        ]
        assert not any(isinstance(one, AppendEntry) for one in out)
