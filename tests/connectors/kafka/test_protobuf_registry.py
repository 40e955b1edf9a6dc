"""Files of Protobuf in a schema registry: registered with what they import, changed, refused, away; and topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.connectors import BadRecord, SinkBatch, SinkShard
from millwheel.connectors.kafka import KafkaError, sink, source
from millwheel.sdk.errors import UsageError
from tests.connectors.given import NOON, at
from tests.connectors.kafka.given import address, committed, new_topic, read_all, written
from tests.connectors.kafka.messages import compiled
from tests.connectors.kafka.registries import Door, asked, direct, new_subject
from tests.connectors.kafka.test_protobuf_text import OLD
from tests.patience import patience


def files(bid: str, folder: str = "shop") -> dict[str, str]:
    """Files that import each other. ``folder``: of subjects that no other test has."""
    head = 'syntax = "proto3"; package shop;\n'
    return {
        f"{folder}/places.proto": f"{head} message Place {{ string city = 1; }}",
        f"{folder}/sellers.proto": f'{head} import "{folder}/places.proto";'
        "message Seller { string name = 1; Place place = 2; }",
        f"{folder}/bids.proto": f'{head} import "{folder}/sellers.proto"; import "google/protobuf/timestamp.proto";'
        f'import "{folder}/places.proto";\nmessage Sale {{}} message Bid {{ {bid} }}',
    }


FIELDS = "string item = 1; int64 cents = 2; Seller seller = 3; google.protobuf.Timestamp at = 4;"
NEW_FIELDS = f"{FIELDS} optional string by = 5; Place place = 6;"


class Seller(msgspec.Struct):
    name: str


class Bid(msgspec.Struct):
    item: str
    cents: int
    seller: Seller | None = None
    at: mw.Timestamp | None = None


LAMP, VASE = Bid("lamp", 300), Bid("vase", 900, Seller("ann"), mw.Timestamp(NOON))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry loads what it needs for Protobuf at the first call, on a machine with other load."""
    monkeypatch.setattr("millwheel.connectors.kafka.registry.ANSWER_SECONDS", patience(20))


@pytest.fixture
def door() -> Iterator[Door]:
    with Door().open() as opened:
        yield opened


def latest(subject: str) -> Any:
    return msgspec.json.decode(asked("GET", f"/subjects/{subject.replace('/', '%2F')}/versions/latest")[1])


def test_a_file_is_registered_with_what_it_imports(door: Door, tmp_path: Path) -> None:
    subject = new_subject()
    of_class = compiled(files(FIELDS, subject))
    registry = door.registry(tmp_path)
    data = [registry.protobuf(Bid, of_class, subject=subject).encode(one) for one in (LAMP, VASE)]
    found = latest(subject)
    assert found["schemaType"] == "PROTOBUF"
    assert data[0][:7] == b"\0" + found["id"].to_bytes(4, "big") + b"\2\2"
    assert 'import "google/protobuf/timestamp.proto";' in found["schema"]
    places = {"name": f"{subject}/places.proto", "subject": f"{subject}/places.proto", "version": 1}
    sellers = {"name": f"{subject}/sellers.proto", "subject": f"{subject}/sellers.proto", "version": 1}
    assert found["references"] == [sellers, places]
    assert latest(f"{subject}/sellers.proto")["references"] == [places]
    assert latest(f"{subject}/places.proto")["references"] == []
    assert [call.split()[0] for call in door.calls] == ["POST"] * 10  # of two formats, five each
    door.calls.clear()
    reader = registry.protobuf(Bid, of_class)
    assert [reader.decode(one) for one in data] == [LAMP, VASE]
    assert door.calls == [f"GET /schemas/ids/{found['id']}"]


def test_a_file_of_every_kind_is_taken() -> None:
    """The registry parses the text when it has a rule. This one knows no messages within groups."""
    text = OLD.replace("message Inner { optional bool done = 1; }", "")
    of_class, subject = compiled(text, "shop.old.Bid"), new_subject()
    assert direct().protobuf(of_class, subject=subject).encode(of_class(item="x"))[:1] == b"\0"
    assert asked("PUT", f"/config/{subject}", {"compatibility": "FULL"})[0] == 200
    newer = compiled(
        text.replace("optional bytes raw", "optional int32 newer = 99; optional bytes raw"), "shop.old.Bid"
    )
    data = direct().protobuf(newer, subject=subject).encode(newer(item="x"))
    assert direct().protobuf(of_class).decode(data).item == "x"


def test_a_schema_may_change_midway() -> None:
    subject = new_subject()
    old, new = compiled(files(FIELDS, subject)), compiled(files(NEW_FIELDS, subject))
    before = direct().protobuf(old, subject=subject).encode(old(item="lamp", seller={"name": "ann"}))
    after = direct().protobuf(new, subject=subject).encode(new(item="vase", place={"city": "rome"}))
    assert before[:5] != after[:5]
    for reader in (direct().protobuf(old), direct().protobuf(new)):
        assert [reader.decode(one).item for one in (before, after, before)] == ["lamp", "vase", "lamp"]
    bids = direct().protobuf(Bid, new)
    assert [bids.decode(one) for one in (before, after)] == [Bid("lamp", 0, Seller("ann")), Bid("vase", 0)]


def test_a_schema_that_is_not_compatible_is_an_error() -> None:
    subject = new_subject()
    of_class = compiled(files(FIELDS, subject))
    direct().protobuf(of_class, subject=subject).encode(of_class())
    assert asked("PUT", f"/config/{subject}", {"compatibility": "BACKWARD"})[0] == 200
    wrong = compiled(files("int64 item = 1; string cents = 2;", subject))
    with pytest.raises(KafkaError, match=r"not compatible with the schema of the sink.*Keep the numbers and types"):
        direct().protobuf(wrong, subject=subject).encode(wrong())
    newer = compiled(files(NEW_FIELDS, subject))
    direct().protobuf(newer, subject=subject).encode(newer())


