"""Messages that are read at once have the values and times that they have one by one (section 5.2; G1)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.connectors.kafka.records import KafkaRecord, ParsedValue, event_time, message_bytes, reads_as

MOST = 100
HEADERS: list[tuple[str, Any]] = [("by", b"ann"), ("empty", None)]


class Bid(msgspec.Struct, frozen=True):
    """What is read."""

    item: str


def message(value: bytes | None = b'{"item": "lamp"}', **more: Any) -> Message:
    return Message(topic="bids", partition=0, offset=7, value=value, **more)


MESSAGES = st.one_of(
    st.builds(
        lambda item, key, headers, time: message(
            msgspec.json.encode(Bid(item)), key=key, headers=headers, timestamp=time
        ),
        st.text(max_size=9),
        st.sampled_from([None, b"", b"key"]),
        st.sampled_from([None, HEADERS]),
        st.sampled_from([(0, 0), (1, -1), (1, 1_767_268_800_000), (2, 5)]),
    ),
    st.sampled_from([
        message(None),
        message(b"no JSON"),
        message(b'{"item": 1}'),
        message(error=KafkaError(KafkaError.LEADER_NOT_AVAILABLE)),
    ]),
)  # fmt: skip


def one_by_one(read: ParsedValue[Any], messages: list[Message]) -> list[Any] | None:
    """What a reader gets that stops where one of them is no record."""
    if sum(map(message_bytes, messages)) >= MOST or any(one.error() is not None for one in messages):
        return None
    try:
        return [(read(one), event_time(one)) for one in messages]
    except ValueError:
        return None


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("kind", [Bid, KafkaRecord[Bid], KafkaRecord[bytes]])
@settings(max_examples=200)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=6))
def test_what_is_read_at_once_is_what_is_read_one_by_one(kind: Any, messages: list[Message]) -> None:
    read = reads_as(kind, "json", None)
    assert isinstance(read, ParsedValue)
    assert read.read_all(messages, MOST) == one_by_one(read, messages)


def test_values_that_a_registry_explains_are_read_one_by_one() -> None:
    assert ParsedValue(msgspec.json.decode, alone=True).read_all([message()], MOST) is None


class Known(msgspec.Struct):
    """Its own check ends by StopIteration, as a ``next`` without a default does."""

    item: str

    def __post_init__(self) -> None:
        next(one for one in ("lamp", "vase") if one == self.item)


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("kind", [Known, KafkaRecord[Known]])
def test_a_value_that_stops_an_iteration_ends_no_read(kind: Any) -> None:
    """Regression: ``map`` took it for the end, and the reader failed at each attempt, without naming the record."""
    read: Any = reads_as(kind, "json", None)
    assert read.read_all([message(), message(b'{"item": "desk"}'), message()], 1_000) is None
    assert len(read.read_all([message(), message()], 1_000)) == 2
