"""What an error of a client says: the reason of its connections, as long as the brokers do not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError as LibraryError
from confluent_kafka import KafkaException

from millwheel.connectors.kafka.clients import KafkaClient


def event(name: str, text: str) -> LibraryError:
    return LibraryError(getattr(LibraryError, name), text)


REFUSED = event("_AUTHENTICATION", "SASL authentication error: Authentication failed")


class Handle:
    """A client of the library whose events a test makes."""

    def __init__(self, note: Callable[[Any], None]) -> None:
        self.note = note
        self.waiting: list[LibraryError] = []

    def poll(self, _: float) -> None:
        while self.waiting:
            self.note(self.waiting.pop())


@pytest.fixture
def client() -> KafkaClient:
    return KafkaClient(lambda errors: Handle(errors["error_cb"]), {"bootstrap.servers": "b:1"})


def failure(client: KafkaClient) -> str:
    return str(client.failure("topic 'bids'", KafkaException(event("_TIMED_OUT", "timed out"))))


def test_a_failure_has_the_reason_of_its_connection(client: KafkaClient) -> None:
    client.handle.waiting.append(REFUSED)
    for _ in range(2):
        assert "Authentication failed). Correct sasl.username" in failure(client), "it stays until an answer comes"


def test_an_answer_of_another_broker_leaves_the_reason(client: KafkaClient) -> None:
    """One client asks for all partitions of a process. That of a broker which answers ends no reason of the others."""
    error, began = KafkaException(event("_TIMED_OUT", "timed out")), client.begins()
    client.handle.waiting.append(REFUSED)
    client.answered()
    assert "Authentication failed). Correct sasl.username" in str(client.failure("partition 2", error, began))
    assert "Authentication" not in str(client.failure("partition 2", error, client.begins()))


@pytest.mark.parametrize("taken", [True, False])
def test_an_answer_ends_the_reason(client: KafkaClient, taken: bool) -> None:
    """Regression: a login that was refused for a moment was in each later error of the client."""
    client.handle.waiting.append(REFUSED)
    if taken:
        failure(client)
    assert client.ask("topic 'bids'", lambda: 3) == 3
    assert "Authentication" not in failure(client)
