"""The injector core when routings change: batches go to new owners, children, merged intervals and new consumers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millwheel.client.injector.messages import (
    Connect,
    ConnectionLost,
    ConnectionOpened,
    DeliveryAnswered,
    Disconnect,
    RoutingArrived,
    Tick,
)  # fmt: skip
from millwheel.client.injector.routing import ConsumerRouting, Route
from millwheel.client.injector.unacked import unacked_records
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS, KeyInterval
from tests.injectors.test_core import ACKED, FULL, LIMITS, NOT_OWNER, add, one, opened, routing, sends, step


@pytest.mark.guarantee("G11")
def test_a_refusal_by_a_former_owner_is_retried_on_a_new_routing() -> None:
    core = opened()
    (send,) = sends(add(core, range(5), now=10))
    assert step(core, DeliveryAnswered((send.token,), NOT_OWNER, (), "moved"), 10) == []
    out = step(core, RoutingArrived(routing(one(Route(ALL_KEYS, "j1", "b")), revision=2)), 11)
    assert [type(i) for i in out] == [Disconnect, Connect]
    (again,) = sends(step(core, ConnectionOpened("b"), 12))
    assert (again.address, again.ids) == ("b", send.ids)


def test_not_owner_is_asked_again_without_news_too() -> None:
    core = opened()
    (send,) = sends(add(core, range(5)))
    step(core, DeliveryAnswered((send.token,), NOT_OWNER, (), "opening"), 0)
    assert len(sends(step(core, Tick(), 100))) == 1


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("route", [Route(ALL_KEYS, "j1", "b"), Route(ALL_KEYS, "j1", "a", (2, 0))])
def test_a_new_owner_gets_the_old_ones_unacked_records_at_once(route: Route) -> None:
    core = opened(of=routing(one(), one(Route(ALL_KEYS, "j9", "b"), name="d")))
    first = [send for send in sends(add(core, range(5))) if send.consumer == "c"]
    other = one(Route(ALL_KEYS, "j9", "b"), name="d")
    (again,) = sends(step(core, RoutingArrived(routing(one(route), other, revision=2)), 1))
    assert (again.address, again.journal, again.ids) == (route.address, "j1", first[0].ids)
    assert step(core, DeliveryAnswered((first[0].token,), ACKED), 2) == [], (
        "an answer of the owner before changes nothing"
    )
    assert (core.unacked, unacked_records(core)) == (10, 5)


@pytest.mark.guarantee("G11")
def test_a_split_regroups_unacked_records_with_rising_positions() -> None:
    core = opened()
    sent = []
    for position in range(12):
        sent += sends(add(core, [position], position, key=b"ax"[position % 2 : position % 2 + 1]))
    step(core, DeliveryAnswered((sent[0].token,), ACKED), 20)
    halves = [Route(KeyInterval(b"", b"m"), "j2", "a"), Route(KeyInterval(b"m"), "j3", "a")]
    step(core, RoutingArrived(routing(one(*halves), revision=2)), 21)
    step(core, ConnectionLost("a"))
    out = {send.journal: send for send in sends(step(core, ConnectionOpened("a"), 30))}
    assert (out["j2"].ids, out["j2"].mark) == ([2, 4, 6, 8, 10], 2)
    assert (out["j3"].ids, out["j3"].mark) == ([1, 3, 5, 7, 9, 11], 1)
    assert (out["j2"].waited, out["j3"].waited) == (29, 29), "they wait since their batch began, at 1"
    assert (out["j2"].span, out["j3"].span) == (10, 10), "the newest of them came at 11"


@pytest.mark.guarantee("G1", section="6.1.1")
def test_records_that_moved_are_sent_by_their_positions() -> None:
    """Those between that were ACKed before are in no delivery to the new interval."""
    core = opened(of=replace(routing(), position_ranges=True))
    sent = []
    for position in range(12):
        sent += sends(add(core, [position], position, key=b"ax"[position % 2 : position % 2 + 1]))
    assert all(send.complete for send in sent)
    halves = [Route(KeyInterval(b"", b"m"), "j2", "a"), Route(KeyInterval(b"m"), "j3", "a")]
    step(core, RoutingArrived(replace(routing(one(*halves), revision=2), position_ranges=True)), 21)
    step(core, ConnectionLost("a"))
    moved = sends(step(core, ConnectionOpened("a"), 30))
    assert {send.journal: send.complete for send in moved} == {"j2": False, "j3": False}
    for send in moved:
        step(core, DeliveryAnswered((send.token,), ACKED), 31)
    (later,) = sends(add(core, range(12, 15), 40))
    assert later.complete, "what is accepted under the new routing"


@pytest.mark.guarantee("G11")
def test_a_merge_regroups_unacked_records_with_rising_positions() -> None:
    halves = [Route(KeyInterval(b"", b"m"), "j1", "a"), Route(KeyInterval(b"m"), "j2", "a")]
    core = opened(of=routing(one(*halves)))
    for position in range(8):
        add(core, [position], key=b"ax"[position % 2 : position % 2 + 1])
    (send,) = sends(step(core, RoutingArrived(routing(one(Route(ALL_KEYS, "j3", "a")), revision=2)), 1))
    assert (send.journal, send.ids, send.mark) == ("j3", list(range(8)), 0)
    assert (core.unacked, core.unacked_bytes) == (8, 16)


@pytest.mark.guarantee("G11")
def test_a_new_owner_gets_the_old_ones_refused_records_at_once() -> None:
    core = opened(replace(LIMITS, retry_first=20_000))
    (send,) = sends(add(core, [1]))
    step(core, DeliveryAnswered((send.token,), NOT_OWNER, (), "moved"), 0)
    (again,) = sends(step(core, RoutingArrived(routing(one(Route(ALL_KEYS, "j1", "a", (2, 0))), revision=2)), 1))
    assert again.ids == [1]
    add(core, [2], 2)
    assert len(sends(step(core, Tick(), 2 + LIMITS.linger))) == 1


def test_of_what_may_be_sent_the_oldest_goes_first() -> None:
    core = opened(replace(LIMITS, max_in_flight=1))
    (first,) = sends(add(core, range(10)))
    assert sends(add(core, range(10, 20))) == []
    step(core, DeliveryAnswered((first.token,), FULL, (), "full"), 0)
    (again,) = sends(step(core, Tick(), 100))
    assert again.ids == first.ids


def test_an_older_routing_changes_nothing() -> None:
    core = opened(of=routing(revision=5))
    assert step(core, RoutingArrived(routing(one(Route(ALL_KEYS, "j1", "z")), revision=4)), 0) == []


def test_a_new_consumer_gets_later_records_a_removed_one_none() -> None:
    core = opened()
    (first,) = sends(add(core, [1]))
    other = one(Route(ALL_KEYS, "k1", "a"), name="d")
    assert sends(step(core, RoutingArrived(routing(one(), other, revision=2)), 0)) == []
    out = sends(add(core, [2]))
    assert [(send.consumer, send.ids) for send in out] == [("d", [2])]
    step(core, DeliveryAnswered((first.token,), ACKED, [], ""), 0)
    step(core, RoutingArrived(routing(other, revision=3)), 0)
    assert core.unacked == 1


@pytest.mark.guarantee("G11")
def test_records_wait_while_their_interval_has_no_owner() -> None:
    core = opened(of=routing(one(Route(ALL_KEYS, "j1", ""))))
    assert add(core, [1]) == []
    (connect,) = step(core, RoutingArrived(routing(revision=2)), 0)
    assert isinstance(connect, Connect)
    assert len(sends(step(core, ConnectionOpened("a"), 0))) == 1


@pytest.mark.guarantee("G11")
def test_a_routing_that_leaves_keys_out_is_refused() -> None:
    for routes in (
        [Route(KeyInterval(b"a"), "j", "")],
        [Route(KeyInterval(b"", b"a"), "j", "")],
        [],
        [Route(ALL_KEYS, "j", "")] * 2,
    ):
        with pytest.raises(ValueError, match=r"cover|leave out"):
            ConsumerRouting(IncarnationId("c"), routes)
