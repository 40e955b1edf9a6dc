"""A password that the brokers refuse is named, and is not shown. Nothing is lost until it is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from millwheel.connectors import Sink, Source
from millwheel.connectors.kafka import KafkaError, sink, source
from tests import components
from tests.connectors.kafka.given import Bid, bids, new_topic, read_all, settings_text, written
from tests.connectors.kafka.test_sink import batch, place, writer

SAYS = r"Authentication failed.*Correct sasl.username, sasl.password and sasl.mechanism in the worker's file"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings with a wrong password."""
    for module in ("asking", "clients", "partitions", "writers"):
        monkeypatch.setattr(f"millwheel.connectors.kafka.{module}.ANSWER_SECONDS", 2.0)
    path = tmp_path / "kafka.properties"
    set_password(path, {"sasl.password": "guess"})
    return path


def set_password(path: Path, others: dict[str, str]) -> None:
    path.write_text(settings_text(components.kafka(), **others))


@pytest.mark.guarantee("G1", section="6.1")
async def test_a_source_goes_on_with_the_right_password(settings: Path) -> None:
    topic = new_topic()
    written(topic, [Bid("lamp", 3)])
    secret: Source[Bid, int] = source(topic, Bid, settings=str(settings))
    with pytest.raises(KafkaError, match=rf"topic '{topic}' cannot be looked up: .*{SAYS}") as refused:
        await secret.splits()
    assert "guess" not in str(refused.value)
    with pytest.raises(KafkaError, match=rf"partition 0 of topic '{topic}': .*{SAYS}"):
        await (await secret.open_reader("0", None)).read()
    set_password(settings, {})
    assert (await read_all(secret, 1)).records == [Bid("lamp", 3)]


@pytest.mark.guarantee("G1", section="6.1")
async def test_a_sink_goes_on_with_the_right_password(settings: Path) -> None:
    topic = new_topic()
    secret: Sink[Bid] = sink(topic, key="item", settings=str(settings))
    with pytest.raises(KafkaError, match=SAYS):
        async with writer(secret, place(topic)) as refused:
            await refused.write(batch(1, 10))
    set_password(settings, {})
    async with writer(secret, place(topic)) as one:
        await one.write(batch(1, 10))
    assert bids(topic) == [("lamp", 10)]