def test_a_schema_that_is_not_registered_is_an_error() -> None:
    subject = new_subject()
    of_class = compiled(files(FIELDS, subject))
    looks_up = direct().protobuf(of_class, subject=subject, register=False)
    with pytest.raises(KafkaError, match=f"subject '{subject}/places.proto': the schema registry does not have"):
        looks_up.encode(of_class())
    registering = direct().protobuf(of_class, subject=subject).encode(of_class())
    assert looks_up.encode(of_class()) == registering  # an error is not kept


def test_imports_are_asked_for_once(door: Door, tmp_path: Path) -> None:
    """A registry that goes away midway is asked for the rest when it is back."""
    subject = new_subject()
    of_class = compiled(files(FIELDS, subject))
    writer = door.registry(tmp_path).protobuf(of_class, subject="{record}-" + subject)
    asked("POST", f"/subjects/{subject}", {})
    door.answers = [(200, b'{"id": 7}'), (200, b'{"id": 7, "version": 3}'), (503, b"")]
    with pytest.raises(KafkaError, match=rf"subject '{subject}/sellers.proto': .* answered 503"):
        writer.encode(of_class())
    door.answers = [(200, b'{"id": 8}'), (200, b'{"id": 8, "version": 1}'), (200, b'{"id": 9}')]
    assert writer.encode(of_class()) == b"\0\0\0\0\x09\2\2"
    paths = [call.removeprefix("POST /subjects/").replace(f"{subject}%2F", "") for call in door.calls]
    assert paths == [
        "places.proto/versions", "places.proto", "sellers.proto/versions",
        "sellers.proto/versions", "sellers.proto", f"shop.Bid-{subject}/versions",
    ]  # fmt: skip


def test_arguments_that_cannot_be_used_are_named() -> None:
    registry = direct()
    of_class = compiled(files(FIELDS))
    with pytest.raises(UsageError, match="is no generated class of Protobuf"):
        registry.protobuf(Bid)  # type: ignore[type-var]
    assert registry.protobuf(Bid, of_class, schema=None).values.name() == "shop.Bid"
    lost = msgspec.defstruct("Lost", [("item", str), ("weight", int, 1)])
    assert source("bids", decode=registry.protobuf(lost, of_class), brokers="x:1").identity() == "Kafka topic bids"
    with pytest.raises(UsageError, match=r"cannot be written as shop\.Bid: it\.weight: the message"):
        sink("bids", value=registry.protobuf(lost, of_class), brokers="x:1")


@pytest.mark.guarantee("G1")
async def test_a_topic_of_messages_is_read_and_written(tmp_path: Path) -> None:
    """Two schemas, another message, a damaged one, an unknown id; and a registry that is away at first."""
    topic, target, subject, door = new_topic(), new_topic(), new_subject(), Door()
    old, new = compiled(files(FIELDS, subject)), compiled(files(NEW_FIELDS, subject))
    whole = files(FIELDS, subject)
    sale = compiled(whole, "shop.Sale")

    def encoded() -> list[bytes]:
        registry = direct()
        return [
            registry.protobuf(old, subject=subject).encode(old(item="lamp", cents=300)),
            registry.protobuf(sale, subject=subject).encode(sale()),
            registry.protobuf(Bid, new, subject=subject).encode(VASE),
        ]

    lamp, sold, vase = await asyncio.to_thread(encoded)
    written(topic, [lamp, sold, vase[:-1], vase])
    bids = source(topic, decode=door.registry(tmp_path).protobuf(Bid, old), brokers=address())
    with pytest.raises(KafkaError, match=r"cannot be reached \(.*; it is asked again"):
        await read_all(bids, 4)
    with door.open():
        reading = await read_all(bids, 4)
    first, other, damaged, last = reading.records
    assert (first, last) == (LAMP, VASE)
    assert isinstance(other, BadRecord)
    assert isinstance(damaged, BadRecord)
    assert (other.place, other.raw) == ("offset 1", sold)
    assert "it is not a shop.Bid: it is the message [0] of a schema that has shop.Sale, shop.Bid" in other.error
    assert "its bytes are no shop.Bid: they end within a field" in damaged.error
    batch = SinkBatch(1, [(LAMP, at(1)), (VASE, at(2))], "1", "")
    value = door.registry(tmp_path).protobuf(Bid, new)
    place, to = SinkShard(f"shop/{target}", 0, 1, run=5), sink(target, key="item", value=value, brokers=address())
    for is_away in (True, False):
        writer = await to.open_writer(place)
        try:
            if is_away:
                with pytest.raises(KafkaError, match="cannot be reached"):
                    await writer.write(batch)
            else:
                with door.open():
                    await writer.write(batch)
        finally:
            await writer.close()

    def found() -> list[Bid]:
        reader = direct().protobuf(Bid, old)
        return [reader.decode(one.value() or b"") for one in committed(target)]

    assert await asyncio.to_thread(found) == [LAMP, VASE]
    written(topic, [b"\0" + (999_999).to_bytes(4, "big") + b"\0"])
    assert reading.last is not None
    with door.open():
        try:
            (unknown,) = (await read_all(bids, 1, reading.last.position)).records
            why = unknown.error
        except KafkaError as error:  # the registry may learn of it yet
            why = str(error)
    assert "no schema with the id 999999" in why
