"""Which messages of a session are new, against a naive model of a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.connectors.mqtt.deliveries import SentMessage, SessionDeliveries, SessionPosition, digest_of

STEPS = st.lists(
    st.tuples(st.sampled_from(["publish", "send", "commit", "ack", "lose"]), st.integers(1, 4)), max_size=60
)


class Broker:
    """Keeps each message until it is acknowledged. All messages have the same content, as those of a steady sensor."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.published = 0
        self.sent = 0
        self.unacked: list[int] = []

    def send(self, most: int) -> list[SentMessage]:
        count = min(most, self.window - len(self.unacked), self.published - self.sent)
        new = range(self.sent, self.sent + count)
        self.sent += count
        self.unacked += new
        return [SentMessage(packet_of(one), again=False, content=7) for one in new]

    def send_again(self) -> list[SentMessage]:
        return [SentMessage(packet_of(one), again=True, content=7) for one in self.unacked]


def packet_of(message: int) -> int:
    """Packet ids go round. The broker has fewer messages at one time."""
    return message % 9 + 1


@pytest.mark.guarantee("G1")
@given(window=st.integers(1, 4), steps=STEPS)
def test_each_message_is_taken_once_through_crashes(window: int, steps: list[tuple[str, int]]) -> None:
    """A crash loses what was not committed, and acknowledgements that were under way."""
    broker, committed, taken = Broker(window), SessionPosition(), 0
    deliveries, waiting = SessionDeliveries(committed, window), list[SentMessage]()
    unacked = 0  # messages that were taken, committed and not acknowledged
    for step, number in [*steps, ("lose", 1), *[("send", 4), ("commit", 1), ("ack", 4)] * 60]:
        if step == "publish":
            broker.published += number
        elif step == "send":
            waiting += broker.send(number)
        elif step == "commit":
            for one in waiting:
                unacked += 1
                taken += deliveries.take(one)
            waiting = []
            committed = deliveries.position
            assert committed.count == taken
        elif step == "ack":
            del broker.unacked[: min(number, unacked)]
            unacked = max(unacked - number, 0)
        elif step == "lose":
            deliveries, unacked, taken = SessionDeliveries(committed, window), 0, committed.count
            waiting = broker.send_again()
    assert taken == broker.published
    assert len(committed.taken) <= window


def test_a_smaller_window_forgets_nothing_that_may_come_again() -> None:
    before = SessionPosition([(1, 7), (2, 7), (3, 7)], 3)
    assert SessionDeliveries(before, 1).position == before
    later = SessionDeliveries(before, 1)
    assert [later.take(SentMessage(packet, True, 7)) for packet in (1, 2, 3, 4)] == [False, False, False, True]


def test_what_is_not_marked_is_new() -> None:
    """A packet id that is free again is used for the next message, which may have the same content."""
    deliveries = SessionDeliveries(SessionPosition([(1, 7)], 1), 4)
    assert [deliveries.take(SentMessage(1, again, 7)) for again in (True, False, False)] == [False, True, True]


def test_a_digest_knows_where_its_parts_end() -> None:
    assert digest_of(b"ab", b"c") != digest_of(b"a", b"bc")
