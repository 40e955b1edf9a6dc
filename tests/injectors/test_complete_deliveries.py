"""Which deliveries an injector states to be complete, and how they are sent (6.1.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.driver import SenderIdentity
from millwheel.client.injector.messages import ConnectionLost, ConnectionOpened, DeliveryAnswered, SendBatch
from millwheel.client.injector.routing import Route
from millwheel.model.deliveries import PositionIds
from millwheel.model.keys import KeyInterval
from millwheel.rpc.deliveries import decode_delivery
from millwheel.rpc.v1 import delivery_pb2 as wire
from tests.injectors.test_core import ACKED, FULL, LIMITS, add, one, opened, routing, sends, step

pytestmark = pytest.mark.guarantee("G1", section="6.1.1")
ROUTES = [Route(KeyInterval(b"", b"m"), "j1", "a"), Route(KeyInterval(b"m"), "j2", "a")]


def ranged() -> InjectorCore:
    return opened(of=replace(routing(), position_ranges=True))


def sent(core: InjectorCore, positions: Sequence[int]) -> SendBatch:
    (send,) = sends(add(core, positions))
    step(core, DeliveryAnswered((send.token,), ACKED), 0)
    return send


def arrived(send: SendBatch) -> PositionIds:
    """The ids of an attempt, at its receiver."""
    request = wire.DeliverRequest.FromString(SenderIdentity("s", "p", 1).request(send).SerializeToString())
    ids = decode_delivery(request, None).ids
    assert isinstance(ids, PositionIds)
    return ids


def test_positions_with_gaps_are_given_singly() -> None:
    """A source may later find a record between: one that its reader had passed over."""
    core = ranged()
    assert [sent(core, positions).complete for positions in ([3, 4, 5], [6], [8, 9], [10, 12], [13])] == [
        True,
        True,
        True,
        False,
        True,
    ]


def test_a_batch_of_several_calls_has_no_gaps_between_them() -> None:
    core = ranged()
    (first,) = sends(add(core, [1]))
    add(core, [2, 3])
    add(core, [5])
    (both,) = sends(step(core, DeliveryAnswered((first.token,), ACKED), 1))
    assert (both.ids, both.complete) == ([2, 3, 5], False)


def test_a_part_of_a_batch_is_given_singly() -> None:
    core = ranged()
    (send,) = sends(add(core, range(5)))
    step(core, DeliveryAnswered((send.token,), FULL, [1, 2]), 0)
    (part,) = sends(step(core, DeliveryAnswered((send.token,), ACKED, [1, 2]), LIMITS.retry_last))
    assert (part.ids, part.complete) == ([1, 2], False)


def test_nothing_is_complete_before_the_clusters_format() -> None:
    assert not sent(opened(), [1, 2]).complete


def test_a_run_is_sent_as_its_first_position() -> None:
    ids = arrived(sent(ranged(), range(7, 17)))
    assert (ids.positions, ids.complete) == (range(7, 17), True)


def test_the_records_of_one_of_two_intervals_are_complete() -> None:
    core = opened(of=replace(routing(one(*ROUTES)), position_ranges=True))
    (first,) = sends(add(core, [0], key=b"a"))
    add(core, [1], key=b"a")
    add(core, [2], key=b"x")
    add(core, [3], key=b"a")
    (both,) = sends(step(core, DeliveryAnswered((first.token,), ACKED), 1))
    ids = arrived(both)
    assert (ids.positions, ids.complete) == ([1, 3], True)


@pytest.mark.parametrize("last", [99, 100])
def test_positions_that_are_far_apart_are_given_singly(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker was away, so a batch stayed open while another worker took records. Its receiver would refuse it."""
    for module in ("millwheel.client.injector.outbound_queue", "millwheel.rpc.deliveries"):
        monkeypatch.setattr(f"{module}.MAX_POSITION_SPAN", 100)
    there = replace(ROUTES[1], address="b")
    core = opened(of=replace(routing(one(ROUTES[0], there)), position_ranges=True))
    step(core, ConnectionLost("b"))
    for positions, key in (([0], b"x"), (range(1, last), b"a"), ([last], b"x")):
        add(core, positions, key=key)
    (send,) = sends(step(core, ConnectionOpened("b"), 1))
    ids = arrived(send)
    assert (ids.positions, ids.complete) == ([0, last], last < 100)


@pytest.mark.parametrize(
    "ids",
    [
        wire.PositionIds(sequence="s/p/0", positions=[3, 2], complete=True),
        wire.PositionIds(sequence="s/p/0", positions=[2, 2], complete=True),
        wire.PositionIds(sequence="s/p/0", first=2),
        wire.PositionIds(sequence="s/p/0", first=(1 << 64) - 1, complete=True),
        wire.PositionIds(sequence="s/p/0", first=2, positions=[2, 3], complete=True),
        wire.PositionIds(sequence="s/p/0", positions=[7, 7 + (1 << 32)], complete=True),
    ],
    ids=["falling", "twice", "not stated", "too far", "both forms", "far apart"],
)
def test_positions_that_contradict_themselves_are_refused(ids: wire.PositionIds) -> None:
    request = wire.DeliverRequest(positions=ids, keys=[b"a", b"b"], values=[b"1", b"2"], timestamps_us=[1, 2])
    with pytest.raises(ValueError, match="positions"):
        decode_delivery(request, None)
