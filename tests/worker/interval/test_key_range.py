"""An interval takes the records of its own keys only (4.2)."""

from __future__ import annotations

import msgspec
import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.messages import AnswerDelivery, Delivery
from tests.worker.interval.driver import INJECTOR, IntervalDriver


@pytest.mark.guarantee("G11", section="4.2")
@pytest.mark.parametrize(
    ("keys", "key", "taken"),
    [
        (KeyInterval(b"", b"m"), b"a", True),
        (KeyInterval(b"", b"m"), b"m", False),
        (KeyInterval(b"m", None), b"m", True),
        (KeyInterval(b"m", None), b"a", False),
        (KeyInterval(b"c", b"m"), b"a", False),
        (KeyInterval(b"c", b"m"), b"z", False),
    ],
)
def test_an_interval_refuses_the_keys_of_others(keys: KeyInterval, key: bytes, taken: bool) -> None:
    """Also the lowest and the highest interval, which have one bound."""

    class Plain(mw.Computation[tuple[str, str], int]):
        def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
            ctx.state += 1

    driver = IntervalDriver(Plain(), keys=keys)
    sender, ids = Sender("injector/in/p", 1, None, INJECTOR, None), PositionIds("in/p", 0, [0])
    values = [msgspec.msgpack.encode(("k", "x"))]
    driver.handle(Delivery(IncarnationId("test.1"), "test.1.j1", "in", sender, ids, [key], values, [1], 1))
    driver.commit_all()
    (answer,) = driver.take(AnswerDelivery)
    assert (answer.outcome == DeliveryOutcome.DELIVERY_OUTCOME_ACKED) == taken
    assert taken or "keys outside the interval" in answer.message
